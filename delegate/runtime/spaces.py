"""Memory spaces of devices: blocks from backends, and fallbacks if a device has no memory or is lost.

If a device is absent or its backend provides no memory, these values lie in the host's memory at the same offsets.
Imported only by programs with memory spaces of devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from delegate.errors import BackendFailed, DeviceLost
from delegate.plugins import AUTHOR
from delegate.program.alignment import align
from delegate.program.blocks import walk
from delegate.program.model import DelegateSpec, MemorySpace, Method, Program, StorageKind
from delegate.runtime.backend import BackendRuntime, DeviceMemory
from delegate.runtime.steps import failed


class SpaceFallbacks(Protocol):
    """The fallbacks of a program, as `Space` uses them."""

    def switch_space(self, space: int, error: BaseException) -> bool:
        """Run all partitions of a memory space on their fallbacks. Return True if that changes anything."""

    def record(self, spec: DelegateSpec, when: str, error: BaseException) -> None:
        """Record, and warn if requested, that a partition does not run as planned."""


class Space:
    """A memory space of a loaded program.

    Args:
        number: index of the space, 1 for the first.
        space: of the program.
        runtime: of its backend, which has created a delegate; None: values lie in the host's memory.
        fallbacks: of the program; None: missing device memory is an error.
    """

    def __init__(
        self, number: int, space: MemorySpace, runtime: BackendRuntime | None, fallbacks: SpaceFallbacks | None
    ) -> None:
        self._number, self._space, self._runtime, self._fallbacks = number, space, runtime, fallbacks
        self.is_lost = False  # True if the device is lost and its partitions run on their fallbacks

    def switch_to_fallbacks(self, error: DeviceLost) -> bool:
        """Run its partitions on their fallbacks from now on. Return True if that changes anything."""
        changed = self._fallbacks is not None and self._fallbacks.switch_space(self._number, error)
        self.is_lost = self.is_lost or changed
        return changed

    def blocks(self, requested: Mapping[int, tuple[int, DelegateSpec]]) -> dict[int, DeviceMemory] | None:
        """Return a block of memory per offset; None if the values must lie in the host's memory.

        Args:
            requested: by offset, the bytes and the delegate that fills them.

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
                what = f"its allocate() gave a {type(memory).__name__}, not a DeviceMemory"
                raise BackendFailed(what, remedy=AUTHOR)
            return memory
        except (Exception, SystemExit) as error:  # a plugin may raise anything
            if self._fallbacks is None or spec.fallback < 0:
                raise failed(spec, error) from error
            self._fallbacks.record(spec, "memory", error)
            return None


def make_spaces(
    program: Program, runtimes: Mapping[str, BackendRuntime], fallbacks: SpaceFallbacks | None
) -> tuple[Space, ...]:
    """Return the memory spaces of a program; `runtimes` are those that have created a delegate."""
    return tuple(Space(n, s, runtimes.get(s.backend), fallbacks) for n, s in enumerate(program.spaces, 1))


def switch_lost_devices(spaces: Sequence[Space], method: Method, error: DeviceLost) -> bool:
    """Run all partitions on lost devices on their fallbacks. Return True if the failed call may be repeated.

    It may not be repeated if a state, or an input that the module writes to, is partly updated.
    """
    changed = [space.switch_to_fallbacks(error) for space in spaces]  # all of them
    if not any(changed):
        return False
    written = (method.values[o].storage.kind for call in walk(method.instructions) for o in call.outputs)
    return not {StorageKind.STATE, StorageKind.INPUT} & set(written)
