"""The hooks of the runtime into its environment: memory, time, messages, and the reaction to a failure.

A program gets its platform at load, so two programs of one process may have different platforms.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from delegate.errors import DelegateError, ExecutionError
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
