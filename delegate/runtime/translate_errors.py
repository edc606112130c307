"""Translation of foreign errors into errors of this project.

Program files and the caller's objects can make Python or NumPy raise any error (TypeError, AxisError, IndexError, or
one of an `__index__`). Only this module translates them.
"""

from __future__ import annotations

from types import TracebackType

from delegate.errors import DelegateError, ExecutionError, InputError, ProgramError
from delegate.plugins import one_line

_REMEDY = "lower the model again; report it if that fails"
_LONGEST = 80  # characters of a value in a message


class ErrorTranslator:
    """A context manager that replaces foreign errors by errors of one class of this project."""

    def __init__(self, kind: type[DelegateError], what: str, remedy: str) -> None:
        self._kind, self._what, self._remedy = kind, what, remedy

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and not isinstance(error, DelegateError):
            raise self.translate(error) from error

    def translate(self, error: Exception) -> DelegateError:
        """Return the error to raise in place of another."""
        cls = ExecutionError if isinstance(error, MemoryError) else self._kind
        return cls(f"{self._what}: {one_line(error)}", remedy=self._remedy)


def translate_binding_errors(method: str) -> ErrorTranslator:
    """Translate errors of binding a method: a program that passes its checks may still be invalid."""
    return ErrorTranslator(ProgramError, f"method {method} cannot be bound", _REMEDY)


def translate_run_errors(method: str) -> ErrorTranslator:
    """Translate errors of running a method."""
    return ErrorTranslator(ExecutionError, f"method {method} cannot be run", _REMEDY)


def translate_input_errors(name: str) -> ErrorTranslator:
    """Translate errors of reading the caller's objects."""
    return ErrorTranslator(InputError, f"{name} cannot be read", "pass NumPy arrays, or objects that support DLPack")


def short_repr(value: object) -> str:
    """Return a caller's value for a message, shortened to a line."""
    try:
        text = repr(value)
    except Exception:
        return f"a {type(value).__name__}"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
