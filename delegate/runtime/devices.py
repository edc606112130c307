"""Values in the memory of devices: its blocks, the steps that copy to and from it, and the reaction to a lost device.

If a device is absent or its backend provides no memory, its values lie in the memory of the host at the same offsets.
Imported only by programs with memory spaces of devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from delegate.errors import BackendFailed, DelegateError, DeviceLost
from delegate.plugins import AUTHOR
from delegate.program.instructions import walk
from delegate.program.model import DelegateCall, DelegateSpec, MemorySpace, MethodDefinition, Program, StorageKind
from delegate.program.segments import align
from delegate.runtime.backend import BackendRuntime, DeviceMemory, DeviceTensor
from delegate.runtime.lifecycle import hold
from delegate.runtime.steps import DelegateStep, name_partition


class SpaceFallbacks(Protocol):
    """The fallbacks of a program, as `Space` uses them."""

    def switch_space(self, space: int, error: BaseException) -> bool:
        """Run all partitions of a memory space on their fallbacks, and return True if that changes anything."""

    def record(self, spec: DelegateSpec, when: str, error: BaseException) -> None:
        """Record, and warn if requested, that a partition does not run as planned."""


class Space:
    """A memory space of a loaded program.

    Args:
        number: index of the space, 1 for the first.
        space: A memory space of the program.
        runtime: The runtime part of its backend, which has created a delegate; None: values lie in the host's memory.
        fallbacks: The program's fallbacks; None: missing device memory is an error.
    """

    def __init__(
        self, number: int, space: MemorySpace, runtime: BackendRuntime | None, fallbacks: SpaceFallbacks | None
    ) -> None:
        self._number, self._space, self._runtime, self._fallbacks = number, space, runtime, fallbacks
        self.is_lost = False  # True if the device is lost and its partitions run on their fallbacks

    def switch_to_fallbacks(self, error: DeviceLost) -> bool:
        """Run its partitions on their fallbacks from now on, and return True if that changes anything."""
        changed = self._fallbacks is not None and self._fallbacks.switch_space(self._number, error)
        self.is_lost = self.is_lost or changed
        return changed

    def blocks(self, requested: Mapping[int, tuple[int, DelegateSpec]]) -> dict[int, DeviceMemory] | None:
        """Return a block of memory per offset; None if the values must lie in the host's memory.

        Args:
            requested: Offset -> the bytes and the delegate that fills them.

        Raises:
            BackendFailed: the device has no memory left, and the delegate has no fallback.
        """
        blocks: dict[int, DeviceMemory] = {}
        for offset, (size, spec) in requested.items():
            memory = self._allocate_block(size, spec)
            if memory is None:
                return None
            blocks[offset] = memory
        return blocks

    def _allocate_block(self, size: int, spec: DelegateSpec) -> DeviceMemory | None:
        if self._runtime is None:
            return None
        try:
            memory = self._runtime.allocate(self._space.name, align(max(size, 1)))
            if not (memory is None or isinstance(memory, DeviceMemory)):
                what = f"its allocate() returned a {type(memory).__name__}, not a DeviceMemory"
                raise BackendFailed(what, remedy=AUTHOR)
            return memory
        except (Exception, SystemExit) as error:  # a plugin may raise anything
            if self._fallbacks is None or spec.fallback < 0:
                raise name_partition(spec, error) from error
            self._fallbacks.record(spec, "memory", error)
            return None


def switch_lost_devices(spaces: Sequence[Space], method: MethodDefinition, error: DeviceLost) -> bool:
    """Run all partitions on lost devices on their fallbacks. Return True if the failed call may be repeated.

    It may not be repeated if a state, or an input that the module writes to, is partly updated.
    """
    changed = [space.switch_to_fallbacks(error) for space in spaces]  # all of them
    if not any(changed):
        return False
    written = (method.values[o].storage.kind for call in walk(method.instructions) for o in call.outputs)
    return not {StorageKind.STATE, StorageKind.INPUT} & set(written)


class DeviceStep(DelegateStep):
    """Runs a delegate with inputs in device memory, or on the host after a fallback."""

    __slots__ = ()

    def __call__(self) -> None:
        with hold(self.lock):
            self.delegate.execute([_current(t) for t in self.inputs], self.outputs)


def _current(tensor: Any) -> Any:
    return tensor.host if isinstance(tensor, DeviceTensor) and tensor.host is not None else tensor


class FetchStep:
    """Copies a tensor from a device to the host. `outs` is a list of one array, which a call may replace."""

    __slots__ = ("outs", "source", "spec")

    def __init__(self, source: DeviceTensor, outs: list[Any], spec: DelegateSpec) -> None:
        self.source, self.outs, self.spec = source, outs, spec

    def __call__(self) -> None:
        np.copyto(self.outs[0], self.source.fetch())

    def translate(self, error: BaseException) -> DelegateError:
        """Return the error that names the partition that wrote the tensor."""
        return name_partition(self.spec, error)


class UploadStep:
    """Copies an array to a device, once for all delegates there that read it.

    `args` begins with the array, which a call may replace. Partitions that run on their fallbacks get a copy on the
    host.
    """

    __slots__ = ("args", "space", "spec", "target")

    def __init__(self, args: list[Any], target: DeviceTensor, space: Space, spec: DelegateSpec) -> None:
        self.args, self.target, self.space, self.spec = args, target, space, spec

    def __call__(self) -> None:
        if self.space.is_lost:
            self.target.host = np.array(self.args[0], order="C")
        else:
            self.target.store(self.args[0])

    def translate(self, error: BaseException) -> DelegateError:
        """Return the error that names the first partition that reads the tensor."""
        return name_partition(self.spec, error)


def partition_of(program: Program, method: MethodDefinition, index: int) -> DelegateSpec:
    """Return the first delegate that writes or reads a value."""
    calls = (c for c in walk(method.instructions) if isinstance(c, DelegateCall))
    return next(program.delegates[c.delegate] for c in calls if index in c.outputs or index in c.inputs)
