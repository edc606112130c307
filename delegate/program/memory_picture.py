"""The memory of a method as data to draw: its blocks in the arenas over the steps, and its constants."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from delegate.program.bounds import ExpressionBounds
from delegate.program.instructions import walk
from delegate.program.lifetimes import Lifetimes
from delegate.program.model import DelegateCall, Method, Program, StorageKind


class Block(NamedTuple):
    """The memory of one value.

    Args:
        name: of the value.
        space: number of its memory space.
        offset, size: bytes, at the bounds of dynamic sizes.
        start, end: the first and the last step at which it is alive.
    """

    name: str
    space: int
    offset: int
    size: int
    start: int
    end: int


class MemoryPicture(NamedTuple):
    """The memory of one method.

    Args:
        method: its name.
        spaces: the names of the memory spaces, the host's first.
        arenas: bytes of each; -1 if it is planned per shape.
        steps: the number of steps.
        blocks: the values with a planned place.
        constants: name and bytes of each constant that kernels read.
        delegates: name and bytes of the blob and the data of each partition.
    """

    method: str
    spaces: tuple[str, ...]
    arenas: tuple[int, ...]
    steps: int
    blocks: tuple[Block, ...]
    constants: tuple[tuple[str, int], ...]
    delegates: tuple[tuple[str, int], ...]


def memory_pictures(program: Program) -> tuple[MemoryPicture, ...]:
    """Return the picture of each method of a verified program."""
    return tuple(_picture(program, method) for method in program.methods)


def _picture(program: Program, method: Method) -> MemoryPicture:
    lifetimes, bounds = Lifetimes(method, [v.storage for v in method.values]), ExpressionBounds(method.symbols)
    blocks = tuple(
        Block(
            value.name,
            value.storage.index,
            value.storage.offset,
            value.dtype.itemsize * (bounds.largest_count(value.shape) or 0),
            lifetimes.start[index],
            lifetimes.end[index],
        )
        for index, value in enumerate(method.values)
        if value.storage.kind is StorageKind.ARENA and value.storage.offset >= 0 and lifetimes.start[index] >= 0
    )
    used = dict.fromkeys(v.storage.index for v in method.values if v.storage.kind is StorageKind.CONSTANT)
    constants = ((program.constants[i].name, _bytes(program, (program.constants[i].segment,))) for i in used)
    called = dict.fromkeys(c.delegate for c in walk(method.instructions) if isinstance(c, DelegateCall))
    specs = (program.delegates[i] for i in called)
    return MemoryPicture(
        method=method.name,
        spaces=("host", *(f"{s.backend}:{s.name}" for s in program.spaces)),
        arenas=method.arenas,
        steps=max(lifetimes.end, default=0) + 1,
        blocks=blocks,
        constants=tuple(constants),
        delegates=tuple((spec.name, _bytes(program, (spec.segment, *spec.data))) for spec in specs),
    )


def _bytes(program: Program, segments: Iterable[int]) -> int:
    return sum(memoryview(program.segments[i]).nbytes for i in segments)
