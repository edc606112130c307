"""Values in the memory of devices: blocks that backends give, and steps that know what lies where.

A program whose device is absent, or whose backend gives no such memory, has these values in the host's memory at the
same offsets. Imported only by programs that have memory spaces of devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from delegate.errors import BackendFailed, DelegateError, DeviceLost
from delegate.plugins import AUTHOR
from delegate.program.blocks import walk
from delegate.program.memory import align
from delegate.program.model import DelegateCall, DelegateSpec, Home, MemorySpace, Method, Program, Storage
from delegate.runtime.backend import Array, BackendRuntime, DeviceMemory, DeviceTensor
from delegate.runtime.steps import DelegateStep, failed, unfilled

if TYPE_CHECKING:
    from delegate.runtime.fallback import Fallbacks
    from delegate.runtime.resources import Resources

Arena = Array | dict[int, DeviceMemory]  # bytes of the host, or blocks of a device by offset


class Space:
    """A memory space of a loaded program.

    Args:
        number: of the space, 1 for the first.
        space: of the program.
        runtime: of its backend, which has made a delegate; None: values lie in the host's memory.
        fallbacks: of the program; None: a device without memory is an error.
    """

    def __init__(
        self, number: int, space: MemorySpace, runtime: BackendRuntime | None, fallbacks: Fallbacks | None
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
    program: Program, runtimes: Mapping[str, BackendRuntime], fallbacks: Fallbacks | None
) -> tuple[Space, ...]:
    """The memory spaces of a program, where `runtimes` are those that have made a delegate."""
    return tuple(Space(n, s, runtimes.get(s.backend), fallbacks) for n, s in enumerate(program.spaces, 1))


def can_do_without(resources: Resources, method: Method, error: DeviceLost) -> bool:
    """Have all partitions on lost devices run on their fallbacks; whether the call that met that may be run again.

    It may not where a state, or an input that the module writes to, has its new value in part.
    """
    left = [space.leave(error) for space in resources.spaces]  # all of them
    if not any(left):
        return False
    written = (method.values[o].storage.home for call in walk(method.instructions) for o in call.outputs)
    return not {Home.STATE, Home.INPUT} & set(written)


def make_arenas(
    resources: Resources, method: Method, storages: Sequence[Storage], totals: Sequence[int], sizes: Sequence[int]
) -> list[Arena]:
    """Memory for every memory space of a method; raises as `Space.blocks` and `Platform.memory` do.

    Args:
        resources: of the context.
        method: that is bound.
        storages: of its values.
        totals: bytes of every memory space.
        sizes: bytes of every value.
    """
    made: list[Arena] = []
    for number, total in enumerate(totals):
        is_device = total and 0 < number <= len(resources.spaces)
        blocks = (
            resources.spaces[number - 1].blocks(_wanted(resources, method, storages, sizes, number))
            if is_device
            else None
        )
        made.append(resources.platform.memory(total) if blocks is None else blocks)
    return made


def _wanted(
    resources: Resources, method: Method, storages: Sequence[Storage], sizes: Sequence[int], number: int
) -> dict[int, tuple[int, DelegateSpec]]:
    """The blocks of a memory space: by offset, the size of the largest value there, and who makes or reads that."""
    found: dict[int, tuple[int, DelegateSpec]] = {}
    for call in walk(method.instructions):
        if isinstance(call, DelegateCall):
            for index in (*call.outputs, *call.inputs):
                storage = storages[index]
                if (storage.home, storage.index) == (Home.ARENA, number):
                    spec = resources.program.delegates[call.delegate]
                    found[storage.offset] = max(found.get(storage.offset, (0, spec)), (sizes[index], spec), key=_size)
    return found


def _size(block: tuple[int, DelegateSpec]) -> int:
    return block[0]


class DeviceStep(DelegateStep):
    """Runs a delegate some of whose inputs lie in a device's memory, or did until what makes them fell back."""

    __slots__ = ()

    def __call__(self) -> None:
        with self.guard:
            if self.delegate.execute(tuple([_current(t) for t in self.inputs]), tuple(self.outputs)) is not None:
                raise unfilled()


def _current(tensor: Any) -> Any:
    return tensor.host if isinstance(tensor, DeviceTensor) and tensor.host is not None else tensor


class FetchStep:
    """Copies a tensor of a device to the host. `outs` is a list of one array, which a call may exchange."""

    __slots__ = ("outs", "source", "spec")

    def __init__(self, source: DeviceTensor, outs: list[Any], spec: DelegateSpec) -> None:
        self.source, self.outs, self.spec = source, outs, spec

    def __call__(self) -> None:
        np.copyto(self.outs[0], self.source.fetch())

    def failed(self, error: BaseException) -> DelegateError:
        """The error that names the partition that made the tensor."""
        return failed(self.spec, error)


class UploadStep:
    """Copies an array to a device, once for all delegates there that read it.

    `args` begins with the array, which a call may exchange. Partitions that have left the device get a host's copy.
    """

    __slots__ = ("args", "space", "spec", "target")

    def __init__(self, args: list[Any], target: DeviceTensor, space: Space, spec: DelegateSpec) -> None:
        self.args, self.target, self.space, self.spec = args, target, space, spec

    def __call__(self) -> None:
        if self.space.left:
            self.target.host = np.array(self.args[0], order="C")
        else:
            self.target.store(self.args[0])

    def failed(self, error: BaseException) -> DelegateError:
        """The error that names the first partition that reads the tensor."""
        return failed(self.spec, error)


def partition_of(program: Program, method: Method, index: int) -> DelegateSpec:
    """The first delegate that makes or reads a value."""
    calls = (c for c in walk(method.instructions) if isinstance(c, DelegateCall))
    return next(program.delegates[c.delegate] for c in calls if index in c.outputs or index in c.inputs)
