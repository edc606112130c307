"""The lifetimes of a method's values, and a check that values alive at the same time share no memory.

Time is counted in steps. Every instruction takes one. A structured call takes one at its start, one before and one
after each of its blocks, and one at its end. A value lives from the step that makes it to the last step that reads it
or an alias of it, both included.

In addition:

- operands and outputs of a structured call live during the whole call;
- inputs and outputs of a block live until the block ends, its inputs from its start;
- a value made outside of a loop and read inside lives until the loop ends.

Branches that may run at the same time (PARALLEL) have their steps one after another, like other blocks. A value of one
branch overlaps in time with all values of another branch, whatever their steps are. A value made before and read in a
branch lives until all branches end.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from delegate.errors import ProgramError
from delegate.program.bounds import ExpressionBounds
from delegate.program.instructions import reads, refs
from delegate.program.model import (
    Instruction,
    Method,
    Storage,
    StorageKind,
    Structure,
    StructuredCall,
)

_BUCKET = 512  # blocks in a bucket of _Memory, at most twice as many


class BranchSteps(NamedTuple):
    """One of several branches that may run at the same time, all between step `start` and step `end`."""

    start: int
    end: int
    number: int


class Lifetime(NamedTuple):
    """A block of `size` bytes that is alive from step `start` to step `end`, both inclusive.

    Args:
        branch: the branch of the block. Blocks of another branch of the same call may be alive at the same time,
            whatever their steps are.
    """

    size: int
    start: int
    end: int
    branch: BranchSteps | None = None

    @property
    def span(self) -> tuple[int, int]:
        """The first and the last step at which it may be alive."""
        if self.branch is None:
            return self.start, self.end
        return min(self.start, self.branch.start), max(self.end, self.branch.end)

    def overlaps(self, other: Lifetime) -> bool:
        """Return True if both may be alive at the same time."""
        if self.start <= other.end and other.start <= self.end:
            return True
        if self.branch is None or other.branch is None:
            return False
        return self.branch.start == other.branch.start and self.branch.number != other.branch.number


def check_memory(method: Method, bounds: ExpressionBounds) -> None:
    """Check that no two values that live at the same time overlap in an arena. All indices must be right.

    Args:
        method: what is checked.
        bounds: of its sizes.

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
        by_branches: dict[int, list[int]] = {}  # the first step of branches -> their values
        for index in indices:
            if (branch := lifetimes.branch.get(index)) is not None:
                by_branches.setdefault(branch.start, []).append(index)
        for values in by_branches.values():
            _check_branches(method, lifetimes, sizes, values)


def _sweep(method: Method, lifetimes: Lifetimes, sizes: Mapping[int, int], indices: Iterable[int]) -> None:
    """Walk through time with the live values sorted by offset: only neighbours can overlap."""
    memory = _Memory()
    ends: list[tuple[int, int]] = []
    for index in indices:
        while ends and ends[0][0] < lifetimes.start[index]:
            expired = heapq.heappop(ends)[1]
            memory.remove((method.values[expired].storage.offset, expired))
        offset = method.values[index].storage.offset
        before, after = memory.insert((offset, index))
        if before is not None and before[0] + sizes[before[1]] > offset:
            _fail(method, before[1], index)
        if after is not None and offset + sizes[index] > after[0]:
            _fail(method, index, after[1])
        heapq.heappush(ends, (lifetimes.end[index], index))


def _check_branches(method: Method, lifetimes: Lifetimes, sizes: Mapping[int, int], values: Iterable[int]) -> None:
    """Walk through memory and check that values of different branches do not overlap."""
    farthest = other = (0, -1, -1)  # end, branch and value of the farthest one, and of the farthest in another branch
    for index in sorted(values, key=lambda i: method.values[i].storage.offset):
        offset, branch = method.values[index].storage.offset, lifetimes.branch[index].number
        before = farthest if farthest[1] != branch else other
        if before[0] > offset:
            _fail(method, before[2], index)
        reach = (offset + sizes[index], branch, index)
        if branch == farthest[1]:
            farthest = max(farthest, reach)
        elif reach[0] > farthest[0]:
            farthest, other = reach, farthest
        else:
            other = max(other, reach)


