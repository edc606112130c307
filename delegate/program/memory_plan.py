"""The memory planner: places blocks with known lifetimes into one arena, or into buffers that they share.

Greedy by size, as in Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference" (2020): the
largest block first, each at the tightest gap between the blocks that are placed already and alive at the same time.
Where that needs more than the blocks that are alive at once, the blocks that stick out are placed first, and all of it
is tried again a few times; then the same with those first that live longest, of equal size and of any.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from delegate.program.gaps import Gaps

ALIGNMENT = 64  # bytes: a cache line, and what vendor libraries like best
_TRIES = 9  # of each order
_MANY = 256  # blocks alive at once: each would be compared with all others
_STEPS_PER_BUCKET = 64  # neighbours in time are looked up in buckets, so that planning stays near linear


class Branch(NamedTuple):
    """One of the branches that may run at the same time, from step `start` to step `end` of all of them together."""

    start: int
    end: int
    number: int


class Lifetime(NamedTuple):
    """A block of `size` bytes that is alive from step `start` to step `end`, both inclusive.

    Args:
        branch: that it belongs to: what belongs to another one of the same branches may be alive at the same time,
            whatever their steps are.
    """

    size: int
    start: int
    end: int
    branch: Branch | None = None

    @property
    def span(self) -> tuple[int, int]:
        """The first and the last step at which it may be alive."""
        if self.branch is None:
            return self.start, self.end
        return min(self.start, self.branch.start), max(self.end, self.branch.end)

    def meets(self, other: Lifetime) -> bool:
        """Whether both may be alive at the same time."""
        if self.start <= other.end and other.start <= self.end:
            return True
        if self.branch is None or other.branch is None:
            return False
        return self.branch.start == other.branch.start and self.branch.number != other.branch.number


_ORDERS: tuple[Callable[[Lifetime], tuple[int, int]], ...] = (
    lambda b: (-b.size, b.start),
    lambda b: (-b.size, b.start - b.end),
    lambda b: (b.start - b.end, -b.size),
)


def align(size: int) -> int:
    """The size rounded up to the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def plan_memory(lifetimes: Sequence[Lifetime]) -> tuple[list[int], int]:
    """The offset of each block, and the size of the arena, in bytes; all offsets are multiples of ALIGNMENT.

    Blocks of size 0 get offset 0. Where very many blocks are alive at once they are placed in the order of time, which
    may take more memory, but only O(blocks * log(blocks)) time.
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
    """As `plan_memory`, for memory that cannot be cut: blocks of the same offset share a buffer, others have their own.

    The largest block first, each in the smallest buffer that is free while it lives ("shared objects" in that paper).
    """
    offsets = [0] * len(lifetimes)
    total = 0
    buffers: list[tuple[int, list[Lifetime]]] = []  # offset, and who lives there; the largest first
    for index in sorted(range(len(lifetimes)), key=lambda i: -lifetimes[i].size):
        block = lifetimes[index]
        free = (b for b in reversed(buffers) if not any(o.meets(block) for o in b[1]))
        found = next(free, None)
        if found is None:
            found = total, []
            buffers.append(found)
            total += align(max(block.size, 1))
        found[1].append(block)
        offsets[index] = found[0]
    return offsets, total


def _tries(lifetimes: Sequence[Lifetime], order: list[int], least: int) -> Iterator[tuple[list[int], int]]:
    """Offsets and sizes, the first for that order, the others for what it becomes by placing first what sticks out."""
    for _ in range(_TRIES):
        offsets, total = _place(lifetimes, order)
        yield offsets, total
        sticks_out = {i for i in order if offsets[i] + lifetimes[i].size > least}
        order = [i for i in order if i in sticks_out] + [i for i in order if i not in sticks_out]


def _place(lifetimes: Sequence[Lifetime], order: Sequence[int]) -> tuple[list[int], int]:
    """Offsets and size where blocks are placed in that order."""
    offsets = [0] * len(lifetimes)
    total = 0
    buckets: dict[int, list[int]] = defaultdict(list)
    for index in order:
        block = lifetimes[index]
        near = {i for b in _buckets(block) for i in buckets[b]}
        alive = [i for i in near if lifetimes[i].meets(block)]
        taken = sorted((offsets[i], offsets[i] + align(lifetimes[i].size)) for i in alive)
        offsets[index] = _tightest_gap(taken, align(block.size))
        total = max(total, offsets[index] + align(block.size))
        for b in _buckets(block):
            buckets[b].append(index)
    return offsets, total


def _alive_on_average(lifetimes: Sequence[Lifetime]) -> float:
    """How many blocks are alive, on average over their starts."""
    starts = sorted(b.span[0] for b in lifetimes if b.size)
    ends = sorted(b.span[1] for b in lifetimes if b.size)
    ended = pairs = 0
    for started, start in enumerate(starts, 1):
        while ends[ended] < start:
            ended += 1
        pairs += started - ended
    return pairs / max(len(starts), 1)


def _sweep(lifetimes: Sequence[Lifetime]) -> tuple[list[int], int]:
    """Offsets and size where blocks are placed as they begin to live, each in the smallest gap that holds it."""
    offsets = [0] * len(lifetimes)
    gaps, ending = Gaps(), list[tuple[int, int]]()
    for index in sorted((i for i, b in enumerate(lifetimes) if b.size), key=lambda i: lifetimes[i].span[0]):
        while ending and ending[0][0] < lifetimes[index].span[0]:
            _, ended = heappop(ending)
            gaps.free(offsets[ended], align(lifetimes[ended].size))
        offsets[index] = gaps.take(align(lifetimes[index].size))
        heappush(ending, (lifetimes[index].span[1], index))
    return offsets, gaps.total


def largest_live_sum(lifetimes: Sequence[Lifetime]) -> int:
    """The largest sum of the sizes of blocks alive at one step: no arena can be smaller.

    Where branches may run at the same time it is that of the steps of one after another.
    """
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
    start, end = block.span
    return iter(range(start // _STEPS_PER_BUCKET, end // _STEPS_PER_BUCKET + 1))


def _tightest_gap(taken: Sequence[tuple[int, int]], size: int) -> int:
    """The offset of the smallest gap that holds `size` bytes; else the end of the last taken range."""
    best, best_size, end = -1, 0, 0
    for start, stop in taken:
        gap = start - end
        if gap >= size and (best < 0 or gap < best_size):
            best, best_size = end, gap
        end = max(end, stop)
    return best if best >= 0 else end
