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
_MANY = 256  # blocks alive at the same time, on average: each would be compared with all others
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
    spans = [b.end + 1 - b.start for b in lifetimes if b.size]
    if sum(spans) > _MANY * max((b.end + 1 for b in lifetimes), default=0):
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


def _sweep(lifetimes: Sequence[Lifetime]) -> tuple[list[int], int]:
    """Place blocks in the order of their starts, each in the smallest free buffer that holds it, without division."""
    offsets, total = [0] * len(lifetimes), 0
    free: list[tuple[int, int]] = []  # size and offset of each free buffer, in order
    taken: list[tuple[int, int, int]] = []  # a heap: the end of a block, and size and offset of its buffer
    for index in sorted((i for i, b in enumerate(lifetimes) if b.size), key=lambda i: lifetimes[i].start):
        block = lifetimes[index]
        while taken and taken[0][0] < block.start:
            insort(free, heappop(taken)[1:])
        size = align(block.size)
        if (place := bisect_left(free, (size, 0))) < len(free):
            size, offsets[index] = free.pop(place)
        else:
            offsets[index], total = total, total + size
        heappush(taken, (block.end, size, offsets[index]))
    return offsets, total


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
