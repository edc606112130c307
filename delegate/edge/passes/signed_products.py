"""Replacement of unsigned products of integers by signed ones.

On a CPU with VNNI, torchao exports `x @ w` in int8 as `(x + 128 in uint8) @ w - 128 * sum(w)`. With this rewrite, all
machines export the same program, and backends match one form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch.fx import Node

from delegate.edge.build import make_like
from delegate.edge.graphs import graph_modules
from delegate.edge.node import arguments, op_name, tensor
from delegate.edge.passes import PassResult
from delegate.edge.program import EdgeProgram

aten = torch.ops.aten
_OFFSET = 128


@dataclass(frozen=True, slots=True)
class SignedProducts:
    """A pass that rewrites unsigned products in place; it runs before constant folding."""

    def __call__(self, program: EdgeProgram) -> PassResult:
        modified = False
        for module in graph_modules(program.graph_module):
            for node in module.graph.find_nodes(op="call_function", target=aten.sub.Tensor):
                modified |= _rewrite(node)
        return PassResult(program, modified)


def _rewrite(sub: Node) -> bool:
    product, correction = sub.args[:2]
    if not _calls(product, "aten._int_mm.default") or arguments(sub)["alpha"] != 1:
        return False
    left, right = product.args
    signed = _signed(left)
    if signed is None or not _is_correction(correction, right):
        return False
    with sub.graph.inserting_before(sub):
        sub.replace_all_uses_with(make_like(product, aten._int_mm.default, (signed, right), {}))
    sub.graph.erase_node(sub)
    return True


def _signed(left: Any) -> Node | None:
    """Return the int8 tensor x if the value is (x in int32 + 128) in uint8, else None."""
    moved = _copied(left, torch.uint8)
    if not _calls(moved, "aten.add.Tensor") or moved.args[1] != _OFFSET or arguments(moved)["alpha"] != 1:
        return None
    signed = _copied(moved.args[0], torch.int32)
    return signed if signed is not None and tensor(signed).dtype is torch.int8 else None


def _copied(node: Any, dtype: torch.dtype) -> Node | None:
    """Return the operand of a conversion to this dtype; None for another node."""
    if not _calls(node, "aten._to_copy.default") or tensor(node).dtype is not dtype:
        return None
    source = node.args[0]
    return source if isinstance(source, Node) else None


def _is_correction(node: Any, right: Any) -> bool:
    """Return true if the node is 128 * sum(right) over the rows, in int32."""
    if not _calls(node, "aten.mul.Tensor") or node.args[1] != _OFFSET:
        return False
    total = node.args[0]
    if not _calls(total, "aten.sum.dim_IntList") or total.args[0] is not right:
        return False
    return list(arguments(total)["dim"]) in ([0], [-2]) and tensor(total).dtype is torch.int32


def _calls(node: Any, name: str) -> TypeGuard[Node]:
    return isinstance(node, Node) and node.op == "call_function" and op_name(node) == name
