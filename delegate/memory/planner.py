"""The memory planner: places blocks with known lifetimes into one arena, or into buffers that they share.

Greedy by size, as in Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference" (2020). The largest
block is placed first, each at the tightest gap between placed blocks that are alive at the same time. If the result
exceeds the largest sum of live blocks, the blocks beyond that limit are placed first, which is repeated a few times.
Then the same is done with the longest-lived blocks first, of equal size and of any size.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush

from delegate.program.lifetimes import Lifetime
from delegate.program.segments import align

_TRIES = 9  # of each order
_MANY = 256  # blocks alive at the same time: each would be compared with all others
_STEPS_PER_BUCKET = 64  # neighbours in time are found in buckets, so that planning stays almost linear

_ORDERS: tuple[Callable[[Lifetime], tuple[int, int]], ...] = (
    lambda b: (-b.size, b.start),
    lambda b: (-b.size, b.start - b.end),
    lambda b: (b.start - b.end, -b.size),
)


def plan_memory(lifetimes: Sequence[Lifetime]) -> tuple[list[int], int]:
    """Return the offset of each block, and the size of the arena, in bytes, where offsets are multiples of ALIGNMENT.

    Blocks of size 0 get offset 0. If very many blocks are alive at the same time, they are placed in the order of time.
    That may take more memory, but only O(blocks * log(blocks)) time.
    """
    if _alive_on_average(lifetimes) > _MANY:
        return _sweep(lifetimes)
    least = largest_live_sum([b._replace(size=align(b.size)) for b in lifetimes])
    best: tuple[list[int], int] = [], -1
    for key in _ORDERS:
        order = sorted((key(b), i) for i, b in enumerate(lifetimes) if b.size)
        for offsets, total in _tries(lifetimes, [i for _, i in order], least):
            if best[1] < 0 or total < best[1]:
                best = offsets, total
            if total == least:
                return best
    return best


def plan_buffers(lifetimes: Sequence[Lifetime]) -> tuple[list[int], int]:
    """Plan as `plan_memory`, for memory that cannot be divided: blocks of one offset share a buffer.

    The largest block is placed first, each in the smallest buffer that is free during its lifetime ("shared objects" in
    that paper).
    """
    offsets = [0] * len(lifetimes)
    total = 0
    buffers: list[tuple[int, list[Lifetime]]] = []  # offset and blocks; the largest first
    for index in sorted(range(len(lifetimes)), key=lambda i: -lifetimes[i].size):
        block = lifetimes[index]
        free = (b for b in reversed(buffers) if not any(o.overlaps(block) for o in b[1]))
        buffer = next(free, None)
        if buffer is None:
            buffer = total, []
            buffers.append(buffer)
            total += align(max(block.size, 1))
        buffer[1].append(block)
        offsets[index] = buffer[0]
    return offsets, total


def _tries(lifetimes: Sequence[Lifetime], order: list[int], least: int) -> Iterator[tuple[list[int], int]]:
    """Yield offsets and sizes, first for that order, then with the blocks first that exceed the limit."""
    for _ in range(_TRIES):
        offsets, total = _place(lifetimes, order)
        yield offsets, total
        exceeding = {i for i in order if offsets[i] + lifetimes[i].size > least}
        order = [i for i in order if i in exceeding] + [i for i in order if i not in exceeding]


def _place(lifetimes: Sequence[Lifetime], order: Sequence[int]) -> tuple[list[int], int]:
    """Return offsets and size if blocks are placed in that order."""
    offsets = [0] * len(lifetimes)
    total = 0
    buckets: dict[int, list[int]] = defaultdict(list)
    for index in order:
        block = lifetimes[index]
        candidates = {i for b in _buckets(block) for i in buckets[b]}
        alive = [i for i in candidates if lifetimes[i].overlaps(block)]
        taken = sorted((offsets[i], offsets[i] + align(lifetimes[i].size)) for i in alive)
        offsets[index] = _tightest_gap(taken, align(block.size))
        total = max(total, offsets[index] + align(block.size))
        for b in _buckets(block):
            buckets[b].append(index)
    return offsets, total


def _alive_on_average(lifetimes: Sequence[Lifetime]) -> float:
    """Return the number of live blocks, on average over their starts."""
    starts = sorted(b.start for b in lifetimes if b.size)
    ends = sorted(b.end for b in lifetimes if b.size)
    ended = pairs = 0
    for started, start in enumerate(starts, 1):
        while ends[ended] < start:
            ended += 1
        pairs += started - ended
    return pairs / max(len(starts), 1)


def _sweep(lifetimes: Sequence[Lifetime]) -> tuple[list[int], int]:
    """Place blocks in the order of their starts, each in the smallest gap that holds it; return offsets and size."""
    offsets = [0] * len(lifetimes)
    free_list, ends = FreeList(), list[tuple[int, int]]()
    for index in sorted((i for i, b in enumerate(lifetimes) if b.size), key=lambda i: lifetimes[i].start):
        while ends and ends[0][0] < lifetimes[index].start:
            _, ended = heappop(ends)
            free_list.free(offsets[ended], align(lifetimes[ended].size))
        offsets[index] = free_list.take(align(lifetimes[index].size))
        heappush(ends, (lifetimes[index].end, index))
    return offsets, free_list.total


class FreeList:
    """The free ranges of an arena, which grows if no range holds a block. The best fit is found by binary search.

    Attributes:
        total: the size of the arena in bytes so far.
    """

    def __init__(self) -> None:
        self.total = 0
        self._by_size: list[tuple[int, int]] = []  # size and begin of each free range, in order
        self._ends: dict[int, int] = {}  # begin -> end
        self._begins: dict[int, int] = {}  # end -> begin

    def take(self, size: int) -> int:
        """Take `size` bytes; return their offset."""
        place = bisect_left(self._by_size, (size, -1))
        if place == len(self._by_size):  # at the end, including a free range there
            begin = self._remove(self._begins[self.total])[0] if self.total in self._begins else self.total
            self.total = begin + size
            return begin
        begin, end = self._remove(self._by_size[place][1])
        if end - begin > size:
            self._add(begin + size, end)
        return begin

    def free(self, begin: int, size: int) -> None:
        """Return bytes to the list, and merge adjacent free ranges."""
        end = begin + size
        if end in self._ends:
            end = self._remove(end)[1]
        if begin in self._begins:
            begin = self._remove(self._begins[begin])[0]
        self._add(begin, end)

    def _add(self, begin: int, end: int) -> None:
        insort(self._by_size, (end - begin, begin))
        self._ends[begin], self._begins[end] = end, begin

    def _remove(self, begin: int) -> tuple[int, int]:
        end = self._ends.pop(begin)
        del self._begins[end]
        del self._by_size[bisect_left(self._by_size, (end - begin, begin))]
        return begin, end


def largest_live_sum(lifetimes: Sequence[Lifetime]) -> int:
    """Return the largest total size of the blocks alive at one step, since no arena can be smaller."""
    changes: dict[int, int] = defaultdict(int)
    for block in lifetimes:
        changes[block.start] += block.size
        changes[block.end + 1] -= block.size
    live = most = 0
    for step in sorted(changes):
        live += changes[step]
        most = max(most, live)
    return most


def _buckets(block: Lifetime) -> Iterator[int]:
    return iter(range(block.start // _STEPS_PER_BUCKET, block.end // _STEPS_PER_BUCKET + 1))


def _tightest_gap(taken: Sequence[tuple[int, int]], size: int) -> int:
    """Return the offset of the smallest gap of at least `size` bytes; else the end of the last taken range."""
    best, best_size, end = -1, 0, 0
    for start, stop in taken:
        gap = start - end
        if gap >= size and (best < 0 or gap < best_size):
            best, best_size = end, gap
        end = max(end, stop)
    return best if best >= 0 else end
