"""The memory planner: nothing alive at once overlaps, and little more than the least is used."""

import random

import pytest

from delegate.memory.planner import largest_live_sum, plan_buffers, plan_memory
from delegate.program.lifetimes import BranchSteps, Lifetime
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


@pytest.mark.parametrize("plan", [plan_memory, plan_buffers], ids=lambda p: p.__name__)
@pytest.mark.parametrize("count", [40, 900])
def test_blocks_of_branches_that_may_run_at_the_same_time(plan, count):
    """So many of them, too, that not each is compared with all others. Within a branch memory is used again."""
    draw = random.Random(count)
    lifetimes = []
    for _ in range(count):
        call = draw.choice([0, 100])
        number = draw.randrange(3)
        start = call + 30 * number + draw.randrange(28)
        branch = draw.choice([None, BranchSteps(call, call + 90, number)])
        lifetimes.append(Lifetime(draw.choice([0, 64, 100, 4096]), start, start + draw.choice([0, 1, 2, 90]), branch))
    offsets, total = plan(lifetimes)
    for i, (a, x) in enumerate(zip(lifetimes, offsets, strict=True)):
        assert x + a.size <= total
        for b, y in zip(lifetimes[:i], offsets[:i], strict=True):
            beside = a.branch and b.branch and a.branch[:2] == b.branch[:2] and a.branch != b.branch
            meet = bool(beside) or (a.start <= b.end and b.start <= a.end)
            assert a.overlaps(b) == b.overlaps(a) == meet
            if a.size and b.size and meet:
                assert x >= y + b.size or y >= x + a.size


def test_a_branch_uses_its_own_memory_again():
    chains = [Lifetime(64, 10 * n + i, 10 * n + i + 1, BranchSteps(0, 20, n)) for n in range(2) for i in range(8)]
    assert plan_memory(chains)[1] == 2 * 2 * 64


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
    assert total <= 1.3 * largest_live_sum([Lifetime(align(b.size), b.start, b.end) for b in lifetimes])
