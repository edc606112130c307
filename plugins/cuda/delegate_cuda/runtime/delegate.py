"""The runtime part: a library of TVM on the GPU that it was compiled for.

A blob is the library, then the weights, which are arguments of every call. The layout of the blob is in
`compile_specs`, as plain JSON: "library" (bytes) and "weights" (dtype, shape, offset).
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from delegate.errors import BackendFailed
from delegate.program.dtypes import DType
from delegate.program.raw import array_over, writable_view
from delegate.program.segments import ALIGNMENT, align
from delegate.runtime.backend import Array, BackendRuntime, Delegate, DeviceMemory, DeviceTensor
from delegate_cuda.runtime import library
from delegate_cuda.runtime.library import CPU, CUDA, CudaTarget, one_line


@dataclass(frozen=True)
class CudaWeight:
    """A constant of a region; `array` has the bits of a dtype that NumPy does not have."""

    dtype: DType
    array: Array


def pack(library: bytes, weights: Sequence[CudaWeight]) -> tuple[bytes, dict[str, Any]]:
    """Return the blob, and its entries of compile_specs."""
    parts, rows, end = [library], [], len(library)
    for weight in weights:
        start = align(end)
        parts += [bytes(start - end), weight.array.tobytes()]
        rows.append([weight.dtype.name, list(weight.array.shape), start])
        end = start + weight.array.nbytes
    return b"".join(parts), {"library": len(library), "weights": rows, "bytes": end}


def unpack(blob: memoryview, specs: Mapping[str, Any]) -> tuple[memoryview, tuple[CudaWeight, ...]]:
    """Return the library and the weights, as views of the blob.

    Raises:
        LookupError, TypeError, ValueError: specs and blob do not fit together.
    """
    if blob.nbytes != specs["bytes"] or not 0 < specs["library"] <= blob.nbytes:
        raise ValueError(f"the blob has {blob.nbytes} bytes, but its compile specs state {specs['bytes']}")
    return blob[: specs["library"]], tuple(_weight(blob, *row) for row in specs["weights"])


def _weight(blob: memoryview, name: str, shape: Sequence[int], offset: int) -> CudaWeight:
    dtype = DType[name]
    return CudaWeight(dtype, array_over(blob, dtype.numpy, shape, offset))


_POOLED = 2  # TVM's code of the allocator that keeps memory for the next call


def host() -> str:
    """Return the host's platform; the library has code for it, which launches kernels."""
    return f"{platform.system()} {platform.machine()}"


class CudaRuntime(BackendRuntime):
    """The runtime part, which opens libraries of the AOT part."""

    def runs_code(self, compile_specs: Mapping[str, Any]) -> bool:
        return True

    def init(self, blob: memoryview, compile_specs: Mapping[str, Any]) -> Delegate:
        target = CudaTarget(compile_specs["target"])
        _require("TVM", _minor(compile_specs["tvm"]), _minor(library.version()))
        _require("a host", compile_specs["host"], host())
        device = CPU if target.is_host else CUDA
        tvm_ffi = library.runtime(device)
        if device == CUDA:
            gpu, name = library.local_gpu()
            if not target.runs_on(gpu):
                raise BackendFailed(
                    f"it was compiled for {target}, but this machine's {name} is {gpu}",
                    remedy=f"lower it again with arch: {gpu}",
                )
        code, weights = unpack(blob, compile_specs)
        try:
            machine = Machine(tvm_ffi, code, device)
            return CudaDelegate(machine, weights, [DType[n] for n in compile_specs["inputs"]])
        except Exception as error:  # whatever TVM raises across its boundary
            raise BackendFailed("TVM does not load the library", where=one_line(error)) from error

    def allocate(self, space: str, size: int) -> DeviceMemory | None:
        return TvmMemory(space, size) if space in SPACES else None


def _require(what: str, version: str, here: str) -> None:
    if version != here:
        raise BackendFailed(
            f"it was compiled by {what} {version}, but this one is {here}", remedy="lower it again here"
        )


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


