"""Tokens to text as they come, and the words that stop it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from delegate.errors import InputError


class Text:
    """The text of tokens that come one after the other.

    Args:
        tokenizer: of `tokenizers`; None: tokens are written as numbers.
        stops: words that end the text, and are no part of it.

    Attributes:
        stopped: a stop word came.
    """

    def __init__(self, tokenizer: Any | None, stops: Iterable[str] = ()) -> None:
        self._tokenizer, self._stops = tokenizer, tuple(word for word in stops if word)
        self._tokens: list[int] = []
        self._start = self._written = 0  # of the tokens that are decoded together, and of their text what was given
        self._held = ""
        self.stopped = False

    def add(self, token: int) -> str:
        """The text that a token adds, as far as it is sure to belong to it: what may begin a stop word is held back."""
        if self.stopped:
            return ""
        self._held += self._decoded(token)
        ends = [at for word in self._stops if (at := self._held.find(word)) >= 0]
        if ends:
            self.stopped = True
            return self._give(min(ends))
        return self._give(len(self._held) - max((_begun(self._held, word) for word in self._stops), default=0))

    def finish(self) -> str:
        """What was held back, where no more tokens come; a character that is not whole is none that can be written."""
        if self.stopped:
            return ""
        if self._tokenizer is not None:
            self._held += self._tokenizer.decode(self._tokens[self._start :])[self._written :]
        return self._give(len(self._held))

    def _give(self, count: int) -> str:
        given, self._held = self._held[:count], self._held[count:]
        return given

    def _decoded(self, token: int) -> str:
        """The text that a token adds; none while its character is not whole."""
        if self._tokenizer is None:
            return f"{token} "
        self._tokens.append(token)
        text: str = self._tokenizer.decode(self._tokens[self._start :])
        if text.endswith("\N{REPLACEMENT CHARACTER}"):
            return ""
        new = text[self._written :]
        # Spaces belong to two tokens, so the last one is decoded again with the next.
        last: str = self._tokenizer.decode(self._tokens[-1:])
        if not last.endswith("\N{REPLACEMENT CHARACTER}"):
            self._start, text = len(self._tokens) - 1, last
        self._written = len(text)
        return new


def _begun(text: str, word: str) -> int:
    """How many of the last characters of the text the word begins with."""
    return next((n for n in range(min(len(text), len(word) - 1), 0, -1) if text.endswith(word[:n])), 0)


def numbers(text: str) -> Sequence[int]:
    """Return the tokens of a text such as "5,17,3"; raises InputError for anything else."""
    try:
        return [int(number) for number in text.replace(",", " ").split()]
    except ValueError as error:
        raise InputError("this is not a list of token numbers", where=text, remedy="write them as 5,17,3") from error
