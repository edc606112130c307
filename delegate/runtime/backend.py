"""The runtime half of a backend: turns a blob into something that can be executed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import numpy as np

from delegate.errors import BackendFailed, DelegateError, DeviceLost
from delegate.plugins import AUTHOR, one_line

Array = np.ndarray[Any, np.dtype[Any]]


class TensorType(NamedTuple):
    """What is known of a tensor before there is one: its sizes, and the dtype of its array (bfloat16 is uint16)."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class DeviceTensor(ABC):
    """A tensor in the memory of a device, which delegates of that memory space take and fill in place of an array.

    Args:
        shape: sizes.
        dtype: of the array that would hold it; bfloat16 is uint16.

    Attributes:
        host: what it holds, where that lies on the host in its place; else None.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.shape, self.dtype = shape, dtype
        self.host: Array | None = None

    @abstractmethod
    def read(self) -> Array:
        """A copy on the host of what a delegate has written; raises BackendFailed where the device fails."""

    @abstractmethod
    def write(self, array: Array) -> None:
        """Copy an array of its shape and dtype there; raises BackendFailed where the device fails."""

    def fetch(self) -> Array:
        """What it holds, on the host; raises DeviceLost where it cannot be read."""
        if self.host is not None:
            return self.host
        try:
            return self.read()
        except Exception as error:  # a plugin may raise anything
            raise _lost(error) from error

    def store(self, array: Array) -> None:
        """Have it hold what an array does; raises DeviceLost where it cannot be written."""
        self.host = None
        try:
            self.write(array)
        except Exception as error:  # a plugin may raise anything
            raise _lost(error) from error


def _lost(error: Exception) -> DeviceLost:
    if isinstance(error, DelegateError):
        return DeviceLost(error.what, where=error.where)
    return DeviceLost(one_line(error))


class DeviceMemory(ABC):
    """A block of memory of a device. It is free again when nothing refers to it and its tensors any more."""

    @abstractmethod
    def tensor(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> DeviceTensor:
        """A tensor at its start. Several lie there one after another, each filled whole before it is read."""


class Delegate(ABC):
    """A lowered partition, ready to run.

    It keeps nothing of one call for the next that would change a result: the contexts of a program share it.

    Attributes:
        thread_safe: whether `execute` may run in several threads at once. Where it is False the runtime lets one call
            in at a time.
    """

    thread_safe: bool = False

    def prepare(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> None:  # noqa: B027
        """Check that the blob takes and gives such tensors, before calls with them.

        A program file says on its own what a delegate takes and gives: where the blob says otherwise, a vendor library
        may read or write beyond an array. Called when a method is bound, once for every combination of sizes, and never
        while `execute` runs unless the delegate is `thread_safe`.

        Args:
            inputs: in the order that `execute` gets them.
            outputs: likewise.

        Raises:
            BackendFailed: the blob takes or gives others.
        """

    @abstractmethod
    def execute(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Run once, on arrays; what passes between delegates of a device may be a `DeviceTensor` in its place.

        That is so only for partitions of a `PreprocessResult` with a `space`, and for each input and output by itself.

        Args:
            inputs: a tuple of C-contiguous arrays in the order and with the dtypes of the region's inputs; only read.
                Where the region has dynamic dimensions the shapes may differ from call to call.
            outputs: a tuple of arrays to fill completely, C-contiguous, of the right shapes for these inputs. They may
                be others at every call; do not keep them.

        It should release the GIL during long work of the library, so that other threads go on.

        Raises:
            BackendFailed: the vendor library failed; the next call must still be right.
        """

    def interrupt(self) -> None:  # noqa: B027 - most calls end by themselves
        """Have a call of `execute` that runs in another thread raise `delegate.errors.Stopped` soon, if there is one.

        Asked where partitions run at the same time and the caller has interrupted the program: it waits for all of
        them. Only a delegate that may take for ever has to do anything.
        """

    def close(self) -> None:  # noqa: B027 - most delegates have nothing to free
        """Free what the vendor library holds. Called at most once; `execute` is not called afterwards.

        The runtime waits for the call that runs. A class that says `thread_safe` waits for all of them itself.
        """


class BackendRuntime(ABC):
    """The runtime half. One object serves one loaded program.

    Attributes:
        fork_safe: whether `init` works in a process that was forked from one where the library has been used. There the
            runtime makes all delegates anew; those of the parent are neither run nor closed.
        load_options: compile specs that `delegate.load(..., options=...)` may exchange, with their types (int, bool,
            str or float): such as leave the blob as it is. One named "threads" is how many a call may take, with
            nothing or 0 for as many as there are: partitions that run at the same time get a share of them.
    """

    fork_safe: bool = True
    load_options: ClassVar[Mapping[str, type]] = MappingProxyType({})

    def expect(self, size: int) -> None:  # noqa: B027 - most do not care
        """Learn, before the first `init`, how many bytes the data of all its partitions of the program have."""

    @abstractmethod
    def init(self, blob: memoryview, compile_specs: Mapping[str, Any]) -> Delegate:
        """Make a delegate of a blob (mapped from the file, valid as long as the program is open).

        Raises:
            BackendUnavailable: the library or the device is absent here.
            BackendFailed: the library does not take the blob.
        """

    def init_with_data(
        self, blob: memoryview, data: Sequence[memoryview], compile_specs: Mapping[str, Any]
    ) -> Delegate:
        """Make a delegate of a blob and what its AOT half gave as `PreprocessResult.data`; called where it gave any.

        Raises as `init` does.
        """
        raise BackendFailed("its blob comes with data, of which its runtime half takes none", remedy=AUTHOR)

    def runs_code(self, compile_specs: Mapping[str, Any]) -> bool:
        """Whether a blob with these specs is machine code, which `init` has this process run.

        Program files are untrusted: such a blob is opened only where the caller of `load` trusts its origin. The specs
        come with the file: they may require trust, and none may waive it.
        """
        return False

    def allocate(self, space: str, size: int) -> DeviceMemory | None:
        """Memory of a device, for tensors that pass between its partitions; None: arrays are given in their place.

        Called after `init`, from any thread.

        Args:
            space: as `PreprocessResult.space` named it.
            size: bytes, a multiple of 64 and not 0.

        Raises:
            BackendFailed: the device has no such memory left, or is lost.
        """
        return None
