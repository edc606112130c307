"""The tokenizer of a language model: it is checked before its library reads it, and the library's panics are errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from delegate.errors import DelegateError, InputError, ProgramError
from delegate.interrupts import interruptible
from delegate.llm.runtime.tokenizer_format import check_tokenizer
from delegate.plugins import one_line

_LONG = 4 << 10  # characters of a text that the library gets as a batch, so that other threads run meanwhile
_PANIC = "PanicException"  # of Rust; its class has no module that can be imported


class Tokenizer:
    """A tokenizer.

    Args:
        data: the text of a tokenizer.json.
        vocabulary: the model's number of tokens.

    Raises:
        ProgramError: it is not a tokenizer, a value of it is out of range, or the model lacks one of its tokens.
        InputError: the package tokenizers is not installed.
    """

    def __init__(self, data: bytes, vocabulary: int) -> None:
        remedy = "use the tokenizer that the model was trained with"
        try:
            checked = check_tokenizer(data, vocabulary)
        except ValueError as error:
            raise ProgramError(f"its tokenizer cannot be used, {error}", remedy=remedy) from error
        try:
            with interruptible():
                import tokenizers
        except ImportError as error:
            remedy = "pip install 'delegate[llm]', or pass tokens as numbers"
            raise InputError("text needs the package tokenizers", where=str(error), remedy=remedy) from error
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
