"""Smallest sets of operators that show a symptom."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from delegate_devtools.minimize import Minimization, OutOfTime
from torch.fx import Graph, Node

from delegate.backend.guilty import Unit, nodes_of


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
