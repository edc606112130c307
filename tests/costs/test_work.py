"""Estimated work of nodes."""

from __future__ import annotations

import pytest
import torch
from torch.fx import Graph, Node

from delegate.costs.quantities import is_layout, work
from delegate.edge.node import nbytes
from tests.support.planning import edge

aten = torch.ops.aten


def node_of(target, *arguments: object) -> Node:
    """A node of an operator on tensors, its result from the operator itself."""
    graph = Graph()
    given = [graph.placeholder(f"x{i}") if isinstance(a, torch.Tensor) else a for i, a in enumerate(arguments)]
    for node, value in zip(given, arguments, strict=True):
        if isinstance(node, Node):
            node.meta["val"] = value
    node = graph.call_function(target, tuple(given))
    node.meta["val"] = target(*arguments)
    return node


def meta(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta")


CONV = ([1, 1], [0, 0], [1, 1])


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (node_of(aten.mm.default, meta(2, 3), meta(3, 5)), 2 * 2 * 3 * 5),
        (node_of(aten.addmm.default, meta(5), meta(2, 3), meta(3, 5)), 2 * 2 * 3 * 5),
        (node_of(aten.bmm.default, meta(7, 2, 3), meta(7, 3, 5)), 2 * 7 * 2 * 3 * 5),
        (node_of(aten.linear.default, meta(4, 2, 3), meta(5, 3)), 2 * 4 * 2 * 3 * 5),
        (
            node_of(aten.convolution.default, meta(1, 4, 8, 8), meta(6, 2, 3, 3), None, *CONV, False, [0, 0], 2),
            2 * (6 * 6 * 6) * (2 * 3 * 3),
        ),
        (
            node_of(aten.convolution.default, meta(1, 4, 8, 8), meta(4, 6, 3, 3), None, *CONV, True, [0, 0], 1),
            2 * (4 * 8 * 8) * (6 * 3 * 3),
        ),
        (
            node_of(aten.scaled_dot_product_attention.default, meta(1, 2, 5, 8), meta(1, 2, 7, 8), meta(1, 2, 7, 4)),
            2 * (2 * 5 * 7 * 8 + 2 * 5 * 7 * 4),
        ),
        (node_of(aten.relu.default, meta(2, 3)), 12),
        (node_of(aten.add.Tensor, meta(2, 3), meta(3)), 15),
        (node_of(aten.permute.default, meta(2, 3), [1, 0]), 0),
        (node_of(aten.clone.default, meta(2, 3)), 12),
    ],
    ids=lambda value: value.name if isinstance(value, Node) else "",
)
def test_work(node: Node, expected: int) -> None:
    assert work(node) == expected
    assert is_layout(node) == (node.target in (aten.permute.default, aten.clone.default))


def test_bytes_of_all_results() -> None:
    assert nbytes(node_of(aten.relu.default, meta(2, 3))) == 24
    assert nbytes(node_of(aten.split.Tensor, meta(2, 3).to(torch.int64), 1)) == 48


def test_dynamic_sizes_count_as_they_were_at_export() -> None:
    dim = torch.export.Dim("n", min=2, max=9)
    program = edge(torch.nn.Linear(3, 5), torch.ones(4, 3), dynamic=({0: dim},))
    assert sum(work(n) for n in program.graph.nodes if n.op == "call_function") == 2 * 4 * 3 * 5
