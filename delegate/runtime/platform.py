"""What the runtime asks of its surroundings: memory, time, a place for messages, and what comes of a failure.

A program gets its platform when it is loaded; two programs of one process may have different ones.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from delegate.errors import DelegateError, ExecutionError
from delegate.plugins import one_line
from delegate.program.memory_plan import ALIGNMENT
from delegate.program.raw import array_over
from delegate.runtime.backend import Array

if TYPE_CHECKING:
    from mmap import mmap

    Memory = memoryview | bytearray | mmap | Array  # what NumPy takes without a copy

_BYTES = np.dtype(np.uint8)
Level = Literal["debug", "info"]
_LEVELS: dict[Level, int] = {"debug": 10, "info": 20}  # as in `logging`, which is not imported for them


def allocate(size: int) -> Array:
    """Uninitialised bytes of the process's heap."""
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size]


def log(level: Level, message: str) -> None:
    """A message to Python's logger "delegate".

    Where nothing has imported `logging` nobody listens, and importing it takes as long as loading a small program.
    """
    if logging := sys.modules.get("logging"):
        logging.getLogger("delegate").log(_LEVELS[level], message)


def abort(error: DelegateError) -> None:
    """Nothing: the error is raised."""


def no_memory(shapes: object, error: Exception) -> ExecutionError:
    """The error where results of these shapes cannot be allocated."""
    problem = f"no memory for results of {shapes}: {one_line(error)}"
    return ExecutionError(problem, remedy="free some, or give smaller inputs")


class Platform(NamedTuple):
    """The hooks of a program; each may be called from any thread.

    Args:
        allocate: gives that many bytes for an arena, a state or a result: anything writable with the buffer protocol,
            such as a `mmap` of huge pages or the `buf` of shared memory, that starts at a multiple of 64. It is free
            again when nothing refers to it any more. Contents mean nothing.
        clock: nanoseconds since any time.
        log: takes what happens: programs loaded ("debug"), partitions that fall back ("info").
        abort: gets the error of a load or a call that failed for another reason than the caller's inputs, before it is
            raised. It may end the process.
    """

    allocate: Callable[[int], Memory] = allocate
    clock: Callable[[], int] = time.perf_counter_ns
    log: Callable[[Level, str], None] = log
    abort: Callable[[DelegateError], None] = abort

    def memory(self, size: int) -> Array:
        """An array of `size` bytes.

        Raises:
            ExecutionError: `allocate` fails, or gives less than is asked for or what cannot be used.
        """
        if size == 0:
            return np.empty(0, np.uint8)
        try:
            made = array_over(self.allocate(size), _BYTES, (size,))
        except Exception as error:  # of the caller's function
            raise ExecutionError(
                f"no memory of {size} bytes: {one_line(error)}", remedy="free some, or check the platform's allocate"
            ) from error
        if not made.flags.writeable or made.ctypes.data % ALIGNMENT:
            problem = f"does not start at a multiple of {ALIGNMENT}" if made.flags.writeable else "is read-only"
            raise ExecutionError(f"memory of the platform {problem}", remedy="mend the platform's allocate")
        return made

    @property
    def empty(self) -> Callable[[tuple[int, ...], Any], Array]:
        """Makes an uninitialised array of a shape and a dtype, such as a result; raises as `memory` does."""
        return np.empty if self.allocate is allocate else self._empty

    @property
    def zeros(self) -> Callable[[tuple[int, ...], Any], Array]:
        """Makes an array of zeros, whose memory is taken where it is first written; raises as `memory` does."""
        return np.zeros if self.allocate is allocate else self._zeros

    def _zeros(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        made = self._empty(shape, dtype)
        made[...] = 0
        return made

    def _empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        made: Array = self.memory(size).view(dtype).reshape(shape)
        return made


DEFAULT = Platform()
