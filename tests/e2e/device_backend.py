"""A backend for tests with memory of its own: that of `vector_backend`, its tensors no arrays.

`FAULTS` says what of the device fails: "allocate", "read", "write", or "execute" of the partitions that are
named with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from delegate.backend.aot import PreprocessResult, Region
from delegate.backend.info import Availability, BackendInfo
from delegate.errors import BackendFailed
from delegate.runtime.backend import BackendRuntime, Delegate, DeviceMemory, DeviceTensor
from tests.support import vector_backend

FAULTS: set[str] = set()
ALLOCATED: list[int] = []  # bytes of the blocks
WRITTEN: list[int] = []  # bytes of what was written outside of executions
EXECUTED: list[tuple[str, str]] = []  # of every execution, what each input and output was: "a" array, "d" device


class ToyTensor(DeviceTensor):
    """Bytes of the device; not even NumPy can look inside."""

    def __init__(self, memory: bytearray, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        super().__init__(shape, dtype)
        self._memory = memory

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise AssertionError("a tensor of the device was taken for an array")

    def on_device(self) -> np.ndarray:
        count = int(np.prod(self.shape))
        return np.frombuffer(self._memory, self.dtype, count).reshape(self.shape)

    def read(self) -> np.ndarray:
        if "read" in FAULTS:
            raise BackendFailed("the device is lost")
        return self.on_device().copy()

    def write(self, array: np.ndarray) -> None:
        if "write" in FAULTS:
            raise BackendFailed("the device is lost")
        WRITTEN.append(array.nbytes)
        self.on_device()[...] = array


class ToyMemory(DeviceMemory):
    def __init__(self, size: int) -> None:
        self._bytes = bytearray(size)

    def tensor(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> ToyTensor:
        assert dtype.itemsize * int(np.prod(shape)) <= len(self._bytes)
        return ToyTensor(self._bytes, shape, dtype)


class Toy(vector_backend.Vector):
    name = "toy"

    def preprocess(self, region: Region) -> PreprocessResult:
        made = super().preprocess(region)
        specs = {**made.compile_specs, "name": region.name}
        return PreprocessResult(made.blob, specs, made.notes, space="sram")


class ToyDelegate(Delegate):
    def __init__(self, name: str, program: Mapping[str, Any]) -> None:
        self._name, self._vector = name, vector_backend.VectorDelegate(program)

    def execute(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        if f"execute {self._name}" in FAULTS:
            raise RuntimeError("the device is gone")
        EXECUTED.append((_kinds(inputs), _kinds(outputs)))
        self._vector.execute([_array(t) for t in inputs], [_array(t) for t in outputs])


class ToyRuntime(BackendRuntime):
    def init(self, blob: memoryview, compile_specs: Mapping[str, Any]) -> Delegate:
        if f"init {compile_specs['name']}" in FAULTS:
            raise BackendFailed("the driver does not answer")
        return ToyDelegate(compile_specs["name"], json.loads(bytes(blob)))

    def allocate(self, space: str, size: int) -> DeviceMemory:
        assert space == "sram"
        assert size > 0
        assert size % 64 == 0
        if "allocate" in FAULTS:
            raise MemoryError("the device is full")
        ALLOCATED.append(size)
        return ToyMemory(size)


class HostRuntime(ToyRuntime):
    """A runtime part without memory on the device."""

    allocate = BackendRuntime.allocate


def _array(tensor: Any) -> np.ndarray:
    return tensor.on_device() if isinstance(tensor, ToyTensor) else tensor


def _kinds(tensors: Sequence[Any]) -> str:
    return "".join("d" if isinstance(t, ToyTensor) else "a" for t in tensors)


def info(runtime: str = "ToyRuntime") -> BackendInfo:
    halves = f"{__name__}:Toy", f"{__name__}:{runtime}"
    return BackendInfo("toy", "A device, for tests", *halves, lambda: Availability(True), "pip install nothing")
