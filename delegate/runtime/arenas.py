"""The memory of an execution plan: host bytes, or blocks of a device, for every memory space of a method."""

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
    """Return memory for every memory space of a method; raise as `Space.blocks` and `Platform.memory` do.

    Args:
        resources: of the context.
        method: the method to bind.
        storages: of its values.
        totals: bytes of every memory space.
        sizes: bytes of every value.
    """
    arenas: list[Arena] = []
    for number, total in enumerate(totals):
        is_device = total and 0 < number <= len(resources.spaces)
        blocks = (
            resources.spaces[number - 1].blocks(_blocks(resources, method, storages, sizes, number))
            if is_device
            else None
        )
        arenas.append(resources.platform.memory(total) if blocks is None else blocks)
    return arenas


def _blocks(
    resources: Resources, method: Method, storages: Sequence[Storage], sizes: Sequence[int], number: int
) -> dict[int, tuple[int, DelegateSpec]]:
    """Return the blocks of a memory space by offset: the size of its largest value, and a delegate that uses it."""
    blocks: dict[int, tuple[int, DelegateSpec]] = {}
    for call in walk(method.instructions):
        if isinstance(call, DelegateCall):
            for index in (*call.outputs, *call.inputs):
                storage = storages[index]
                if (storage.kind, storage.index) == (StorageKind.ARENA, number):
                    spec = resources.program.delegates[call.delegate]
                    blocks[storage.offset] = max(blocks.get(storage.offset, (0, spec)), (sizes[index], spec), key=_size)
    return blocks


def _size(block: tuple[int, DelegateSpec]) -> int:
    return block[0]
