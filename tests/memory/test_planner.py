"""The memory planner: nothing alive at once overlaps, and little more than the least is used."""

import random

import pytest

from delegate.memory.planner import largest_live_sum, plan_memory
from delegate.program.lifetimes import Lifetime
from delegate.program.segments import ALIGNMENT, align


def overlaps(lifetimes, offsets):
    blocks = [(b, o) for b, o in zip(lifetimes, offsets, strict=True) if b.size]
    return [
        (i, j)
        for i, (a, x) in enumerate(blocks)
        for j, (b, y) in enumerate(blocks[:i])
        if a.start <= b.end and b.start <= a.end and x < y + b.size and y < x + a.size
    ]


@pytest.mark.parametrize("seed", range(20))
def test_random_lifetimes(seed):
    draw = random.Random(seed)
    starts = [draw.randrange(300) for _ in range(150)]
    lifetimes = [
        Lifetime(draw.choice([0, 1, 64, 100, 4096, 5000]), s, s + draw.choice([0, 1, 2, 9, 200])) for s in starts
    ]
    offsets, total = plan_memory(lifetimes)
    assert not overlaps(lifetimes, offsets)
    assert all(o % ALIGNMENT == 0 and o + b.size <= total for b, o in zip(lifetimes, offsets, strict=True))
    assert total <= 1.25 * largest_live_sum([Lifetime(align(b.size), b.start, b.end) for b in lifetimes])


def test_chain_with_residuals_needs_no_more_than_is_alive():
    """What residual blocks that widen do: by size alone the residuals would be stacked above the wide ones."""
    lifetimes = []
    for block in range(6):
        at = 13 * block
        lifetimes += [
            Lifetime(8 << 10, at, at + 13),
            Lifetime(32 << 10, at + 5, at + 7),
            Lifetime(32 << 10, at + 7, at + 9),
        ]
    offsets, total = plan_memory(lifetimes)
    assert not overlaps(lifetimes, offsets)
    assert total == largest_live_sum(lifetimes) == 72 << 10


def test_nothing():
    assert plan_memory([]) == ([], 0)
    assert plan_memory([Lifetime(0, 0, 5)]) == ([0], 0)


def test_many_blocks_are_planned():
    lifetimes = [Lifetime(64 * (1 + i % 7), i, i + 2) for i in range(30_000)] + [Lifetime(640, 0, 30_000)]
    offsets, total = plan_memory(lifetimes)
    assert not overlaps(lifetimes[-400:], offsets[-400:])
    assert total <= 1.1 * largest_live_sum(lifetimes)


@pytest.mark.parametrize("seed", range(5))
def test_very_many_blocks_at_once(seed):
    """So many that each is not compared with all others."""
    draw = random.Random(seed)
    starts = [draw.randrange(500) for _ in range(1500)]
    lifetimes = [Lifetime(draw.choice([0, 1, 64, 100, 4096, 5000]), s, s + draw.choice([0, 300, 900])) for s in starts]
    offsets, total = plan_memory(lifetimes)
    assert not overlaps(lifetimes, offsets)
    assert all(o % ALIGNMENT == 0 and o + b.size <= total for b, o in zip(lifetimes, offsets, strict=True))
    assert total <= 1.5 * largest_live_sum([Lifetime(align(b.size), b.start, b.end) for b in lifetimes])
