"""The memory of a binding: bytes of the host, or blocks of a device, for every memory space of a method."""

from __future__ import annotations

from collections.abc import Sequence

from delegate.program.blocks import walk
from delegate.program.model import DelegateCall, DelegateSpec, Method, Storage, StorageKind
from delegate.runtime.backend import Array, DeviceMemory
from delegate.runtime.resources import Resources

Arena = Array | dict[int, DeviceMemory]  # bytes of the host, or blocks of a device by offset


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
                if (storage.kind, storage.index) == (StorageKind.ARENA, number):
                    spec = resources.program.delegates[call.delegate]
                    found[storage.offset] = max(found.get(storage.offset, (0, spec)), (sizes[index], spec), key=_size)
    return found


def _size(block: tuple[int, DelegateSpec]) -> int:
    return block[0]
