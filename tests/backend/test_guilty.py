"""The search for guilty nodes: what a library rejects without saying why, noisy units, and smallest sets."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import ClassVar

import pytest
import torch
from torch.fx import Graph, Node

from delegate.backend.aot import PreprocessResult, Region, RegionFailed
from delegate.backend.guilty import Minimization, OutOfTime, Unit, failing_nodes, find_guilty, nodes_of, units_of
from delegate.edge.node import op_name


def chain(*operators: str) -> Region:
    """A region of these operators, each on the result of the one before; "topk" gives two."""
    graph = Graph()
    node = start = graph.placeholder("x")
    for i, name in enumerate(operators):
        target = getattr(torch.ops.aten, name).default
        node = graph.create_node("call_function", target, (node, 1) if name == "topk" else (node,), name=f"n{i}")
        if name == "topk":
            node = graph.create_node("call_function", operator.getitem, (node, 0), name=f"pick{i}")
    graph.output((node,))
    return Region("toy_0", graph, (start,), {}, (node,))


class Picky:
    """Fails where it is given certain operators, or two of a kind together."""

    never: ClassVar[set[str]] = {"aten.exp.default", "aten.topk.default"}

    def __init__(self) -> None:
        self.tried = 0

    def preprocess(self, region: Region) -> PreprocessResult:
        self.tried += 1
        names = [op_name(n) for n in region.graph.nodes if n.op == "call_function"]
        if self.never & set(names):
            raise RegionFailed("not that")
        if names.count("aten.tanh.default") > 1:
            raise RegionFailed("too much tanh")
        return PreprocessResult(b"")


@pytest.mark.parametrize(
    ("operators", "found", "most"),
    [
        (["relu", "exp", "relu", "relu", "relu", "relu", "relu", "relu"], {"n1"}, 6),
        (["exp"], {"n0"}, 0),
        (["relu", "topk", "relu", "relu"], {"n1", "pick1"}, 4),
        (["exp", "relu", "relu", "exp"], {"n0", "n3"}, 6),
        (["relu", "tanh", "relu", "tanh"], {"n3"}, 3),
        (["relu", "tanh", "relu", "relu", "relu", "relu", "tanh", "relu"], {"n6"}, 4),
        (["exp"] * 100, {f"n{i}" for i in range(100)}, 34),
    ],
)
def test_failing_nodes(operators, found, most):
    picky = Picky()
    reasons = failing_nodes(chain(*operators), "not that", picky.preprocess)
    assert set(reasons) == found
    assert set(reasons.values()) <= {"not that", "too much tanh"}
    assert picky.tried <= most


@pytest.mark.parametrize(
    ("noise", "found"),
    [
        ([0, 0, 3, 0], {2}),
        ([0.5, 0.2, 0, 0.2, 0.2], {0}),
        ([0.3, 0.3, 0.3, 0.3], {2, 3}),
        ([0, 5, None, None, 0, 2], {1, 5}),
        ([None, None, 2], {2}),
    ],
    ids=str,
)
def test_as_few_noisy_units_as_possible(noise: list[float | None], found: set[int]) -> None:
    units = units_of(chain(*["relu"] * len(noise)))

    def measure(part: Sequence[Unit]) -> float | None:
        values = [noise[units.index(unit)] for unit in part]
        numbers = [value for value in values if value is not None]
        return None if values and not numbers else sum(numbers)

    excess = measure(units)
    assert excess is not None
    guilty = find_guilty(units, measure, excess)
    assert {units.index(unit) for unit in guilty} == found


def test_units_that_are_noisy_only_together() -> None:
    units = units_of(chain(*["relu"] * 8))
    together = {units[1], units[6]}
    guilty = find_guilty(units, lambda part: 2.0 if together <= {*part} else 0.1, 2.0)
    assert guilty == [units[6]]


def chain_with_branch() -> list[Unit]:
    """Return units of x -> n0 -> ... -> n9, with b0 and b1 from n2 to n6."""
    graph = Graph()
    last = graph.placeholder("x")
    nodes: list[Node] = []
    branch: Node | None = None
    for number in range(10):
        others = (branch,) if number == 6 and branch is not None else ()
        last = graph.create_node("call_function", torch.add, (last, *others), name=f"n{number}")
        nodes.append(last)
        if number == 2:
            first = graph.create_node("call_function", torch.neg, (last,), name="b0")
            branch = graph.create_node("call_function", torch.neg, (first,), name="b1")
            nodes += [first, branch]
    return [(node,) for node in nodes]


@pytest.mark.parametrize("guilty", ["n0", "n9", "n4", "b0", "b0 b1", "n4 n5", "n2 b0", "n5 b1 n6", "n0 n1 n2"])
def test_exactly_the_guilty_are_found(guilty: str) -> None:
    def shows(units: Sequence[Unit]) -> bool:
        return {node.name for node in nodes_of(units)}.issuperset(guilty.split())

    search = Minimization(chain_with_branch(), shows)
    assert tuple(n.name for n in nodes_of(search.found)) == tuple(sorted(guilty.split(), key=_order))
    assert search.is_minimal
    assert search.tests <= 30


def _order(name: str) -> int:
    return [unit[0].name for unit in chain_with_branch()].index(name)


def test_the_smallest_set_so_far_if_time_is_over() -> None:
    left = 3

    def shows(units: Sequence[Unit]) -> bool:
        nonlocal left
        left -= 1
        if left < 0:
            raise OutOfTime
        return any(node.name == "n1" for node in nodes_of(units))

    search = Minimization(chain_with_branch(), shows)
    names = [n.name for n in nodes_of(search.found)]
    assert "n1" in names
    assert len(names) < 12
    assert not search.is_minimal
