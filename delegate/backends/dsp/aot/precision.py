"""The check for nodes that the HTP computes in integers; it computes all other nodes in float16."""

from __future__ import annotations

import operator
from collections.abc import Iterator

from torch.fx import Node

from delegate.edge.node import is_constant, op_name, tensors
from delegate.verdict import YES, Reason, Verdict, no

CODING = "quantized_decomposed."
_CLAMPS = frozenset({"aten.relu.default", "aten.hardtanh.default"})  # QNN makes them one with what stands before them


def in_integers(node: Node) -> Verdict:
    """Accept nodes without float16 arithmetic: those from decoded to encoded integers, and the coding itself."""
    if op_name(node).startswith(CODING) or not any(is_float(n) for n in (node, *node.all_input_nodes)):
        return YES
    float_ = next((n for n in _operands(node) if not _is_decoded(n)), None) or next(_readers_of_floats(node), None)
    if float_ is None:
        return YES
    return no(
        Reason.INACCURATE,
        f"{float_.name} is float beside it, which the HTP computes in float16",
        "quantize it, or set precision: float16",
    )


def _operands(node: Node) -> list[Node]:
    """Return the operands of a node; of a clamp, the operands of the node before it."""
    (first, *others) = node.all_input_nodes or [node]
    follows = first.op == "call_function" and len(first.users) == 1
    if op_name(node) in _CLAMPS and follows and not _is_decoded(first):
        return [*first.all_input_nodes, *others]
    return [first, *others]


def _readers_of_floats(node: Node) -> Iterator[Node]:
    """Yield the users that read the node's floats: they neither encode them nor clamp them for an encoding."""
    for user in node.users:
        if user.target is operator.getitem or (op_name(user) in _CLAMPS and len(node.users) == 1):
            yield from (u for u in user.users if not op_name(u).startswith(CODING))
        elif not op_name(user).startswith(CODING):
            yield user


def _is_decoded(node: Node) -> bool:
    return op_name(node).startswith(CODING) or is_constant(node) or not is_float(node)


def is_float(node: Node) -> bool:
    """Return true for a node that gives a tensor of floats."""
    return any(t.dtype.is_floating_point for t in tensors(node))
