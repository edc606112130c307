"""The lifetimes of a method's values, and a check that values alive at the same time share no memory.

Time is counted in steps, of which every instruction takes one. A structured call takes one at its start, one before and
one after each of its blocks, and one at its end. A value lives from the step that makes it to the last step that reads
it or an alias of it, both included.

In addition:

- operands and outputs of a structured call live during the whole call;
- inputs and outputs of a block live until the block ends, its inputs from its start;
- a value made outside of a loop and read inside lives until the loop ends.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from delegate.errors import ProgramError
from delegate.program.expr import ExpressionBounds
from delegate.program.instructions import reads, refs
from delegate.program.model import (
    Instruction,
    MethodDefinition,
    Storage,
    StorageKind,
    Structure,
    StructuredCall,
)


class Lifetime(NamedTuple):
    """A block of `size` bytes that is alive from step `start` to step `end`, both inclusive."""

    size: int
    start: int
    end: int

    def overlaps(self, other: Lifetime) -> bool:
        """Return True if both may be alive at the same time."""
        return self.start <= other.end and other.start <= self.end


def check_memory(method: MethodDefinition, bounds: ExpressionBounds) -> None:
    """Check that no two values that live at the same time overlap in an arena. All indices must be right.

    Args:
        method: what is checked.
        bounds: Bounds of the program's sizes.

    Raises:
        ProgramError: names the method and two values that overlap.
    """
    lifetimes = Lifetimes(method, [v.storage for v in method.values])
    spaces: dict[int, list[int]] = {}
    sizes: dict[int, int] = {}  # at the bounds
    for index, value in enumerate(method.values):
        if value.storage.kind is StorageKind.ARENA and value.storage.offset >= 0:
            sizes[index] = value.dtype.itemsize * (bounds.largest_count(value.shape) or 0)
            if sizes[index]:
                spaces.setdefault(value.storage.index, []).append(index)
    for indices in spaces.values():
        _sweep(method, lifetimes, sizes, sorted(indices, key=lambda i: lifetimes.start[i]))


def _sweep(method: MethodDefinition, lifetimes: Lifetimes, sizes: Mapping[int, int], indices: Iterable[int]) -> None:
    """Walk through time with the live values sorted by offset: only neighbours can overlap."""
    memory: list[tuple[int, int]] = []  # offset and value
    ends: list[tuple[int, int]] = []
    for index in indices:
        while ends and ends[0][0] < lifetimes.start[index]:
            expired = heapq.heappop(ends)[1]
            del memory[bisect.bisect_left(memory, (method.values[expired].storage.offset, expired))]
        offset = method.values[index].storage.offset
        at = bisect.bisect(memory, (offset, index))
        if at and memory[at - 1][0] + sizes[memory[at - 1][1]] > offset:
            _fail(method, memory[at - 1][1], index)
        if at < len(memory) and offset + sizes[index] > memory[at][0]:
            _fail(method, index, memory[at][1])
        memory.insert(at, (offset, index))
        heapq.heappush(ends, (lifetimes.end[index], index))


def _fail(method: MethodDefinition, first: int, second: int) -> None:
    names = " and ".join(f"%{i} {method.values[i].name!r}" for i in sorted((first, second)))
    what = f"values {names} are in the same memory at the same time"
    raise ProgramError(what, where=f"method {method.name!r}", remedy="lower the model again; report it if that fails")


class Lifetimes:
    """The first and last step of every value that owns memory. A read of an alias counts for the owner.

    Args:
        method: the owner of the values.
        storages: The values' storages; only aliases matter.

    Attributes:
        start, end: the steps, by value; -1 for one that no instruction makes.
    """

    def __init__(self, method: MethodDefinition, storages: Sequence[Storage]) -> None:
        self._owner = list(range(len(method.values)))
        self._storages = storages
        self._step = 0
        self.start = [-1] * len(method.values)
        self.end = [-1] * len(method.values)
        self._instructions(method.instructions, ())
        self._step += 1
        self._read(refs(method.outputs), ())

    def _instructions(self, instructions: Iterable[Instruction], loops: tuple[set[int], ...]) -> None:
        """Walk in the order of execution. `loops` holds the values read in each enclosing loop."""
        for call in instructions:
            self._step += 1
            if isinstance(call, StructuredCall):
                self._walk_structured(call, loops)
                continue
            self._read(reads(call), loops)
            self._make(call.outputs)

    def lifetime(self, index: int, size: int) -> Lifetime:
        """Return the lifetime of a value that takes `size` bytes."""
        return Lifetime(size, self.start[index], self.end[index])

    def _walk_structured(self, call: StructuredCall, loops: tuple[set[int], ...]) -> None:
        self._make(call.outputs)
        begin = self._step
        read: set[int] = set()
        inner = loops if call.kind is Structure.IF else (*loops, read)
        for block in call.blocks:
            self._step += 1
            self._make(block.inputs)
            self._instructions(block.instructions, inner)
            self._step += 1
            self._read((*block.inputs, *block.outputs), inner)
        self._step += 1
        outside = [index for index in read if self.start[index] < begin]
        self._read((*outside, *call.operands, *call.outputs), loops)

    def _make(self, values: Sequence[int]) -> None:
        for index in values:
            storage = self._storages[index]
            if storage.kind is StorageKind.ALIAS:
                self._owner[index] = self._owner[storage.index]
            else:
                self.start[index] = self.end[index] = self._step

    def _read(self, values: Iterable[int], loops: tuple[set[int], ...]) -> None:
        for index in values:
            owner = self._owner[index]
            self.end[owner] = self._step
            if loops:
                loops[-1].add(owner)