def _fail(method: Method, first: int, second: int) -> None:
    names = " and ".join(f"%{i} {method.values[i].name!r}" for i in sorted((first, second)))
    what = f"values {names} are in the same memory at the same time"
    raise ProgramError(what, where=f"method {method.name!r}", remedy="lower the model again; report it if that fails")


class Lifetimes:
    """The first and last step of every value that owns memory. A read of an alias counts for the owner.

    Args:
        method: the owner of the values.
        storages: of the values; only aliases matter.

    Attributes:
        start, end: the steps, by value; -1 for one that no instruction makes.
        branch: the branch that makes a value, if others may run at the same time.
    """

    def __init__(self, method: Method, storages: Sequence[Storage]) -> None:
        self._owner = list(range(len(method.values)))
        self._storages = storages
        self._step = 0
        self._defined: list[int] = []  # the values that own memory, in order of definition
        self.branch: dict[int, BranchSteps] = {}
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
                self._structured(call, loops)
                continue
            self._read(reads(call), loops)
            self._make(call.outputs)

    def lifetime(self, index: int, size: int) -> Lifetime:
        """Return the lifetime of a value of `size` bytes."""
        return Lifetime(size, self.start[index], self.end[index], self.branch.get(index))

    def _parallel(self, call: StructuredCall, loops: tuple[set[int], ...]) -> None:
        begin = self._step
        read: set[int] = set()
        defined: list[list[int]] = []
        for block in call.blocks:
            self._step += 1
            first = len(self._defined)
            self._instructions(block.instructions, (*loops, read))
            self._step += 1
            self._read(block.outputs, (*loops, read))
            defined.append(self._defined[first:])
        self._step += 1
        for number, values in enumerate(defined):
            self.branch.update(dict.fromkeys(values, BranchSteps(begin, self._step, number)))
        outside = [index for index in read if self.start[index] < begin]
        self._read((*outside, *call.outputs), loops)

    def _structured(self, call: StructuredCall, loops: tuple[set[int], ...]) -> None:
        if call.kind is Structure.PARALLEL:
            self._parallel(call, loops)
            return
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
                self._defined.append(index)

    def _read(self, values: Iterable[int], loops: tuple[set[int], ...]) -> None:
        for index in values:
            owner = self._owner[index]
            self.end[owner] = self._step
            if loops:
                loops[-1].add(owner)


class _Memory:
    """A sorted set of blocks (offset, value) in buckets, so that millions of them stay fast."""

    def __init__(self) -> None:
        self._buckets: list[list[tuple[int, int]]] = [[]]

    def _bucket(self, block: tuple[int, int]) -> int:
        return max(bisect.bisect_right(self._buckets, block, key=_first) - 1, 0)

    def insert(self, block: tuple[int, int]) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
        """Insert a block; return its neighbours below and above."""
        number = self._bucket(block)
        bucket = self._buckets[number]
        at = bisect.bisect(bucket, block)
        below = bucket[at - 1] if at else (self._buckets[number - 1][-1] if number else None)
        last = at == len(bucket)
        above = bucket[at] if not last else (self._buckets[number + 1][0] if number + 1 < len(self._buckets) else None)
        bucket.insert(at, block)
        if len(bucket) > 2 * _BUCKET:
            self._buckets[number : number + 1] = [bucket[:_BUCKET], bucket[_BUCKET:]]
        return below, above

    def remove(self, block: tuple[int, int]) -> None:
        """Remove a block that is in the set."""
        number = self._bucket(block)
        bucket = self._buckets[number]
        del bucket[bisect.bisect_left(bucket, block)]
        if not bucket and len(self._buckets) > 1:
            del self._buckets[number]


def _first(bucket: list[tuple[int, int]]) -> tuple[int, int]:
    return bucket[0] if bucket else (-1, -1)
