"""Scheduling: valid, convex, every node once, as few partitions as can be, linear."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from functools import cache

import pytest

from delegate.partitioner.scheduling import HOST, Run, schedule

Predecessors = tuple[tuple[int, ...], ...]


def random_graph(seed: int, size: int, colours: Sequence[int]) -> tuple[list[int], Predecessors]:
    """Colours and predecessors of a random acyclic graph."""
    rng = random.Random(seed)
    density = rng.choice((0.1, 0.25, 0.5))
    edges = tuple(tuple(p for p in range(n) if rng.random() < density) for n in range(size))
    return [rng.choice(colours) for _ in range(size)], edges


def least(colours: Sequence[int], predecessors: Predecessors) -> int:
    """The least number of partitions of any order, by trying every order with its colour changes."""

    @cache
    def from_here(done: frozenset[int], colour: int) -> int:
        if len(done) == len(colours):
            return 0
        ready = [n for n in range(len(colours)) if n not in done and done.issuperset(predecessors[n])]
        return min((colours[n] not in (HOST, colour)) + from_here(done | {n}, colours[n]) for n in ready)

    return from_here(frozenset(), HOST)


def partitions(runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if run.colour != HOST]


def ancestors(predecessors: Predecessors) -> list[set[int]]:
    found: list[set[int]] = []
    for sources in predecessors:
        found.append(set(sources).union(*(found[s] for s in sources)))
    return found


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("colours", [(0, 1), (0, 1, 1, 1), (0, 1, 2), (1, 2, 3), (0, 0, 1, 2, 3)], ids=str)
def test_every_schedule_is_valid_and_every_partition_convex(seed: int, colours: Sequence[int]) -> None:
    given, predecessors = random_graph(seed, 30, colours)
    runs = schedule(given, predecessors)
    order = [n for run in runs for n in run.nodes]
    assert sorted(order) == list(range(30))
    position = {n: i for i, n in enumerate(order)}
    assert all(position[p] < position[n] for n in range(30) for p in predecessors[n])
    assert all(given[n] == run.colour for run in runs for n in run.nodes)
    above = ancestors(predecessors)
    for run in partitions(runs):
        inside = set(run.nodes)
        leaves = {n for n in range(30) if n not in inside and above[n] & inside}
        assert not any(above[n] & leaves for n in inside), "a path leaves the partition and comes back"


@pytest.mark.parametrize("colours", [(0, 1), (0, 1, 1), (0, 0, 1), (1, 2)], ids=str)
def test_two_colours_give_the_least_number_of_partitions(colours: Sequence[int]) -> None:
    for seed in range(150):
        given, predecessors = random_graph(seed, 9, colours)
        assert len(partitions(schedule(given, predecessors))) == least(given, predecessors), seed


def test_nodes_without_predecessors_stand_with_their_first_user() -> None:
    """Two layers of a backend, each with a weight to decode (0 and 1), and a node of the host between them."""
    colours, predecessors = [1, 1, 1, HOST, 1], ((), (), (0,), (2,), (1, 3))
    assert schedule(colours, predecessors) == [Run(1, (0, 2)), Run(HOST, (3,)), Run(1, (1, 4))]


def test_more_colours_come_close_to_the_least_number() -> None:
    graphs = [random_graph(seed, 9, (0, 1, 2, 3)) for seed in range(200)]
    given = sum(len(partitions(schedule(*graph))) for graph in graphs)
    best = sum(least(*graph) for graph in graphs)
    assert best <= given <= 1.05 * best


@pytest.mark.parametrize(
    ("colours", "predecessors", "runs"),
    [
        ((), (), []),
        ((1, 1), ((), ()), [(1, (0, 1))]),
        # a host node beside the chain does not split it
        ((1, 0, 1), ((), (0,), (0,)), [(1, (0, 2)), (0, (1,))]),
        # a host node on the chain does
        ((1, 0, 1), ((), (0,), (1,)), [(1, (0,)), (0, (1,)), (1, (2,))]),
        # the colour that others wait for goes first, whatever its priority
        ((1, 2, 1), ((), (), (1,)), [(2, (1,)), (1, (0, 2))]),
        # of equals the preferred one
        ((2, 1), ((), ()), [(1, (1,)), (2, (0,))]),
    ],
)
def test_small_graphs(
    colours: Sequence[int], predecessors: Predecessors, runs: Sequence[tuple[int, tuple[int, ...]]]
) -> None:
    assert schedule(colours, predecessors) == [Run(*run) for run in runs]


def test_time_grows_linearly() -> None:
    assert _microseconds_per_node(40_000) < 5 * _microseconds_per_node(4_000)


def _microseconds_per_node(size: int) -> float:
    predecessors = [[p for p in (n - 1, n - 7) if p >= 0] for n in range(size)]
    colours = [0 if n % 20 == 0 else 1 + n % 2 for n in range(size)]
    times = []
    for _ in range(3):
        start = time.process_time()
        schedule(colours, predecessors)
        times.append(time.process_time() - start)
    return min(times) / size * 1e6
