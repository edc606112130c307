"""The hooks of the runtime into its environment: memory, time, messages, and the reaction to a failure.

Program files and the caller's objects can make Python or NumPy raise any error (TypeError, AxisError, IndexError, or
one of an `__index__`). Only this module translates them into errors of this project.

A program gets its platform at load, so two programs of one process may have different platforms.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from delegate.errors import DelegateError, ExecutionError, InputError, ProgramError
from delegate.plugins import one_line
from delegate.program.raw import array_over
from delegate.program.segments import ALIGNMENT
from delegate.runtime.backend import Array

if TYPE_CHECKING:
    from mmap import mmap

    Memory = memoryview | bytearray | mmap | Array  # what NumPy takes without a copy

_BYTES = np.dtype(np.uint8)
Level = Literal["debug", "info"]
_LEVELS: dict[Level, int] = {"debug": 10, "info": 20}  # as in `logging`, which is not imported for them


def allocate(size: int) -> Array:
    """Return uninitialised bytes of the process's heap."""
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size]


def log(level: Level, message: str) -> None:
    """Send a message to Python's logger "delegate".

    If nothing has imported `logging`, a listener cannot exist. Importing it takes as long as loading a small program.
    """
    if logging := sys.modules.get("logging"):
        logging.getLogger("delegate").log(_LEVELS[level], message)


def abort(error: DelegateError) -> None:
    """Do nothing: the error is raised."""


def no_memory(shapes: object, error: Exception) -> ExecutionError:
    """Return the error for results of these shapes that cannot be allocated."""
    problem = f"cannot allocate results of {shapes}: {one_line(error)}"
    return ExecutionError(problem, remedy="free some memory, or pass smaller inputs")


class Platform(NamedTuple):
    """The hooks of a program; each may be called from any thread.

    Args:
        allocate: returns that many bytes for an arena, a state or a result: any writable buffer that starts at a
            multiple of 64, such as a `mmap` of huge pages or the `buf` of shared memory. It is freed when nothing
            refers to it, and its initial content is ignored.
        clock: nanoseconds since any fixed time.
        log: receives messages: loaded programs ("debug"), partitions that fall back ("info").
        abort: receives the error of a failed load or call before it is raised, unless the caller's inputs are the
            reason. It may end the process.
    """

    allocate: Callable[[int], Memory] = allocate
    clock: Callable[[], int] = time.perf_counter_ns
    log: Callable[[Level, str], None] = log
    abort: Callable[[DelegateError], None] = abort

    def memory(self, size: int) -> Array:
        """Return an array of `size` bytes.

        Raises:
            ExecutionError: `allocate` fails, or returns too little or unusable memory.
        """
        if size == 0:
            return np.empty(0, np.uint8)
        try:
            memory = array_over(self.allocate(size), _BYTES, (size,))
        except Exception as error:  # of the caller's function
            raise ExecutionError(
                f"cannot allocate {size} bytes: {one_line(error)}",
                remedy="free some memory, or check the platform's allocate",
            ) from error
        if not memory.flags.writeable or memory.ctypes.data % ALIGNMENT:
            problem = f"does not start at a multiple of {ALIGNMENT}" if memory.flags.writeable else "is read-only"
            raise ExecutionError(f"memory from the platform's allocate {problem}", remedy="fix the platform's allocate")
        return memory

    @property
    def empty(self) -> Callable[[tuple[int, ...], Any], Array]:
        """A function that returns an uninitialised array of a shape and a dtype; raises as `memory` does."""
        return np.empty if self.allocate is allocate else self._empty

    @property
    def zeros(self) -> Callable[[tuple[int, ...], Any], Array]:
        """A function that returns an array of zeros, whose memory is used from the first write; raises as `memory`
        does.
        """
        return np.zeros if self.allocate is allocate else self._zeros

    def _zeros(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        zeros = self._empty(shape, dtype)
        zeros[...] = 0
        return zeros

    def _empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        array: Array = self.memory(size).view(dtype).reshape(shape)
        return array


DEFAULT = Platform()


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
