"""A program that `export` made, and conversations with it. Needs NumPy and what the backends need, and no torch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from delegate.errors import DelegateError, InputError, ProgramError
from delegate.llm.runtime.sampling import Array, Sampler
from delegate.runtime.context import Context
from delegate.runtime.loaded import load

_SAID = {"context", "chunk", "conversations", "guesses", "vocabulary", "ends"}
WhenFull = Literal["stop", "slide"]


class Model:
    """A loaded program.

    Args:
        path: of its file.
        trust_code: run machine code that is in it, as partitions on NVIDIA's GPUs are.

    Raises:
        ProgramError: the file cannot be read, or is no language model.
    """

    def __init__(self, path: Path, trust_code: bool = False) -> None:
        self.program = load(path, trust_code=trust_code)
        try:
            self.about = self._about()
        except DelegateError as error:
            self.program.close()
            raise ProgramError(
                error.what, where=str(path), remedy="create the file with `delegate llm export`"
            ) from error

    def _about(self) -> Mapping[str, Any]:
        """What the export said of the model."""
        if missing := {"prefill", "decode", "head", "about"} - set(self.program.methods):
            raise ProgramError(f"it has no method {', '.join(sorted(missing))}")
        try:
            said = json.loads(bytes(self.program.method("about")()))
            if missing := _SAID - said.keys():
                raise ProgramError(f"the result of method about lacks {', '.join(sorted(missing))}")
        except (ValueError, TypeError, AttributeError) as error:
            raise ProgramError("method about does not describe a language model") from error
        return dict(said)

    @cached_property
    def tokenizer(self) -> Any | None:
        """That of the file, of `tokenizers`; None: it has none."""
        if "tokenizer" not in self.program.methods:
            return None
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            remedy = "pip install tokenizers, or pass tokens as numbers"
            raise InputError("text needs a tokenizer", where=str(error), remedy=remedy) from error
        return Tokenizer.from_buffer(self.program.method("tokenizer")().tobytes())

    def tokens(self, text: str) -> list[int]:
        """The tokens of a text; raises InputError where the program has no tokenizer."""
        if self.tokenizer is None:
            raise InputError("the program has no tokenizer", remedy="pass tokens as numbers")
        return list(self.tokenizer.encode(text).ids)

    def conversation(self, prefix: Prefix | None = None) -> Conversation:
        """A new conversation in a context of its own, behind a prefix if one is given."""
        made = Conversation(self, self.program.context())
        if prefix is not None:
            made.tokens = list(prefix.tokens)
            made.context.restore(prefix.states, made.filled())
        return made


@dataclass(frozen=True)
class Prefix:
    """What many conversations begin with, with the states behind it."""

    tokens: Sequence[int]
    states: Mapping[str, Array]


@dataclass
class Conversation:
    """One text that goes on.

    Args:
        model: whose.
        context: that holds its keys and values.
        row: the row of the context's cache that is its own.

    Attributes:
        tokens: those that the cache holds.
    """

    model: Model
    context: Context
    row: int = 0
    tokens: list[int] = field(default_factory=list)

    @property
    def room(self) -> int:
        """How many more tokens fit."""
        return int(self.model.about["context"]) - len(self.tokens)

    def feed(self, tokens: Sequence[int]) -> Array:
        """Take tokens in, chunk by chunk; gives the logits behind the last one (vocabulary).

        Raises:
            InputError: there are none, one is no token, or they do not fit.
        """
        self._check(tokens)
        given, chunk = list(tokens), int(self.model.about["chunk"])
        for start in range(0, len(given), chunk):
            part = given[start : start + chunk]
            first = len(self.tokens)
            method = self.context.method("prefill" if len(part) > 1 else "decode")
            hidden = method(np.array([part]), np.arange(first, first + len(part))[None], np.array([self.row]))
            self.tokens += part
        found: Array = self.context.method("head")(hidden)[0]
        return found

    def _check(self, tokens: Sequence[int]) -> None:
        vocabulary = self.model.about["vocabulary"]
        if not tokens:
            raise InputError("the prompt is empty", remedy="pass a prompt")
        if odd := [t for t in tokens if not 0 <= t < vocabulary]:
            raise InputError(
                f"{odd[0]} is not a token of the model", remedy=f"use token numbers from 0 to {vocabulary - 1}"
            )
        if len(tokens) > self.room:
            what = f"{len(tokens)} tokens after {len(self.tokens)} earlier tokens do not fit into a context of"
            remedy = "use a shorter prompt, or export with a larger --context"
            raise InputError(f"{what} {self.model.about['context']}", remedy=remedy)

    def generate(
        self, prompt: Sequence[int], count: int, sampler: Sampler, when_full: WhenFull = "stop"
    ) -> Iterator[int]:
        """The tokens that follow, one after the other, up to one that ends the answer.

        Args:
            prompt: taken in first.
            count: how many at most.
            sampler: picks them.
            when_full: where the context is full, `stop`; or `slide`: go on behind the later half of what it holds.
        """
        logits = self.feed(prompt)
        for number in range(count):
            token = sampler.pick(logits)
            if token in self.model.about["ends"]:
                return
            yield token
            if number == count - 1 or (self.room == 0 and when_full == "stop"):
                return
            logits = self.next(token)

    def next(self, token: int) -> Array:
        """The logits behind one more token; where the context is full its older half is forgotten."""
        if self.room == 0:
            later = self.tokens[len(self.tokens) // 2 :]
            self.tokens = []
            return self.feed([*later, token])
        return self.feed([token])

    def keep(self) -> Prefix:
        """What it holds, as the beginning of other conversations; a copy of what is filled of the cache alone."""
        return Prefix(tuple(self.tokens), self.context.snapshot(self.filled()))

    def filled(self) -> dict[str, tuple[slice, ...]]:
        """The part of each state that its tokens have: caches are (rows, groups, context, ...)."""
        part = (slice(self.row, self.row + 1), slice(None), slice(len(self.tokens)))
        return dict.fromkeys(self.context.states, part)
