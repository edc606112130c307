"""Ranges of dynamic sizes: a region states those of the program, not those that torch reasons with."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.export import Dim

from delegate.backend.exported import exported_program
from delegate.backend.region import content_of, one_node_region
from delegate.edge.export import to_edge
from delegate.partitioner.planning import plan
from delegate.registry import default_registry
from delegate.selection import select
from delegate.testing import assert_same
from tests.support.planning import regions


class Net(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.cat([x, y]) * 2)


ARGS = (torch.randn(4, 3), torch.randn(5, 3))


def region_of(least: int, most: int | None):
    shapes = {"x": {0: Dim("b", min=least, max=most)}, "y": {0: Dim("c", max=7)}}
    edge = to_edge(torch.export.export(Net(), ARGS, dynamic_shapes=shapes))
    chosen = select(["xnnpack"], None, default_registry())
    (region,) = regions(plan(edge, chosen.partitioners, chosen.backends, chosen.rules)).values()
    return edge, region


@pytest.mark.parametrize(("least", "most"), [(0, 64), (1, 9), (3, None)])
def test_a_region_states_the_range_of_every_size(least, most):
    edge, region = region_of(least, most)
    assert len(region.range_constraints) == 2
    assert region.range_constraints == dict(edge.range_constraints)
    (size,) = (s for s in region.inputs[0].meta["val"].shape if isinstance(s, torch.SymInt))
    known = region.range_constraints[size.node.expr]
    assert known.lower == least
    assert known.upper == most if most is not None else known.upper > 2**31


@pytest.mark.parametrize("least", [0, 1])
def test_an_exported_region_accepts_its_whole_range(least):
    _, region = region_of(least, 64)
    program = exported_program(region)
    assert program.range_constraints == dict(region.range_constraints)
    for count in (least, 2, 64):
        given = torch.randn(count, 3), torch.randn(3, 3)
        assert_same(program.module()(*given)[0], Net()(*given), 1e-6)
    with pytest.raises((RuntimeError, AssertionError)):
        program.module()(torch.randn(65, 3), torch.randn(3, 3))


def test_parts_and_copies_keep_the_ranges():
    _, region = region_of(0, 64)
    assert region.copy().range_constraints == region.range_constraints
    assert region.part(region.calls[:1]).range_constraints == region.range_constraints


def test_a_region_of_one_node_assumes_that_a_size_may_be_nothing():
    edge, _ = region_of(0, 64)
    (relu,) = (n for n in edge.graph.nodes if "relu" in n.name)
    assert {known.lower for known in one_node_region(relu).range_constraints.values()} == {0}


def test_regions_of_other_ranges_are_others():
    assert content_of(region_of(0, 64)[1], str) != content_of(region_of(1, 64)[1], str)
    assert content_of(region_of(0, 64)[1], str) == content_of(region_of(0, 64)[1], str)
