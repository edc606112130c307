"""Scheduling: valid, convex, every node once, as few partitions as can be, linear."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

import pytest

from delegate.partitioner.scheduling import Run, schedule

Predecessors = tuple[tuple[int, ...], ...]


def random_graph(seed: int, size: int, kinds: Sequence[int]) -> tuple[set[int], Predecessors]:
    """What is taken of a random acyclic graph, and the predecessors there."""
    rng = random.Random(seed)
    density = rng.choice((0.1, 0.25, 0.5))
    edges = tuple(tuple(p for p in range(n) if rng.random() < density) for n in range(size))
    return {n for n in range(size) if rng.choice(kinds)}, edges


def least(taken: set[int], predecessors: Predecessors) -> int:
    """The least number of partitions of any order, by trying every order with its changes."""

    @cache
    def from_here(done: frozenset[int], inside: bool) -> int:
        if len(done) == len(predecessors):
            return 0
        ready = [n for n in range(len(predecessors)) if n not in done and done.issuperset(predecessors[n])]
        return min((n in taken and not inside) + from_here(done | {n}, n in taken) for n in ready)

    return from_here(frozenset(), False)


def partitions(runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if run.taken]


def ancestors(predecessors: Predecessors) -> list[set[int]]:
    found: list[set[int]] = []
    for sources in predecessors:
        found.append(set(sources).union(*(found[s] for s in sources)))
    return found


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("kinds", [(0, 1), (0, 1, 1, 1), (0, 0, 0, 1)], ids=str)
def test_every_schedule_is_valid_and_every_partition_convex(seed: int, kinds: Sequence[int]) -> None:
    taken, predecessors = random_graph(seed, 30, kinds)
    runs = schedule(taken, predecessors)
    order = [n for run in runs for n in run.units]
    assert sorted(order) == list(range(30))
    position = {n: i for i, n in enumerate(order)}
    assert all(position[p] < position[n] for n in range(30) for p in predecessors[n])
    assert all((n in taken) == run.taken for run in runs for n in run.units)
    above = ancestors(predecessors)
    for run in partitions(runs):
        inside = set(run.units)
        leaves = {n for n in range(30) if n not in inside and above[n] & inside}
        assert not any(above[n] & leaves for n in inside), "a path leaves the partition and comes back"


@pytest.mark.parametrize("kinds", [(0, 1), (0, 1, 1), (0, 0, 1)], ids=str)
def test_there_are_as_few_partitions_as_can_be(kinds: Sequence[int]) -> None:
    for seed in range(150):
        taken, predecessors = random_graph(seed, 9, kinds)
        assert len(partitions(schedule(taken, predecessors))) == least(taken, predecessors), seed


@pytest.mark.parametrize(
    ("taken", "predecessors", "runs"),
    [
        ((), (), []),
        ((0, 1), ((), ()), [(True, (0, 1))]),
        # what others run beside the chain does not split it
        ((0, 2), ((), (0,), (0,)), [(True, (0, 2)), (False, (1,))]),
        # on the chain it does
        ((0, 2), ((), (0,), (1,)), [(True, (0,)), (False, (1,)), (True, (2,))]),
        # two layers, each with a weight to decode (0 and 1), and one of the others between them
        ((0, 1, 2, 4), ((), (), (0,), (2,), (1, 3)), [(True, (0, 2)), (False, (3,)), (True, (1, 4))]),
        # a weight that others read first is decoded before them
        ((0, 2), ((), (0,), (0, 1)), [(True, (0,)), (False, (1,)), (True, (2,))]),
    ],
)
def test_small_graphs(
    taken: Sequence[int], predecessors: Predecessors, runs: Sequence[tuple[bool, tuple[int, ...]]]
) -> None:
    assert schedule(taken, predecessors) == [Run(*run) for run in runs]
