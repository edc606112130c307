"""Memory of the device that a provider of ONNX Runtime works on, which all sessions on it share.

Sessions are given its address, so that tensors of any type and shape may follow each other in one block.
"""

from __future__ import annotations

from threading import Lock
from typing import Any

import numpy as np

from delegate.backends.onnx.provider import one_line
from delegate.errors import BackendFailed
from delegate.runtime.backend import Array, DeviceMemory, DeviceTensor


class OrtMemory(DeviceMemory):
    """A block of bytes.

    Args:
        device: as ONNX Runtime names it, e.g. "webgpu".
        size: bytes, a multiple of 4.
        lock: of the provider whose device it is.

    Raises:
        BackendFailed: the device has no such memory left.
    """

    def __init__(self, device: str, size: int, lock: Lock) -> None:
        import onnxruntime

        self.device, self._lock = device, lock
        try:
            with lock:
                self._value = onnxruntime.OrtValue.ortvalue_from_shape_and_type((size,), np.uint8, device, 0)
                self.address = self._value.data_ptr()
                self._value.numpy()  # WebGPU's allocator gives a buffer in any case; whether it is one shows at its use
        except Exception as error:  # the bindings raise classes of their own that share no base but Exception
            raise BackendFailed(f"no {size} bytes of {device} memory", where=one_line(error)) from error

    def tensor(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> OrtTensor:
        return OrtTensor(self, shape, dtype)

    def read(self) -> Array:
        """All of it, copied to the host."""
        try:
            with self._lock:
                made: Array = self._value.numpy()
        except Exception as error:  # see above
            raise BackendFailed(f"{self.device} memory cannot be read", where=one_line(error)) from error
        return made


class OrtTensor(DeviceTensor):
    """A tensor at the start of a block."""

    def __init__(self, memory: OrtMemory, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        super().__init__(shape, dtype)
        self._memory = memory
        self.device, self.address = memory.device, memory.address

    def read(self) -> Array:
        size = self.dtype.itemsize * int(np.prod(self.shape))
        return self._memory.read()[:size].view(self.dtype).reshape(self.shape)
