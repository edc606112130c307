"""The search for guilty nodes: what a library rejects without saying why, and noisy units."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import ClassVar

import pytest
import torch
from torch.fx import Graph

from delegate.backend.aot import PreprocessResult, Region, RegionFailed
from delegate.backend.guilty import Unit, failing_nodes, find_guilty, units_of
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
