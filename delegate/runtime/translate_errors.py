"""Errors that are not this project's become one that is, and says where.

A program file and the caller's objects are not ours: what they make Python or NumPy raise (TypeError, AxisError,
IndexError, whatever an `__index__` raises) is turned here, and nowhere else.
"""

from __future__ import annotations

from types import TracebackType

from delegate.errors import DelegateError, ExecutionError, InputError, ProgramError
from delegate.plugins import one_line

_LONGEST = 80  # characters of a value in a message


class _Turn:
    """A block whose other errors become one of a class of this project."""

    def __init__(self, kind: type[DelegateError], what: str, remedy: str) -> None:
        self._kind, self._what, self._remedy = kind, what, remedy

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and not isinstance(error, DelegateError):
            raise self.turned(error) from error

    def turned(self, error: Exception) -> DelegateError:
        """What is raised in place of an error."""
        made = ExecutionError if isinstance(error, MemoryError) else self._kind
        return made(f"{self._what}: {one_line(error)}", remedy=self._remedy)


def binding(method: str) -> _Turn:
    """Around what binds a method: a program that passes its checks may still make no sense."""
    return _Turn(ProgramError, f"method {method} cannot be bound", "lower the model again; report it if that fails")


def running(method: str) -> _Turn:
    """Around what runs a method."""
    return _Turn(ExecutionError, f"method {method} cannot be run", "lower the model again; report it if that fails")


def reading(name: str) -> _Turn:
    """Around what looks at something that the caller gives."""
    return _Turn(InputError, f"{name} cannot be read", "give NumPy arrays, or anything with DLPack")


def shown(value: object) -> str:
    """A caller's value for a message, as short as a line has room for."""
    try:
        text = repr(value)
    except Exception:
        return f"a {type(value).__name__}"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
