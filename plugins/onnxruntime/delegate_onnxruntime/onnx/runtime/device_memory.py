"""Memory on the device of an ONNX Runtime provider, which all sessions on it share.

Sessions get its address, so tensors of any type and shape may use one block in turn. Small separate sessions allocate,
read and write blocks: memory that ONNX Runtime allocates outside of sessions holds a lost device until the process
ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from delegate.errors import BackendFailed
from delegate.runtime.backend import Array, DeviceMemory, DeviceTensor
from delegate_onnxruntime.onnx.runtime.provider import device, one_line

_WORD = np.dtype(np.int32)  # the elements of blocks for the sessions here
_FILL = (  # y = Expand(x, n) over int32 as a ModelProto
    b'\x08\x08:K\n\x11\n\x01x\n\x01n\x12\x01y"\x06Expand\x12\x01gZ\x10\n\x01x\x12\x0b\n\t\x08\x06\x12\x05\n'
    b"\x03\x12\x01mZ\x0f\n\x01n\x12\n\n\x08\x08\x07\x12\x04\n\x02\x08\x01b\x10\n\x01y\x12\x0b\n\t\x08\x06\x12\x05\n\x03\x12\x01kB"
    b"\x04\n\x00\x10\x11"
)
_COPY = (  # y = Identity(x) over int32
    b'\x08\x08:9\n\x10\n\x01x\x12\x01y"\x08Identity\x12\x01gZ\x10\n\x01x\x12\x0b\n\t\x08\x06\x12\x05\n\x03'
    b"\x12\x01nb\x10\n\x01y\x12\x0b\n\t\x08\x06\x12\x05\n\x03\x12\x01nB\x04\n\x00\x10\x11"
)


class Copier:
    """An allocator of a device's memory, which also reads and writes it.

    Args:
        provider: name of the provider.
        memory: ONNX Runtime's name of the device, e.g. "webgpu".
        open_: opens a session of a serialized model.
    """

    def __init__(self, provider: str, memory: str, open_: Callable[[bytes], Any]) -> None:
        self.memory, self.device = memory, device(provider)
        self._open = open_
        self._sessions: dict[bytes, Any] = {}
        self.device.add(self)

    def release(self) -> None:
        """Close its sessions; they are opened again when they are needed."""
        self._sessions.clear()

    def make(self, size: int) -> Any:
        """Return an OrtValue of `size` bytes."""
        words, zero = np.array([size // _WORD.itemsize]), np.zeros(1, _WORD)
        with self.device.lock:
            binding = self._session(_FILL).io_binding()
            binding.bind_cpu_input("n", words)
            binding.bind_cpu_input("x", zero)
            binding.bind_output("y", self.memory)
            self._session(_FILL).run_with_iobinding(binding)
            value = binding.get_outputs()[0]
            self.read(value.data_ptr(), zero)  # an allocation never fails, but the first use of a missing buffer does
        return value

    def read(self, address: int, words: Array) -> None:
        """Fill an array of words from the device."""
        self._copy((self.memory, address), ("cpu", words.ctypes.data), words.shape)

    def write(self, address: int, words: Array) -> None:
        """Copy an array of words to the device."""
        self._copy(("cpu", words.ctypes.data), (self.memory, address), words.shape)

    def lost(self) -> bool:
        """Return true if the device cannot compute any more."""
        word = np.zeros(1, _WORD)
        try:
            with self.device.lock:
                self._copy(("cpu", word.ctypes.data), ("cpu", word.ctypes.data), word.shape)
        except Exception:  # the bindings raise classes of their own that share no base but Exception
            return True
        return False

    def _copy(self, source: tuple[str, int], target: tuple[str, int], shape: tuple[int, ...]) -> None:
        with self.device.lock:
            session = self._session(_COPY)
            binding = session.io_binding()
            binding.bind_input("x", source[0], 0, _WORD.type, shape, source[1])
            binding.bind_output("y", target[0], 0, _WORD.type, shape, target[1])
            session.run_with_iobinding(binding)

    def _session(self, model: bytes) -> Any:
        if model not in self._sessions:
            self._sessions[model] = self._open(model)
        return self._sessions[model]


class OrtMemory(DeviceMemory):
    """A block of bytes.

    Args:
        copier: copier of its device.
        size: number of bytes, a multiple of 4.

    Raises:
        BackendFailed: the device has no such memory left.
    """

    def __init__(self, copier: Copier, size: int) -> None:
        self.name, self._copier, self._size = copier.memory, copier, size
        self._value: Any = None
        self._address = 0
        self.target()
        copier.device.add(self)

    def tensor(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> OrtTensor:
        return OrtTensor(self, shape, dtype)

    def release(self) -> None:
        """Release the block, because the device has lost its contents."""
        self._value = None

    def target(self) -> int:
        """Return the address for writes."""
        if self._value is None:
            try:
                self._value = self._copier.make(self._size)
            except Exception as error:  # see Copier.lost
                error.with_traceback(None)  # which would keep a session
                raise BackendFailed(
                    f"cannot allocate {self._size} bytes of {self.name} memory", where=one_line(error)
                ) from error
            self._address = self._value.data_ptr()
        return self._address

    def source(self) -> int:
        """Return the address for reads of a written block."""
        if self._value is None:
            raise BackendFailed(f"the contents of {self.name} memory were lost with the device")
        return self._address

    def read(self, words: Array) -> None:
        """Fill an array with the words at the start of the block."""
        with self._copier.device.lock:
            self._try(self._copier.read, self.source(), words)

    def write(self, words: Array) -> None:
        """Copy an array of words to the start of the block."""
        with self._copier.device.lock:
            self._try(self._copier.write, self.target(), words)

    def _try(self, copy: Callable[[int, Array], None], address: int, words: Array) -> None:
        try:
            copy(address, words)
        except Exception as error:  # see Copier.lost
            error.with_traceback(None)  # which would keep a session
            if self._copier.lost():
                self._copier.device.clear()
            raise BackendFailed(f"{self.name} memory cannot be used", where=one_line(error)) from error


class OrtTensor(DeviceTensor):
    """A tensor at the start of a block."""

    def __init__(self, memory: OrtMemory, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        super().__init__(shape, dtype)
        self._memory, self._bytes = memory, dtype.itemsize * int(np.prod(shape))

    def source(self) -> tuple[str, int]:
        """Return the device, and the address for reads of a written tensor."""
        return self._memory.name, self._memory.source()

    def target(self) -> tuple[str, int]:
        """Return the device, and the address for writes."""
        return self._memory.name, self._memory.target()

    def read(self) -> Array:
        words = self._words()
        if words.size:
            self._memory.read(words)
        return self._values(words)

    def write(self, array: Array) -> None:
        words = self._words()
        np.copyto(self._values(words), array)
        if words.size:
            self._memory.write(words)

    def _words(self) -> Array:
        return np.empty(-(-self._bytes // _WORD.itemsize), _WORD)

    def _values(self, words: Array) -> Array:
        return words.view(np.uint8)[: self._bytes].view(self.dtype).reshape(self.shape)
