"""Replacement of torch's associative_scan by scan, the only loop over sequences with carried values in programs."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from delegate.edge.build import inherited, make_like
from delegate.edge.graphs import graph_modules
from delegate.edge.node import tensor
from delegate.edge.program import META_VALUE

aten = torch.ops.aten
_ASSOCIATIVE_SCAN = torch.ops.higher_order.associative_scan


def lower_associative_scans(root: GraphModule) -> None:
    """Replace every associative_scan by a scan that starts with the first part of the sequences, in place.

    The operation is associative, so torch may combine parts in any order. Floating-point results differ by rounding.
    Bodies of control flow are included.
    """
    for module in graph_modules(root):
        scans = [n for n in module.graph.nodes if n.op == "call_function" and n.target is _ASSOCIATIVE_SCAN]
        for body in dict.fromkeys(str(n.args[0].target) for n in scans):
            _return_carried_twice(getattr(module, body).graph)
        for node in scans:
            with module.graph.inserting_before(node):
                _lower(node)


def _return_carried_twice(body: Graph) -> None:
    """Return the carried values twice: a scan's body returns them, then the parts of the results, which are equal."""
    output = body.output_node()
    results = output.args[0]
    assert isinstance(results, list | tuple)
    output.args = ((*results, *results),)


def _lower(node: Node) -> None:
    body, sequences, captured = node.args
    assert isinstance(sequences, list | tuple)
    inputs = [s for s in sequences if isinstance(s, Node)]
    firsts = [make_like(node, aten.slice.Tensor, (s, 0, 0, 1), {}) for s in inputs]
    start = [make_like(node, aten.select.int, (s, 0, 0), {}) for s in inputs]
    rest = [make_like(node, aten.slice.Tensor, (s, 0, 1), {}) for s in inputs]
    scan = node.graph.call_function(torch.ops.higher_order.scan, (body, start, rest, captured))
    scan.meta = inherited(node)
    scan.meta[META_VALUE] = tuple(tensor(n) for n in (*start, *rest))
    results = [
        make_like(node, aten.cat.default, ([first, _picked(scan, len(inputs) + i)],), {})
        for i, first in enumerate(firsts)
    ]
    for user in list(node.users):
        user.replace_all_uses_with(results[_position(user)])
        node.graph.erase_node(user)
    node.graph.erase_node(node)


def _picked(scan: Node, position: int) -> Node:
    picked = scan.graph.call_function(operator.getitem, (scan, position))
    picked.meta = inherited(scan)
    picked.meta[META_VALUE] = scan.meta[META_VALUE][position]
    return picked


def _position(user: Node) -> int:
    assert user.target is operator.getitem
    position: Any = user.args[1]
    return int(position)
