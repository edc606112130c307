"""Rewrites of quantized layers, so that all machines have one form of them, and each layer its own operands.

On a CPU with VNNI, torchao exports `x @ w` in int8 as `(x + 128 in uint8) @ w - 128 * sum(w)`. With signed products,
all machines export the same program, and backends match one form.

A decoded constant with several users is decoded by one node per layer, and one for the other users. Otherwise a table
of embeddings that is also the last layer's weight would have to leave the layer's backend. And the two calls of one
layer would be one pattern of a backend, without the nodes between them.
"""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
from torch.fx import Graph, Node

from delegate.edge.build import make_like
from delegate.edge.node import arguments, is_constant, op_name, tensor, tensors
from delegate.edge.passes import in_each_graph

aten = torch.ops.aten
_OFFSET = 128


@in_each_graph
def sign_products(graph: Graph) -> None:
    """Rewrite unsigned products as signed ones, in place, before constants are folded."""
    for sub in graph.find_nodes(op="call_function", target=aten.sub.Tensor):
        product, correction = sub.args[:2]
        if not _calls(product, "aten._int_mm.default") or arguments(sub)["alpha"] != 1:
            continue
        left, right = product.args
        signed = _to_signed(left)
        if signed is not None and _is_correction(correction, right):
            with graph.inserting_before(sub):
                sub.replace_all_uses_with(make_like(product, aten._int_mm.default, (signed, right), {}))
            graph.erase_node(sub)


def _to_signed(left: Any) -> Node | None:
    """Return the int8 tensor x if the value is (x in int32 + 128) in uint8, else None."""
    moved = _copy_source(left, torch.uint8)
    if not _calls(moved, "aten.add.Tensor") or moved.args[1] != _OFFSET or arguments(moved)["alpha"] != 1:
        return None
    signed = _copy_source(moved.args[0], torch.int32)
    return signed if signed is not None and tensor(signed).dtype is torch.int8 else None


def _copy_source(node: Any, dtype: torch.dtype) -> Node | None:
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


_SMALL = frozenset({torch.int8, torch.uint8})
_LAYERS = frozenset(f"aten.{name}.default" for name in ("linear", "convolution", "mm", "addmm", "bmm", "matmul"))
_DECODES = ("quantized_decomposed.dequantize_per_", "torchao.dequantize_affine.")


@in_each_graph
def split_decodings(graph: Graph) -> None:
    """Add a separate decoding node for each layer that reads a decoded constant with other users."""
    for node in list(graph.nodes):
        if node.op == "call_function" and _decodes_constant(node):
            layers = [user for user in node.users if _is_layer(user)]
            keeps_own = len(layers) == len(node.users)
            for layer in layers[keeps_own:]:
                with graph.inserting_after(node):
                    own = make_like(node, node.target, node.args, node.kwargs)
                layer.replace_input_with(node, own)


def _decodes_constant(node: Node) -> bool:
    if len(node.users) < 2 or not op_name(node).startswith(_DECODES):
        return False
    held = node.all_input_nodes
    return all(map(is_constant, held)) and tensors(held[0])[0].dtype in _SMALL


def _is_layer(user: Node) -> bool:
    return user.op == "call_function" and op_name(user) in _LAYERS