class Machine:
    """TVM's virtual machine on one device, with a library.

    Args:
        tvm_ffi: the module, with the runtime for the device loaded.
        code: the bytes of the library.
        device: CPU or CUDA.
    """

    def __init__(self, tvm_ffi: Any, code: memoryview, device: int) -> None:
        self._ffi, self._device = tvm_ffi, tvm_ffi.device(device, 0)
        self._allocate, self._view, self._copy_in, self._copy_out, self._copy = (
            tvm_ffi.get_global_func(f"runtime.TVMTensor{name}")
            for name in ("AllocWithScope", "CreateView", "CopyFromBytes", "CopyToBytes", "CopyFromTo")
        )
        self._on_host = device == CPU
        with TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # Windows keeps a library that is loaded
            path = Path(folder, "library.so")
            path.write_bytes(code)
            self._machine = tvm_ffi.load_module(path, keep_module_alive=False)["vm_load_executable"]()
        devices = (device,) if self._on_host else (device, CPU)  # sizes are computed on the CPU
        self._machine["vm_initialization"](*(code for each in devices for code in (each, 0, _POOLED)))
        self._main = self._machine["main"]

    def give(self, array: Array | TvmTensor, dtype: DType) -> Any:
        """Return an array as a tensor: without a copy on the CPU if it has TVM's alignment, else a copy.

        The array must outlive the tensor. A tensor in the device's memory is used without a copy.
        """
        if isinstance(array, TvmTensor):
            return array.view(dtype.name)
        shape, name = self._ffi.Shape(array.shape), self._ffi.dtype(dtype.name)
        if self._on_host and array.ctypes.data % ALIGNMENT == 0 and array.size:
            return self._view(self._ffi.from_dlpack(writable_view(array).reshape(-1).view(np.uint8)), shape, name, 0)
        tensor = self._allocate(shape, name, self._device, None)
        self._copy_in(tensor, ctypes.c_void_p(array.ctypes.data), array.nbytes)
        return tensor

    def run(self, tensors: Sequence[Any], outputs: Sequence[Array | TvmTensor]) -> None:
        """Run the library on tensors from `give`, and copy its results to `outputs`."""
        for result, array in zip(self._main(*tensors), outputs, strict=True):
            if tuple(result.shape) != array.shape:
                raise BackendFailed(f"TVM returned a tensor of {tuple(result.shape)}, but {array.shape} was planned")
            if isinstance(array, TvmTensor):
                self._copy(result, array.view(str(result.dtype)))
            else:
                self._copy_out(result, ctypes.c_void_p(array.ctypes.data), array.nbytes)


class CudaDelegate(Delegate):
    """A library with its weights.

    Args:
        machine: the machine with the library.
        weights: the weights of the region; on the CPU, their memory is in the blob.
        dtypes: the dtypes of the inputs.
    """

    def __init__(self, machine: Machine, weights: Sequence[CudaWeight], dtypes: Sequence[DType]) -> None:
        self._machine, self._dtypes = machine, dtypes
        self._storage = weights  # the tensors are views of these arrays
        self._weights = [machine.give(w.array, w.dtype) for w in weights]

    def execute(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        arguments = [self._machine.give(a, d) for a, d in zip(inputs, self._dtypes, strict=True)]
        try:
            self._machine.run([*arguments, *self._weights], outputs)
        except BackendFailed:
            raise
        except Exception as error:  # whatever TVM raises across its boundary
            raise BackendFailed("TVM failed to run a partition", where=one_line(error)) from error

    def close(self) -> None:
        del self._machine, self._weights, self._storage


# Memory spaces and the devices that they are on. The second is for tests on a machine without a GPU.
SPACES = {"cuda": CUDA, "stand-in": CPU}


class TvmMemory(DeviceMemory):
    """A block of bytes.

    Args:
        space: a key of `SPACES`.
        size: number of bytes.

    Raises:
        BackendFailed: the device has no such memory left.
    """

    def __init__(self, space: str, size: int) -> None:
        tvm_ffi = library.runtime(SPACES[space])
        allocate, device = tvm_ffi.get_global_func("runtime.TVMTensorAllocWithScope"), tvm_ffi.device(SPACES[space], 0)
        try:
            self._bytes = allocate(tvm_ffi.Shape((size,)), tvm_ffi.dtype("uint8"), device, None)
        except Exception as error:  # whatever TVM raises across its boundary
            raise BackendFailed(f"cannot allocate {size} bytes of {space} memory", where=one_line(error)) from error
        self._ffi, self._view = tvm_ffi, tvm_ffi.get_global_func("runtime.TVMTensorCreateView")
        self._copy_out, self._copy_in = (
            tvm_ffi.get_global_func(f"runtime.TVMTensorCopy{name}Bytes") for name in ("To", "From")
        )

    def tensor(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> TvmTensor:
        return TvmTensor(self, shape, dtype)

    def view(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Return a tensor of TVM at the start of the block."""
        return self._view(self._bytes, self._ffi.Shape(shape), self._ffi.dtype(dtype), 0)

    def copy_out(self, array: Array) -> None:
        """Fill an array with the bytes at the start of the block."""
        self._transfer(self._copy_out, array)

    def copy_in(self, array: Array) -> None:
        """Fill the start of the block with the bytes of a row-major array."""
        self._transfer(self._copy_in, array)

    def _transfer(self, copy: Callable[..., None], array: Array) -> None:
        try:
            copy(self.view((array.nbytes,), "uint8"), ctypes.c_void_p(array.ctypes.data), array.nbytes)
        except Exception as error:  # whatever TVM raises across its boundary
            raise BackendFailed("the GPU's memory cannot be used", where=one_line(error)) from error


class TvmTensor(DeviceTensor):
    """A tensor at the start of a block."""

    def __init__(self, memory: TvmMemory, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        super().__init__(shape, dtype)
        self._memory = memory

    def view(self, dtype: str) -> Any:
        """Return TVM's tensor; `dtype` distinguishes bfloat16 from uint16, which stores it."""
        return self._memory.view(self.shape, dtype)

    def read(self) -> Array:
        array = np.empty(self.shape, self.dtype)
        self._memory.copy_out(array)
        return array

    def write(self, array: Array) -> None:
        self._memory.copy_in(np.ascontiguousarray(array))
