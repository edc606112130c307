"""The memory of a method as data to draw: its blocks in the arenas over the steps, and its constants."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from delegate.errors import InputError
from delegate.program.expr import ExpressionBounds, SymbolValues, evaluate
from delegate.program.instructions import walk
from delegate.program.lifetimes import Lifetimes
from delegate.program.model import DelegateCall, DelegateSpec, MethodDefinition, Program, StorageKind

_UNBOUNDED = 64  # times the least size: what is shown for a size without a maximum
_NAMED = 8  # sizes in the text of a row


class MemoryBlock(NamedTuple):
    """The memory of one value.

    Args:
        name: The value's name.
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


class PartitionMemory(NamedTuple):
    """The bytes that a partition gives to its vendor library.

    Args:
        name: The partition's name.
        backend: that runs it.
        blob: bytes of the compiled model, with the weights that it holds.
        weights: bytes of packed weights beside it.
        shared: bytes of these that other partitions have too, and that are in memory once.
    """

    name: str
    backend: str
    blob: int
    weights: int
    shared: int


class MemoryPicture(NamedTuple):
    """The memory of one method.

    Args:
        method: its name.
        spaces: the names of the memory spaces, the host's first.
        arenas: bytes of each; -1 if it is planned per shape.
        steps: the number of steps.
        blocks: the values with a planned place.
        constants: name and bytes of each constant that kernels read.
        delegates: the memory of each partition. What a library allocates beside it is unknown.
        peaks: sizes as text, and the most bytes of arenas that are alive at one step. The sizes are the least, a middle
            and the largest value of all dynamic sizes. Empty without dynamic sizes.
    """

    method: str
    spaces: tuple[str, ...]
    arenas: tuple[int, ...]
    steps: int
    blocks: tuple[MemoryBlock, ...]
    constants: tuple[tuple[str, int], ...]
    delegates: tuple[PartitionMemory, ...]
    peaks: tuple[tuple[str, int], ...] = ()


def memory_pictures(program: Program) -> tuple[MemoryPicture, ...]:
    """Return the picture of each method of a verified program."""
    users = Counter(segment for spec in program.delegates for segment in set(spec.data))
    return tuple(_picture(program, method, users) for method in program.methods)


def _picture(program: Program, method: MethodDefinition, users: Mapping[int, int]) -> MemoryPicture:
    """Return the picture of a method; `users` has the number of partitions that have a segment of data."""
    lifetimes, bounds = Lifetimes(method, [v.storage for v in method.values]), ExpressionBounds(method.symbols)
    blocks = tuple(
        MemoryBlock(
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
        delegates=tuple(_partition(program, spec, users) for spec in specs),
        peaks=tuple(_peaks(method, lifetimes)),
    )


def _partition(program: Program, spec: DelegateSpec, users: Mapping[int, int]) -> PartitionMemory:
    shared = (segment for segment in spec.data if users[segment] > 1)
    return PartitionMemory(
        spec.name,
        spec.backend,
        _bytes(program, (spec.segment,)),
        _bytes(program, spec.data),
        _bytes(program, shared),
    )


def _peaks(method: MethodDefinition, lifetimes: Lifetimes) -> Iterator[tuple[str, int]]:
    """Yield the rows of `MemoryPicture.peaks`. Sizes for which an expression has no value are left out."""
    ranges = [(max(s.minimum, 0), s.maximum) for s in method.symbols]
    limits = [(low, _UNBOUNDED * max(low, 1) if high is None else high) for low, high in ranges]
    sizes = [tuple(low + (high - low) * part // 2 for low, high in limits) for part in range(3)]
    for values in dict.fromkeys(sizes if limits else []):
        named = [f"{symbol.name}={value}" for symbol, value in zip(method.symbols, values, strict=True)]
        text = ", ".join(named[:_NAMED] + (["..."] if len(named) > _NAMED else []))
        with suppress(InputError, ArithmeticError, ValueError):
            yield text, _peak(method, lifetimes, SymbolValues(enumerate(values)))


def _peak(method: MethodDefinition, lifetimes: Lifetimes, symbols: SymbolValues) -> int:
    """Return the most bytes of arenas that are alive at one step."""
    changes: Counter[int] = Counter()
    for index, value in enumerate(method.values):
        if value.storage.kind is StorageKind.ARENA and lifetimes.start[index] >= 0:
            size = value.dtype.itemsize * math.prod(evaluate(dim, symbols) for dim in value.shape)
            changes[lifetimes.start[index]] += size
            changes[lifetimes.end[index] + 1] -= size
    return max(itertools.accumulate(changes[step] for step in sorted(changes)), default=0)


def _bytes(program: Program, segments: Iterable[int]) -> int:
    return sum(memoryview(program.segments[i]).nbytes for i in segments)
