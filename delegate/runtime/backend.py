"""The interface of a backend's runtime part, which turns a blob into an executable delegate.

It can build on a header for its blobs, delegates that compile for each shape, and the default floating-point
environment.
"""

from __future__ import annotations

import contextlib
import ctypes
import struct
import sys
import zlib
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import EllipsisType, MappingProxyType
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from delegate.errors import BackendFailed, DelegateError, DeviceLost
from delegate.plugins import AUTHOR, one_line

_HEADER = struct.Struct("<4s32sIIQ")  # magic, name, version, checksum and bytes of the content
_MAGIC = b"DLGB"
_ALIGNED = 64  # bytes of the header with its padding, so that the content is aligned like the blob
_AGAIN = "lower the model again"


@dataclass(frozen=True)
class BlobFormat:
    """The format of a backend's blobs: a header of 64 bytes, then content in the backend's own format.

    The runtime part names it as `BackendRuntime.blob_format`, so that `delegate check-backend` makes blobs of other
    versions itself.

    Args:
        name: the name of the backend, at most 32 ASCII characters.
        version: the version of the content, which is increased when `init` of an earlier package could not read the
            content.
    """

    name: str
    version: int

    def pack(self, content: bytes | memoryview) -> bytes:
        """Return the blob of a content."""
        name, checksum = self.name.encode("ascii"), zlib.crc32(content)
        header = _HEADER.pack(_MAGIC, name, self.version, checksum, memoryview(content).nbytes)
        return b"".join((header.ljust(_ALIGNED, b"\0"), content))

    def unpack(self, blob: memoryview) -> memoryview:
        """Return the content of a blob, without a copy.

        Raises:
            BackendFailed: the blob is of another backend or version, or it is damaged.
        """
        if blob.nbytes < _ALIGNED or blob[: len(_MAGIC)] != _MAGIC:
            raise BackendFailed(f"it is no blob of {self.name}", remedy=_AGAIN)
        _, name, version, checksum, size = _HEADER.unpack_from(blob)
        if name.rstrip(b"\0") != self.name.encode("ascii"):
            raise BackendFailed(f"the blob is of another backend than {self.name}", remedy=_AGAIN)
        if version != self.version:
            raise BackendFailed(f"the blob is of version {version}, not {self.version}", remedy=_AGAIN)
        content = blob[_ALIGNED:]
        if content.nbytes != size or zlib.crc32(content) != checksum:
            raise BackendFailed("the blob is damaged", remedy=_AGAIN)
        return content

    def with_version(self, blob: bytes, version: int) -> bytes:
        """Return a copy of a blob that states another version, for tests."""
        magic, name, _, checksum, size = _HEADER.unpack_from(blob)
        return _HEADER.pack(magic, name, version, checksum, size) + blob[_HEADER.size :]


Array = np.ndarray[Any, np.dtype[Any]]


# An operator's run: the library's name of its node, and of its operator; start and duration, in nanoseconds of
# `time.perf_counter_ns`. A library without start times has operators that follow each other.
ReportOperator = Callable[[str, str, int, int], object]


