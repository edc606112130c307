"""The tokenizer of a language model, and the text of tokens as they come.

The tokenizer is checked before its library reads it, and the library's panics are errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from delegate.errors import DelegateError, InputError, ProgramError
from delegate.plugins import one_line
from delegate_llm.runtime.tokenizer_format import check_tokenizer

_LONG = 4 << 10  # characters of a text that the library gets as a batch, so that other threads run meanwhile
_PANIC = "PanicException"  # of Rust; its class has no module that can be imported
_QUOTED = 40  # characters of a text that an error quotes; it may be a file


class Tokenizer:
    """A tokenizer.

    Args:
        data: the text of a tokenizer.json.
        vocabulary: the model's number of tokens.

    Raises:
        ProgramError: it is not a tokenizer, a value of it is out of range, or the model lacks one of its tokens.
    """

    def __init__(self, data: bytes, vocabulary: int) -> None:
        remedy = "use the tokenizer that the model was trained with"
        try:
            checked = check_tokenizer(data, vocabulary)
        except ValueError as error:
            raise ProgramError(f"its tokenizer cannot be used, {error}", remedy=remedy) from error
        import tokenizers  # late, since tokens as numbers do not need it

        with _errors(ProgramError, "its tokenizer cannot be used", remedy):
            self._tokenizer: Any = tokenizers.Tokenizer.from_buffer(checked)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the tokens of a text; raise InputError if the tokenizer fails."""
        with _errors(InputError, "the tokenizer fails on this text", "pass another text, or tokens as numbers"):
            if len(text) < _LONG:
                return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)
            (encoded,) = self._tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)
            return list(encoded.ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens without those that are special; raise InputError if the tokenizer fails."""
        with _errors(InputError, "the tokenizer fails on the tokens of an answer", "use answers as token numbers"):
            return str(self._tokenizer.decode(tokens))


@contextmanager
def _errors(kind: type[DelegateError], what: str, remedy: str) -> Iterator[None]:
    """Return a context that raises an error of this project for each error of the library, panics included."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != _PANIC:
            raise
        raise kind(f"{what}: {one_line(error)}", remedy=remedy) from error


class Text:
    """The text of tokens that come one after the other.

    Args:
        tokenizer: the tokenizer; None: tokens are written as numbers.
        stops: words that end the text, and are not part of it.

    Attributes:
        stopped: a stop word came.
    """

    def __init__(self, tokenizer: Tokenizer | None, stops: Iterable[str] = ()) -> None:
        self._tokenizer, self._stops = tokenizer, tuple(word for word in stops if word)
        self._tokens: list[int] = []
        self._start = self._written = 0  # first token that is decoded again, and the returned part of that text
        self._held = ""
        self.stopped = False

    def read(self, tokens: Iterable[int]) -> Iterator[str]:
        """Yield the text of tokens as they come, up to a word that ends it."""
        for token in tokens:
            yield self.add(token)
            if self.stopped:
                return
        yield self.finish()

    def add(self, token: int) -> str:
        """Return the text that a token adds, without an end that may be the start of a stop word."""
        if self.stopped:
            return ""
        self._held += self._decode(token)
        ends = [at for word in self._stops if (at := self._held.find(word)) >= 0]
        if ends:
            self.stopped = True
            return self._release(min(ends))
        return self._release(len(self._held) - max((_overlap(self._held, word) for word in self._stops), default=0))

    def finish(self) -> str:
        """Return the rest of the text after the last token; an incomplete character becomes U+FFFD."""
        if self.stopped:
            return ""
        if self._tokenizer is not None:
            self._held += self._tokenizer.decode(self._tokens[self._start :])[self._written :]
        return self._release(len(self._held))

    def _release(self, count: int) -> str:
        released, self._held = self._held[:count], self._held[count:]
        return released

    def _decode(self, token: int) -> str:
        """Return the text that a token adds, or nothing while its character is incomplete."""
        if self._tokenizer is None:
            return f"{token} "
        self._tokens.append(token)
        text = self._tokenizer.decode(self._tokens[self._start :])
        if text.endswith("\N{REPLACEMENT CHARACTER}"):
            return ""
        new = text[self._written :]
        # Spaces belong to two tokens, so the last token is decoded again with the next one.
        last = self._tokenizer.decode(self._tokens[-1:])
        if not last.endswith("\N{REPLACEMENT CHARACTER}"):
            self._start, text = len(self._tokens) - 1, last
        self._written = len(text)
        return new


def _overlap(text: str, word: str) -> int:
    """Return how many of the last characters of a text are the first ones of a word."""
    return next((n for n in range(min(len(text), len(word) - 1), 0, -1) if text.endswith(word[:n])), 0)


def parse_tokens(text: str) -> Sequence[int]:
    """Return the tokens of a text such as "5,17,3".

    Raises:
        InputError: the text is not a list of numbers.
    """
    try:
        return [int(number) for number in text.replace(",", " ").split()]
    except ValueError as error:
        start = text if len(text) <= _QUOTED else f"{text[:_QUOTED]}..."
        raise InputError("this is not a list of token numbers", where=start, remedy="write them as 5,17,3") from error
