"""Prims: primitive operators of torch; broadcasting and promotion of dtypes are separate operators."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

from delegate.edge.build import make_like
from delegate.edge.decompose import Decomposer, Table
from delegate.edge.node import op_name, tensor
from delegate.edge.torch_private import OpOverload, decomposition_table

_STRIDED = "aten.as_strided.default"  # torch's references decompose views to it; strides are irrelevant here
_ELEMENTWISE = frozenset(
    f"prims.{name}.default"
    for name in (
        "add", "atan2", "bitwise_and", "bitwise_or", "bitwise_xor", "div", "eq", "fmax", "fmin", "fmod", "gcd", "ge",
        "gt", "hypot", "igamma", "igammac", "le", "lt", "maximum", "minimum", "mul", "ne", "nextafter", "pow",
        "remainder", "shift_left", "shift_right_arithmetic", "sub", "where", "zeta",
    )
)  # fmt: skip
_VIEWS = frozenset(
    getattr(torch.ops.aten, name)
    for name in (
        "as_strided", "detach", "alias", "select", "slice", "split", "split_with_sizes", "unbind", "unfold", "diagonal",
        "view", "reshape", "_unsafe_view", "chunk",
    )
)  # fmt: skip


@functools.cache
def _table() -> Table:
    """Return torch's decompositions of ATen to Prims, leaving out views."""
    return {
        op: how
        for op, how in decomposition_table.items()
        if isinstance(op, OpOverload) and op.namespace == "aten" and op.overloadpacket not in _VIEWS
    }


@dataclass(frozen=True)
class PrimsDecomposer(Decomposer):
    """A decomposer to Prims, in place; a node stays if its decomposition would depend on strides."""

    @property
    def table(self) -> Table:
        return _table()

    def accepts(self, body: Graph) -> bool:
        return all(op_name(node) != _STRIDED for node in body.nodes if node.op == "call_function")


def is_prim(op: OpOverload) -> bool:
    """Return true for an operator of Prims, and for one of ATen without a decomposition in torch."""
    return op.namespace == "prims" or op not in _table()


def broadcast_scalars(graph: Graph) -> list[tuple[Node, Node]]:
    """Broadcast operands of no dimension of elementwise Prims, in place, which torch's references leave to the Prim.

    Returns:
        Each new node, with the node that reads it.
    """
    added: list[tuple[Node, Node]] = []
    for node in list(graph.nodes):
        if op_name(node) not in _ELEMENTWISE or not (shape := list(tensor(node).shape)):
            continue
        for scalar in [a for a in node.all_input_nodes if not tensor(a).dim()]:
            with graph.inserting_before(node):
                whole = make_like(node, torch.ops.prims.broadcast_in_dim.default, (scalar, shape, []), {})
            node.replace_input_with(scalar, whole)
            added.append((whole, node))
    return added


def _operands(node: Node) -> list[torch.Tensor]:
    values: list[Any] = [a.meta["val"] for a in node.args if isinstance(a, Node)]
    return [value for value in values if isinstance(value, torch.Tensor)]


def one_shape(node: Node) -> bool:
    """Return true if the operands of an elementwise Prim need no broadcasting."""
    if op_name(node) not in _ELEMENTWISE:
        return True
    return len({tuple(map(str, t.shape)) for t in _operands(node)}) <= 1


def one_dtype(node: Node) -> bool:
    """Return true if the operands of an elementwise Prim need no promotion; the condition of `where` is none."""
    if op_name(node) not in _ELEMENTWISE:
        return True
    operands = _operands(node)[1:] if op_name(node) == "prims.where.default" else _operands(node)
    return len({t.dtype for t in operands}) <= 1