class TensorType(NamedTuple):
    """The sizes of a tensor, and the dtype of its array (bfloat16 is uint16)."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class DeviceTensor(ABC):
    """A tensor in the memory of a device, passed to delegates of that memory space instead of an array.

    Args:
        shape: sizes.
        dtype: The dtype of an array that would hold it; bfloat16 is uint16.

    Attributes:
        host: its content, if that lies on the host instead of the device; else None.
    """

    strides = ()  # this and the next two as arrays have them, for `GuardedDelegate`

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.shape, self.dtype = shape, dtype
        self.host: Array | None = None

    def __getitem__(self, index: EllipsisType) -> Self:
        return self

    def setflags(self, write: bool) -> None:  # noqa: B027
        """Do nothing: the device's memory is not the caller's."""

    @abstractmethod
    def read(self) -> Array:
        """Return a host copy of the tensor that a delegate wrote; raise BackendFailed if the device fails."""

    @abstractmethod
    def write(self, array: Array) -> None:
        """Copy an array of the tensor's shape and dtype to the device; raise BackendFailed if the device fails."""

    def fetch(self) -> Array:
        """Return the content on the host; raise DeviceLost if it cannot be read."""
        if self.host is not None:
            return self.host
        try:
            return self.read()
        except Exception as error:  # a plugin may raise anything
            raise _lost(error) from error

    def store(self, array: Array) -> None:
        """Set the content to an array's; raise DeviceLost if it cannot be written."""
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
    """A block of device memory, which is freed when nothing refers to it or to its tensors."""

    @abstractmethod
    def tensor(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> DeviceTensor:
        """Return a tensor at its start. Several tensors use the block one after another; each is filled before it is
        read.
        """


class Delegate(ABC):
    """A lowered partition, ready to run.

    A call must leave no data that would change a later result: the contexts of a program share the delegate.

    Attributes:
        thread_safe: True if `execute` may run in several threads at the same time. If False, the runtime runs one call
            at a time.
    """

    thread_safe: bool = False

    def prepare(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> None:  # noqa: B027
        """Check that the blob takes and returns such tensors, before calls with them.

        A program file declares the tensors of a delegate. If the blob differs, a vendor library may read or write
        beyond an array. The check runs when a method is bound, once per combination of sizes. It never runs during
        `execute`, unless the delegate is `thread_safe`.

        Args:
            inputs: The inputs in the order in which `execute` receives them.
            outputs: likewise.

        Raises:
            BackendFailed: the blob takes or returns other tensors.
        """

    @abstractmethod
    def execute(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Run once, on arrays; tensors between delegates of a device may be a `DeviceTensor` instead.

        A `DeviceTensor` occurs only for partitions with a `PreprocessResult.space`, separately for each input and
        output.

        Args:
            inputs: a tuple of read-only, C-contiguous views in the order and with the dtypes of the region's inputs. If
                the region has dynamic dimensions, the shapes may differ between calls. For a library that rejects
                read-only arrays: `delegate.program.raw.writable_view`.
            outputs: a tuple of C-contiguous views to fill completely, of the right shapes for these inputs, which must
                not be changed. They differ in every call, and are read-only after it; do not store them. At least one
                of them has elements.

        It should release the GIL during long work of the library, so that other threads can run.

        Raises:
            BackendFailed: the vendor library failed; the next call must still be right.
        """

    def profiled(self, report: ReportOperator) -> Delegate | None:
        """Create a delegate of the same blob that also reports each operator of the vendor library.

        It replaces this delegate in the calls of one context, for a listener that requests inner operators. It is
        slower, so this delegate must not record anything, and the runtime closes it before this delegate.

        Args:
            report: receives each operator that has run, at the latest in `close`.

        Returns:
            The delegate; None if the library reports no operators.

        Raises:
            BackendFailed: the library could not open the blob again.
        """
        return None

    def close(self) -> None:  # noqa: B027 - most delegates have nothing to free
        """Free the resources of the vendor library, which is called at most once; `execute` is not called afterwards.

        The runtime waits for a running call, while a `thread_safe` class waits for all calls itself.
        """


class BackendRuntime(ABC):
    """The runtime part of a backend. One object serves one loaded program.

    Attributes:
        load_options: compile specs that `delegate.load(..., options=...)` may replace, with their types (int, bool,
            str or float). They need no other blob. `threads` is the number of threads in a call; absent or 0 means all
            cores.
        blob_format: the format of its blobs, if they have such a header. The tests of every backend then make blobs of
            other versions.
    """

    blob_format: ClassVar[BlobFormat | None] = None
    load_options: ClassVar[Mapping[str, type]] = MappingProxyType({})

    def expect(self, size: int) -> None:  # noqa: B027 - most do not care
        """Receive, before the first `init`, the total data bytes of all its partitions in the program."""

    @abstractmethod
    def init(self, blob: memoryview, compile_specs: Mapping[str, Any]) -> Delegate:
        """Create a delegate from a blob (mapped from the file, valid while the program is open).

        Raises:
            BackendUnavailable: the library or the device is absent here.
            BackendFailed: the library rejects the blob.
        """

    def init_with_data(
        self, blob: memoryview, data: Sequence[memoryview], compile_specs: Mapping[str, Any]
    ) -> Delegate:
        """Create a delegate from a blob and its `PreprocessResult.data`; called only if there is data.

        Raises as `init` does.
        """
        raise BackendFailed("its blob has data, which its runtime part does not support", remedy=AUTHOR)

    def runs_code(self, compile_specs: Mapping[str, Any]) -> bool:
        """Return True if a blob with these specs is machine code, which `init` has this process run.

        Program files are untrusted, so such a blob is opened only if the caller of `load` trusts its origin. The specs
        come with the file: they may require trust, but never waive it.
        """
        return False

    def allocate(self, space: str, size: int) -> DeviceMemory | None:
        """Allocate device memory for tensors between its partitions; None: arrays are used instead.

        Called after `init`, from any thread.

        Args:
            space: the name from `PreprocessResult.space`.
            size: bytes, a multiple of 64 and not 0.

        Raises:
            BackendFailed: the device has no such memory left, or is lost.
        """
        return None


Shapes = tuple[tuple[int, ...], ...]
Run = Callable[[Sequence[Any], Sequence[Any]], object]


class PerShapeDelegate(Delegate):
    """A delegate whose library compiles for concrete shapes, such as a JIT compiler.

    `prepare` gets the shapes once per combination, before calls with them, so `compile` runs there, not in a call.

    Attributes:
        most_shapes: the number of cached combinations, of which the least recently compiled one is evicted first.
    """

    most_shapes: ClassVar[int] = 64

    def __init__(self) -> None:
        self._compiled: OrderedDict[Shapes, Run] = OrderedDict()

    @abstractmethod
    def compile(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> Run:
        """Compile for shapes; return a function like `execute` for arrays of these shapes.

        Raises:
            BackendFailed: the blob has other inputs or outputs, or the library fails.
        """

    def prepare(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> None:
        self._put(inputs, outputs)

    def execute(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        run = self._compiled.get(tuple([x.shape for x in inputs]))
        if run is None:  # evicted by later combinations
            run = self._put(*([TensorType(x.shape, x.dtype) for x in tensors] for tensors in (inputs, outputs)))
        run(inputs, outputs)

    def close(self) -> None:
        self._compiled.clear()

    def _put(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> Run:
        run = self._compiled[tuple([x.shape for x in inputs])] = self.compile(inputs, outputs)
        if len(self._compiled) > self.most_shapes:
            self._compiled.popitem(last=False)
        return run


_DEFAULT = ctypes.c_void_p(-1)  # FE_DFL_ENV of glibc and musl: rounds to nearest, keeps subnormal numbers
_SIZE = 256  # bytes, more than fenv_t of any processor
_C = ctypes.CDLL(None) if sys.platform == "linux" else None


@contextlib.contextmanager
def default_float_environment() -> Iterator[None]:
    """Run a block in C's default environment, and restore the caller's afterwards. Other systems than Linux: no change.

    A library that opens a model in the block gives it the default, also in the threads that it starts. So results do
    not depend on `torch.set_flush_denormal` at that moment, and the library cannot change the caller's environment.
    """
    if _C is None:
        yield
        return
    saved = ctypes.create_string_buffer(_SIZE)
    _C.fegetenv(saved)
    _C.fesetenv(_DEFAULT)
    try:
        yield
    finally:
        _C.fesetenv(saved)
