"""Views at the border of a partition stay outside if fewer bytes cross it then."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from delegate.partitioner.assign import boundary_views
from tests.support.functions import Function
from tests.support.planning import edge

# function of a float32[4, 3] -> targets of the views that stay outside, before and after
CASES: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], list[str], list[str]]] = {
    "a part goes in": (lambda x: x[:2].relu(), ["slice"], []),
    "copies go in": (lambda x: x[None].expand(5, 4, 3).relu(), [], []),
    "the same bytes go in": (lambda x: x.reshape(2, 6).relu(), [], []),
    "a part of it is needed twice": (lambda x: x[:2].relu() + x[2:].relu(), [], []),
    "the whole is needed too": (lambda x: x[:1].relu() + x, [], []),
    "copies come out": (lambda x: x.relu()[None].expand(5, 4, 3), [], ["expand"]),
    "a part comes out": (lambda x: x.relu()[:2], [], []),
}


@pytest.mark.parametrize("name", CASES)
def test_which_views_stay_outside(name: str) -> None:
    function, before, after = CASES[name]
    program = edge(Function(function), torch.ones(4, 3))
    members = [n for n in program.graph.nodes if n.op == "call_function"]
    outside = boundary_views(members, set(), set(members))
    assert [_operator(n) for n in outside[0]] == before
    assert [_operator(n) for n in outside[1]] == after


def _operator(node: torch.fx.Node) -> str:
    return str(node.target).split(".")[1]
