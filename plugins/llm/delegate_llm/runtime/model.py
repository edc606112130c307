"""The loaded program of a language model, and conversations with it. Needs NumPy and the backends' libraries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np

from delegate.errors import DelegateError, InputError, ProgramError
from delegate.runtime.context import Context
from delegate.runtime.loaded import LoadedProgram, load
from delegate_llm.runtime.about import ChatFormat, count_stored_bytes, read_about
from delegate_llm.runtime.adapter import Adapter, read_adapter
from delegate_llm.runtime.sampling import Array, Sampler
from delegate_llm.runtime.tokenizer import Tokenizer
from delegate_llm.runtime.tokenizer_format import MOST_BYTES

_EXPORT = "create the file with `delegate llm export`"
WhenFull = Literal["stop", "slide"]


class Model:
    """The loaded program of a language model.

    Args:
        program: the program file, or the loaded program.
        trust_code: run machine code of the file, such as partitions on NVIDIA's GPUs.
        kernels: names of kernel libraries in order of preference; None: as in `delegate.load`.

    Attributes:
        program: the loaded program, with a context for each conversation.
        about: what the export stored about the model, such as its sizes and end tokens.
        chat: the text around the messages of a chat; None: the model has no chat template.

    Raises:
        ProgramError: the file cannot be read, or has no language model.
    """

    def __init__(
        self, program: Path | LoadedProgram, trust_code: bool = False, kernels: Sequence[str] | None = None
    ) -> None:
        self._where = "" if isinstance(program, LoadedProgram) else str(program)
        if not isinstance(program, LoadedProgram):
            program = load(program, trust_code=trust_code, kernels=kernels)
        self.program = program
        try:
            if missing := {"prefill", "decode", "head", "about"} - set(self.program.methods):
                raise ProgramError(f"it has no method {', '.join(sorted(missing))}")
            self.about = read_about(self.program)
        except DelegateError as error:
            self.program.close()
            raise ProgramError(error.what, where=self._where, remedy=_EXPORT) from error
        chat = self.about.get("chat")
        self.chat = None if chat is None else ChatFormat(**chat)

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer of the file, or None if it has none.

        Raises:
            ProgramError: it is damaged, or the model lacks one of its tokens.
        """
        if "tokenizer" not in self.program.methods:
            return None
        try:
            return Tokenizer(count_stored_bytes(self.program, "tokenizer", MOST_BYTES), self.about["vocabulary"])
        except ProgramError as error:
            raise ProgramError(error.what, where=self._where, remedy=_EXPORT) from error

    def tokens(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the tokens of a text.

        Args:
            text: any text; names of special tokens in the text become these tokens.
            add_special_tokens: add what the tokenizer puts around a text, such as a token that begins it.

        Raises:
            InputError: the program has no tokenizer, or the tokenizer fails on this text.
        """
        if self.tokenizer is None:
            raise InputError("the program has no tokenizer", remedy="pass tokens as numbers")
        return self.tokenizer.encode(text, add_special_tokens)

    def load_adapter(self, folder: Path) -> Adapter:
        """Return the LoRA adapter of a folder that PEFT saved, for conversations of this model.

        Raises:
            InputError: the program has no places for adapters, or the adapter cannot be read or does not fit.
        """
        if not self.about.get("lora_rank"):
            raise InputError("the program has no places for adapters", remedy="export it with --lora-rank")
        return read_adapter(folder, self.program.states, str(self.about.get("base", "")))

    def conversation(self, prefix: Prefix | None = None, adapter: Adapter | None = None) -> Conversation:
        """Return a new conversation in a context of its own.

        Args:
            prefix: the start that it continues, with the adapter of the prefix.
            adapter: changes the model for this conversation.

        Raises:
            InputError: the prefix was computed with another adapter.
        """
        if prefix is not None and adapter not in (None, prefix.adapter):
            remedy = "compute the prefix in a conversation with this adapter"
            raise InputError("the prefix was computed with another adapter", remedy=remedy)
        conversation = Conversation(self, self.program.context())
        conversation.restart(adapter if prefix is None else prefix.adapter)
        if prefix is not None:
            conversation.tokens = list(prefix.tokens)
            conversation.context.restore(prefix.states, conversation.filled())
        return conversation


@dataclass(frozen=True)
class Prefix:
    """The common start of several conversations: its tokens, the states after them, and the adapter."""

    tokens: Sequence[int]
    states: Mapping[str, Array]
    adapter: Adapter | None


@dataclass
class Conversation:
    """A text that is continued token by token.

    Args:
        model: the model that continues it.
        context: the context that has its keys and values.
        row: the row of the context's cache that belongs to this conversation.

    Attributes:
        tokens: the tokens in the cache.
        adapter: changes the model for this conversation.
    """

    model: Model
    context: Context
    row: int = 0
    tokens: list[int] = field(default_factory=list)
    adapter: Adapter | None = field(default=None, init=False)

    def restart(self, adapter: Adapter | None = None) -> None:
        """Forget all tokens, and use another adapter or none."""
        self.tokens.clear()
        if adapter is self.adapter:
            return
        if self.adapter is not None:
            self.context.method("detach")(np.array([self.row]))
            self.adapter = None
        if adapter is not None:
            adapter.attach(self.context, self.row)
            self.adapter = adapter

    @property
    def remaining(self) -> int:
        """The number of tokens that still fit into the context."""
        return int(self.model.about["context"]) - len(self.tokens)

    def feed(self, tokens: Sequence[int], before_chunk: Callable[[], None] | None = None) -> Array:
        """Compute tokens chunk by chunk, and return the logits after the last one (vocabulary).

        Args:
            tokens: the tokens that follow.
            before_chunk: called before each chunk. If it raises an exception, the chunks before stay computed.

        Raises:
            InputError: as `check`.
        """
        self.check(tokens)
        chunk = int(self.model.about["chunk"])
        for start in range(0, len(tokens), chunk):
            if before_chunk is not None:
                before_chunk()
            part = list(tokens[start : start + chunk])
            first = len(self.tokens)
            method = self.context.method("prefill" if len(part) > 1 else "decode")
            hidden = method(np.array(part), np.arange(first, first + len(part)), np.full(len(part), self.row))
            self.tokens += part
        logits: Array = self.context.method("head")(hidden[-1:])[0]
        return logits

    def check(self, tokens: Sequence[int]) -> None:
        """Raise InputError if tokens are missing, one is not a token of the model, or they do not fit."""
        vocabulary = self.model.about["vocabulary"]
        if not tokens:
            raise InputError("the prompt is empty", remedy="pass a prompt")
        if unknown := [t for t in tokens if not 0 <= t < vocabulary]:
            remedy = f"use token numbers from 0 to {vocabulary - 1}"
            raise InputError(f"{unknown[0]} is not a token of the model", remedy=remedy)
        if len(tokens) > self.remaining:
            what = f"{len(tokens)} tokens after {len(self.tokens)} earlier tokens do not fit into a context of"
            remedy = "use a shorter prompt, or export with a larger --context"
            raise InputError(f"{what} {self.model.about['context']}", remedy=remedy)

    def generate(
        self,
        prompt: Sequence[int],
        count: int,
        sampler: Sampler,
        when_full: WhenFull = "stop",
        before_chunk: Callable[[], None] | None = None,
    ) -> Iterator[int]:
        """Yield the tokens that follow a prompt, up to one that ends the answer.

        The last token of an answer is not in the cache yet.

        Args:
            prompt: the tokens to compute first.
            count: the maximum number of tokens to generate.
            sampler: chooses each token.
            when_full: `stop` ends if the context is full; `slide` forgets the older half and continues.
            before_chunk: see `feed`.

        Raises:
            InputError: as `feed` of the prompt.
            ExecutionError: logits are NaN or infinite.
        """
        logits = self.feed(prompt, before_chunk)
        for number in range(count):
            token = sampler.pick(logits)
            if token in self.model.about["ends"]:
                return
            yield token
            if number == count - 1 or (self.remaining == 0 and when_full == "stop"):
                return
            logits = self.next(token, before_chunk)

    def next(self, token: int, before_chunk: Callable[[], None] | None = None) -> Array:
        """Return the logits after one more token; if the context is full, forget the older half first."""
        if self.remaining == 0:
            later = self.tokens[len(self.tokens) // 2 :]
            self.tokens = []
            return self.feed([*later, token], before_chunk)
        return self.feed([token], before_chunk)

    def snapshot(self) -> Prefix:
        """Return a copy of the filled part of the cache, as the start of other conversations."""
        return Prefix(tuple(self.tokens), self.context.snapshot(self.filled()), self.adapter)

    def filled(self) -> dict[str, tuple[slice, ...]]:
        """Return the part of each cache that has the tokens; caches are (rows, groups, context, ...)."""
        part = (slice(self.row, self.row + 1), slice(None), slice(len(self.tokens)))
        return dict.fromkeys((name for name in self.context.states if name.startswith(("keys.", "values."))), part)
