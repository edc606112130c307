"""Memory spaces of devices: blocks that backends give, and what happens where a device has none or is lost.

A program whose device is absent, or whose backend gives no such memory, has these values in the host's memory at the
same offsets. Imported only by programs that have memory spaces of devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from delegate.errors import BackendFailed, DeviceLost
from delegate.plugins import AUTHOR
from delegate.program.blocks import walk
from delegate.program.memory_plan import align
from delegate.program.model import DelegateSpec, MemorySpace, Method, Program, StorageKind
from delegate.runtime.backend import BackendRuntime, DeviceMemory
from delegate.runtime.steps import failed


class Instead(Protocol):
    """What runs partitions whose device fails: the fallbacks of a program."""

    def leave(self, space: int, error: BaseException) -> bool:
        """Have all partitions of a memory space run on their fallbacks; whether that changes anything."""

    def note(self, spec: DelegateSpec, when: str, error: BaseException) -> None:
        """Keep, and tell if wanted, that a partition does not run as planned."""


class Space:
    """A memory space of a loaded program.

    Args:
        number: of the space, 1 for the first.
        space: of the program.
        runtime: of its backend, which has made a delegate; None: values lie in the host's memory.
        fallbacks: of the program; None: a device without memory is an error.
    """

    def __init__(
        self, number: int, space: MemorySpace, runtime: BackendRuntime | None, fallbacks: Instead | None
    ) -> None:
        self._number, self._space, self._runtime, self._fallbacks = number, space, runtime, fallbacks
        self.left = False  # whether its partitions run on their fallbacks, for the device is lost

    def leave(self, error: DeviceLost) -> bool:
        """Have its partitions run on their fallbacks from now on; whether that changes anything."""
        changed = self._fallbacks is not None and self._fallbacks.leave(self._number, error)
        self.left = self.left or changed
        return changed

    def blocks(self, wanted: Mapping[int, tuple[int, DelegateSpec]]) -> dict[int, DeviceMemory] | None:
        """A block of memory per offset; None where the values have to lie in the host's memory.

        Args:
            wanted: by offset, the bytes and the delegate that fills them.

        Raises:
            BackendFailed: the device has no memory left, and the delegate has no fallback.
        """
        made: dict[int, DeviceMemory] = {}
        for offset, (size, spec) in wanted.items():
            memory = self._allocate(size, spec)
            if memory is None:
                return None
            made[offset] = memory
        return made

    def _allocate(self, size: int, spec: DelegateSpec) -> DeviceMemory | None:
        if self._runtime is None:
            return None
        try:
            made = self._runtime.allocate(self._space.name, align(max(size, 1)))
            if not (made is None or isinstance(made, DeviceMemory)):
                what = f"its allocate() gave a {type(made).__name__}, not a DeviceMemory"
                raise BackendFailed(what, remedy=AUTHOR)
            return made
        except (Exception, SystemExit) as error:  # a plugin may raise anything
            if self._fallbacks is None or spec.fallback < 0:
                raise failed(spec, error) from error
            self._fallbacks.note(spec, "memory", error)
            return None


def make_spaces(
    program: Program, runtimes: Mapping[str, BackendRuntime], fallbacks: Instead | None
) -> tuple[Space, ...]:
    """The memory spaces of a program, where `runtimes` are those that have made a delegate."""
    return tuple(Space(n, s, runtimes.get(s.backend), fallbacks) for n, s in enumerate(program.spaces, 1))


def switch_lost_devices(spaces: Sequence[Space], method: Method, error: DeviceLost) -> bool:
    """Have all partitions on lost devices run on their fallbacks; whether the call that met that may be run again.

    It may not where a state, or an input that the module writes to, has its new value in part.
    """
    left = [space.leave(error) for space in spaces]  # all of them
    if not any(left):
        return False
    written = (method.values[o].storage.kind for call in walk(method.instructions) for o in call.outputs)
    return not {StorageKind.STATE, StorageKind.INPUT} & set(written)
