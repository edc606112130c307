"""Lowering of scaled dot-product attention to two batched products around a softmax, with masks and grouped heads."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from delegate.backends.lowering import every
from delegate.backends.xnnpack.aot import layout
from delegate.backends.xnnpack.aot.builder import RegionBuilder
from delegate.backends.xnnpack.aot.lowerings.elementwise import binary
from delegate.backends.xnnpack.aot.lowerings.masks import masked_scores
from delegate.backends.xnnpack.aot.lowerings.normalization import softmax
from delegate.backends.xnnpack.aot.lowerings.reduction import LARGEST, reduce
from delegate.backends.xnnpack.aot.lowerings.shape import dynamic_sizes, same_shape
from delegate.backends.xnnpack.aot.lowerings.table import FLOATS, TABLE
from delegate.backends.xnnpack.aot.operand import Operand, shape_of
from delegate.backends.xnnpack.aot.tflite import Array
from delegate.edge.node import arguments, tensor
from delegate.verdict import YES, Reason, Verdict, no


def product(builder: RegionBuilder, a: Operand, b: Operand, shape: tuple[Any, ...], transposed: bool) -> Operand:
    """Emit a @ b, or a @ b.mT if `transposed`, of operands of the same rank.

    b is passed by rows or by columns, as it is stored.
    """
    a = builder.reorder(a, layout.row_major(a.rank))
    swapped = (*range(b.rank - 2), b.rank - 1, b.rank - 2)
    by_columns = b.order == swapped
    b = builder.reorder(b, swapped if by_columns else layout.row_major(b.rank))
    adjoint = transposed != by_columns
    return builder.emit("BATCH_MATMUL", [a, b], shape, None, "BatchMatMulOptions", adjX=False, adjY=adjoint)


def _operands(node: Node) -> Verdict:
    """Query, key and value are float32, float16 or bfloat16, of 2 to 5 dimensions, and none is empty."""
    named = arguments(node)
    for name in ("query", "key", "value"):
        value, shape = tensor(named[name]), shape_of(named[name])
        if value.dtype not in FLOATS:
            kind = str(value.dtype).removeprefix("torch.")
            return no(Reason.DTYPE, f"{name} is {kind}, and XNNPACK computes in float32")
        if not 2 <= len(shape) <= 5:
            return no(Reason.RANK, f"{name} has {len(shape)} dimensions; lowered are 2 to 5")
        if 0 in [s for s in shape if type(s) is int]:
            return no(Reason.ATTRIBUTE, f"{name} has no elements")
        if len(shape) != len(shape_of(named["query"])):
            return no(Reason.RANK, "query, key and value have different numbers of dimensions")
    return YES


def _options(node: Node) -> Verdict:
    """No dropout; a causal mask and the default scale are of sizes known now."""
    named = arguments(node)
    q, k = shape_of(named["query"]), shape_of(named["key"])
    if named["dropout_p"]:
        return no(Reason.ATTRIBUTE, f"dropout of {named['dropout_p']}, for training", "export the model in eval mode")
    if named["scale"] is None and type(q[-1]) is not int:
        return no(Reason.DYNAMIC_SHAPE, f"the default scale of {q[-1]} channels")
    if named["is_causal"] and dynamic_sizes((q[-2], k[-2])):
        return no(
            Reason.DYNAMIC_SHAPE, "a causal mask whose size is known at run time only", "give the mask as an input"
        )
    return YES


def _heads(node: Node) -> Verdict:
    """Batch dimensions are equal, or heads are grouped in (batch, heads, length, channels)."""
    named = arguments(node)
    q, k, v = (shape_of(named[name]) for name in ("query", "key", "value"))
    if same_shape(q[:-2], k[:-2]) and same_shape(k[:-2], v[:-2]):
        return YES
    if not named["enable_gqa"]:
        return no(Reason.ATTRIBUTE, "query, key and value have batch dimensions that broadcast")
    if len(q) != 4 or not same_shape((q[0], *k[1:2]), (k[0], *v[1:2])) or dynamic_sizes((q[1], k[1])):
        return no(Reason.ATTRIBUTE, "grouped heads of another form than (batch, heads, length, channels)")
    if dynamic_sizes(q) > 1:
        return no(Reason.DYNAMIC_SHAPE, f"grouped heads with more than one dynamic size: {[str(s) for s in q]}")
    return YES


def _masked(node: Node) -> Verdict:
    """A mask is float32, float16, bfloat16 or bool."""
    mask = arguments(node)["attn_mask"]
    if mask is None:
        return YES
    kind = tensor(mask).dtype
    if kind is not torch.bool and kind not in FLOATS:
        return no(Reason.DTYPE, f"the mask is {kind}".replace("torch.", ""))
    if len(shape_of(mask)) > len(shape_of(node)):
        return no(Reason.RANK, f"the mask has {len(shape_of(mask))} dimensions")
    return YES


@TABLE.lowers("aten.scaled_dot_product_attention.default", check=every(_operands, _options, _heads, _masked), keep=True)
def lower_attention(builder: RegionBuilder, node: Node) -> None:
    """Lower to softmax(query * scale @ key.mT + mask) @ value. Fully masked rows give 0, as in torch.

    Heads that share a key become rows of one product.
    """
    named, shape = arguments(node), shape_of(node)
    q, k, v = (builder.operand(named[name]) for name in ("query", "key", "value"))
    scale = 1 / math.sqrt(q.shape[-1]) if named["scale"] is None else float(named["scale"])
    scores_shape = (*q.shape[:-1], k.shape[-2])
    q = builder.reorder(q, layout.row_major(q.rank))
    q = q if scale == 1 else binary(builder, "MUL", q, scale)
    rows = q.shape[:-1]
    if not same_shape(q.shape[:-2], k.shape[:-2]):
        groups = q.shape[1] // k.shape[1]
        rows = (q.shape[0], k.shape[1], groups * q.shape[2])
        q = builder.reshape(q, (*rows, q.shape[3]))
    scores = product(builder, q, k, (*rows, k.shape[-2]), transposed=True)
    scores = builder.reshape(scores, scores_shape)
    scores, alive = _add_mask(builder, node, scores)
    weights = builder.reshape(softmax(builder, scores, -1), (*rows, k.shape[-2]))
    output = builder.reshape(product(builder, weights, v, (*rows, v.shape[-1]), transposed=False), shape)
    builder.set(node, output if alive is None else binary(builder, "MUL", output, alive))


def _add_mask(builder: RegionBuilder, node: Node, scores: Operand) -> tuple[Operand, Operand | None]:
    """Return masked scores, and a factor per row that is 0 if the whole row is masked (None: no such row)."""
    named = arguments(node)
    mask = named["attn_mask"]
    if mask is not None and not builder.is_constant(mask):
        if tensor(mask).dtype is torch.bool:
            return masked_scores(builder, mask, scores)
        return _add_computed(builder, builder.operand(mask), scores)
    array = _constant_mask(builder, node)
    if array is None:
        return scores, None
    dead = np.isneginf(array).all(axis=-1, keepdims=True)
    array = np.asarray(np.where(dead, 0, array), np.float32)
    masked = binary(builder, "ADD", scores, builder.constant(array))
    return masked, builder.constant(np.asarray(~dead, np.float32)) if dead.any() else None


def _constant_mask(builder: RegionBuilder, node: Node) -> Array | None:
    named = arguments(node)
    mask = named["attn_mask"]
    if named["is_causal"]:
        length, others = shape_of(named["query"])[-2], shape_of(named["key"])[-2]
        return np.triu(np.full((length, others), -np.inf, np.float32), 1)
    if mask is None:
        return None
    array = builder.array(mask)
    if tensor(mask).dtype is torch.bool:
        array = np.where(array != 0, np.float32(0), np.float32(-np.inf))
    return np.atleast_2d(array)


def _add_computed(builder: RegionBuilder, mask: Operand, scores: Operand) -> tuple[Operand, Operand]:
    """Add a mask that is known at run time only.

    Infinities become the lowest number. That changes the softmax of fully masked rows only. These rows are
    detected on half of the mask, where -inf and the lowest number still differ.
    """
    (mask,) = builder.broadcast([mask], scores.rank, scores.order)
    masked = binary(builder, "ADD", scores, binary(builder, "MAXIMUM", mask, -LARGEST))
    half = binary(builder, "MUL", reduce(builder, "REDUCE_MAX", mask, [mask.rank - 1], keepdim=True), 0.5)
    above = binary(builder, "ADD", binary(builder, "MAXIMUM", half, -2e38), 2e38)
    alive = binary(builder, "MINIMUM", binary(builder, "MUL", above, 1e-36), 1.0)
    return masked, alive
