"""Memory on TVM's device, for tensors that pass between partitions."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from delegate.backends.gpu.cuda.runtime import library
from delegate.backends.gpu.cuda.runtime.library import CPU, CUDA, one_line
from delegate.errors import BackendFailed
from delegate.runtime.backend import Array, DeviceMemory, DeviceTensor

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
            raise BackendFailed(f"no {size} bytes of {space} memory", where=one_line(error)) from error
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
