"""Lowerings of scaled dot-product attention and of masks.

Attention becomes two batched products around a softmax, with masks and grouped heads. Constant masks become bounds;
masks computed at run time are inputs that hold 0 and 1.

XNNPACK has no booleans, so the runtime part writes a mask into the model's input as floats. Tensors derived from a mask
are computed once for all layers.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch.fx import Node

from delegate.backend.aot import RegionRefused
from delegate.backend.lowering import every
from delegate.backends.xnnpack.aot import layout
from delegate.backends.xnnpack.aot.builder import RegionBuilder
from delegate.backends.xnnpack.aot.lowerings.elementwise import binary, broadcast_operands, common_order
from delegate.backends.xnnpack.aot.lowerings.layers import batch_matmul
from delegate.backends.xnnpack.aot.lowerings.reduction import LARGEST, reduce, softmax
from delegate.backends.xnnpack.aot.lowerings.shape import RESHAPES, dynamic_sizes, relabel, same_shape
from delegate.backends.xnnpack.aot.lowerings.table import TABLE, float_tensor, floats_beside
from delegate.backends.xnnpack.aot.operand import Operand, shape_of
from delegate.backends.xnnpack.aot.tflite import Array
from delegate.edge.node import arguments, is_constant, op_name, tensor
from delegate.verdict import YES, Reason, Verdict, no

Value = Node | float

_PRODUCTS = frozenset(
    f"aten.{name}.default" for name in ("mm", "bmm", "matmul", "addmm", "baddbmm", "linear", "einsum")
)
_FILLS = ("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
_ARITHMETIC = tuple(f"aten.{name}.{form}" for name in ("add", "sub", "mul", "div") for form in ("Tensor", "Scalar"))
_MOVES = ("aten.expand.default", "aten.clone.default", "aten.permute.default", *RESHAPES)
_ON_SCORES = frozenset((*_ARITHMETIC, *_MOVES, *_FILLS, "aten.where.self"))
_SOFTMAX = frozenset({"aten._softmax.default", "aten._safe_softmax.default"})
_MAX_DISTANCE = 12  # operators between a product, its masks, and the softmax


# -- checks ------------------------------------------------------------------------------------------------------------


def _maskable(node: Node) -> Verdict:
    """The values are float32, float16 or bfloat16, of the result's shape or constants.
    A mask that is known at run time only masks scores before a softmax.
    """
    mask, masked, value = _mask_and_values(node)
    for operand in (node, masked, value):
        verdict = float_tensor(operand.meta["val"], node, operand) if isinstance(operand, Node) else YES
        if not verdict:
            return verdict
    for operand in (masked, value):
        if isinstance(operand, Node) and not is_constant(operand) and not same_shape(shape_of(operand), shape_of(node)):
            return no(Reason.ATTRIBUTE, f"{operand.name} broadcasts, so masking it would not give the result's shape")
    return YES if is_constant(mask) else _masks_scores(mask, masked, value, node)


def _masks_scores(mask: Node, masked: Value, value: Value, node: Node) -> Verdict:
    """Check that a mask masks scores before a softmax.

    Other masks may be there to remove NaN, which bounds propagate.
    """
    if tensor(mask).dtype is not torch.bool:
        return no(Reason.DTYPE, f"the mask {mask.name} is {tensor(mask).dtype}".replace("torch.", ""))
    if isinstance(value, Node) and not is_constant(value):
        masked, value = value, masked
    if isinstance(value, Node) and not (is_constant(value) and tensor(value).numel() == 1):
        return no(Reason.NON_CONSTANT, f"the mask {mask.name} and both values are computed at run time")
    if not isinstance(masked, Node) or is_constant(masked):
        return no(Reason.NON_CONSTANT, f"the mask {mask.name} picks one of two constants, outside of any partition")
    if not _is_product(masked, _MAX_DISTANCE) or not _is_softmaxed(node, _MAX_DISTANCE):
        what = f"the mask {mask.name} is computed at run time, and it does not mask the scores"
        return no(
            Reason.INACCURATE, f"{what} of a softmax: NaN in masked elements would remain", "multiply with the mask"
        )
    return YES


def _is_product(node: Node, distance: int) -> bool:
    if op_name(node) in _PRODUCTS:
        return True
    if node.op != "call_function" or op_name(node) not in _ON_SCORES or not distance:
        return False
    floats = (n for n in node.all_input_nodes if not is_constant(n) and _is_float(n))
    return any(_is_product(n, distance - 1) for n in floats)


def _is_float(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _is_softmaxed(node: Node, distance: int) -> bool:
    if op_name(node) in _SOFTMAX:
        return True
    if node.op != "call_function" or op_name(node) not in _ON_SCORES | _PRODUCTS or not distance:
        return False
    return bool(node.users) and all(op_name(u) not in _PRODUCTS and _is_softmaxed(u, distance - 1) for u in node.users)


def _mask_and_values(node: Node) -> tuple[Node, Value, Value]:
    """Return the mask, the values for true elements, and the values for false elements."""
    if op_name(node) in _FILLS:
        x, mask, value = cast(Any, node.args)
        return mask, value, x
    return cast(tuple[Node, Value, Value], node.args)


# -- where and masked_fill ---------------------------------------------------------------------------------------------


@TABLE.lowers("aten.where.self", check=_maskable)
@TABLE.lowers(*_FILLS, check=_maskable, keep=True)
def lower_masked(builder: RegionBuilder, node: Node) -> None:
    """Lower to bounds that keep an element or force it to a constant: exact, also for infinities (NaN stays NaN)."""
    mask, x, y = _mask_and_values(node)
    forced = _force if builder.is_constant(mask) else _force_at_run_time
    if _is_known(builder, y):
        builder.set(node, forced(builder, node, cast(Node, x), mask, True, _array(builder, y)))
    elif _is_known(builder, x):
        builder.set(node, forced(builder, node, cast(Node, y), mask, False, _array(builder, x)))
    else:
        zero = np.zeros((), np.float32)
        terms = [_force(builder, node, cast(Node, value), mask, free, zero) for value, free in ((x, True), (y, False))]
        order = common_order(builder, terms, shape_of(node))
        operands = broadcast_operands(builder, terms, len(shape_of(node)), order)
        builder.set(node, builder.emit("ADD", operands, shape_of(node), order, "AddOptions"))


def _is_known(builder: RegionBuilder, value: Value) -> bool:
    return not isinstance(value, Node) or builder.is_constant(value)


def _array(builder: RegionBuilder, value: Value) -> Array:
    return builder.array(value) if isinstance(value, Node) else np.asarray(value, np.float32)


def _force(builder: RegionBuilder, node: Node, x: Node, mask: Node, free: bool, value: Array) -> Operand:
    """Emit x where the constant mask equals `free`, and `value` otherwise."""
    _refuse_unforced(node, value)
    is_free = (builder.array(mask) != 0) == free
    result, rank = builder.operand(x), len(shape_of(node))
    for name, neutral in (("MAXIMUM", -np.inf), ("MINIMUM", np.inf)):
        bound = np.where(is_free, np.float32(neutral), value).astype(np.float32)
        if (bound != neutral).any():
            full = builder.constant(bound.reshape((1,) * (rank - bound.ndim) + bound.shape), result.order)
            result = builder.emit(name, [full, result], result.shape, result.order)  # NaN of result is propagated
    return result


def _force_at_run_time(builder: RegionBuilder, node: Node, x: Node, mask: Node, free: bool, value: Array) -> Operand:
    """Emit the same for a mask known at run time: its bounds are infinite where x is free, otherwise one value."""
    _refuse_unforced(node, value)
    result, number = builder.operand(x), float(value.reshape(()))
    for name, other, neutral in (("MAXIMUM", "MINIMUM", -math.inf), ("MINIMUM", "MAXIMUM", math.inf)):
        if number != neutral:
            sign = neutral if free else -neutral
            key = (name, mask, sign, number, result.rank, result.order)
            bound = builder.once(key, partial(_bound, builder, mask, result, other, sign, number))
            result = builder.emit(name, [bound, result], result.shape, result.order)  # NaN of result is propagated
    return result


def _bound(builder: RegionBuilder, mask: Node, x: Operand, name: str, at_true: float, number: float) -> Operand:
    """Emit an infinity where the mask is true, and the opposite one, bounded by the number, where it is false."""
    (truths,) = broadcast_operands(builder, [builder.operand(mask)], x.rank, x.order)
    infinite = binary(builder, "MUL", binary(builder, "SUB", truths, 0.5), at_true)
    return infinite if number == -at_true else binary(builder, name, infinite, number)


# -- attention masks -------------------------------------------------------------------------------------------------


def mask_scores(builder: RegionBuilder, mask: Node, scores: Operand) -> tuple[Operand, Operand]:
    """Return scores with a boolean mask known at run time, and a factor per row: 0 if the row is masked.

    Masked scores become the lowest number, for which softmax gives 0.
    """
    key = (mask, scores.rank, scores.order)

    def broadcast() -> Operand:
        return broadcast_operands(builder, [builder.operand(mask)], scores.rank, scores.order)[0]

    truths = builder.once(key, broadcast)
    lowest = builder.once(
        (*key, "lowest"), lambda: binary(builder, "MUL", binary(builder, "SUB", truths, 1.0), LARGEST)
    )
    alive = builder.once(
        (*key, "alive"), lambda: reduce(builder, "REDUCE_MAX", truths, [truths.rank - 1], keepdim=True)
    )
    return binary(builder, "ADD", scores, lowest), alive


def _refuse_unforced(node: Node, value: Array) -> None:
    if np.isnan(value).any() or (np.signbit(value) & (value == 0)).any():
        raise RegionRefused({node.name: "it masks with NaN or -0.0, which a minimum and a maximum cannot produce"})


def _of_one_rank(node: Node) -> Verdict:
    """Query, key and value have 2 to 5 dimensions, all of them as many."""
    named = arguments(node)
    ranks = {len(shape_of(named[name])) for name in ("query", "key", "value")}
    if len(ranks) == 1 and ranks <= {2, 3, 4, 5}:
        return YES
    return no(Reason.RANK, f"query, key and value have {' and '.join(map(str, sorted(ranks)))} dimensions")


def _options(node: Node) -> Verdict:
    """No dropout; a causal mask and the default scale are of sizes known now."""
    named = arguments(node)
    q, k = shape_of(named["query"]), shape_of(named["key"])
    if named["dropout_p"]:
        return no(
            Reason.ATTRIBUTE,
            f"the dropout probability is {named['dropout_p']}, as in training",
            "export the model in eval mode",
        )
    if named["scale"] is None and type(q[-1]) is not int:
        return no(Reason.DYNAMIC_SHAPE, f"the default scale depends on the dynamic number of channels {q[-1]}")
    if named["is_causal"] and dynamic_sizes((q[-2], k[-2])):
        return no(
            Reason.DYNAMIC_SHAPE, "a causal mask whose size is known only at run time", "pass the mask as an input"
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
        return no(Reason.ATTRIBUTE, "grouped heads in a layout other than (batch, heads, length, channels)")
    if dynamic_sizes(q) > 1:
        return no(Reason.DYNAMIC_SHAPE, f"grouped heads with more than one dynamic size: {[str(s) for s in q]}")
    return YES


@TABLE.lowers(
    "aten.scaled_dot_product_attention.default",
    check=every(floats_beside(torch.bool), _of_one_rank, _options, _heads),
    keep=True,
)
def lower_attention(builder: RegionBuilder, node: Node) -> None:
    """Lower to softmax(query * scale @ key.mT + mask) @ value, where fully masked rows give 0, as in torch.

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
    columns = relabel(k, (*range(k.rank - 2), k.rank - 1, k.rank - 2))
    scores = batch_matmul(builder, q, columns, (*rows, k.shape[-2]))
    scores = builder.reshape(scores, scores_shape)
    scores, alive = _add_mask(builder, node, scores)
    weights = builder.reshape(softmax(builder, scores, -1), (*rows, k.shape[-2]))
    output = builder.reshape(batch_matmul(builder, weights, v, (*rows, v.shape[-1])), shape)
    builder.set(node, output if alive is None else binary(builder, "MUL", output, alive))


def _add_mask(builder: RegionBuilder, node: Node, scores: Operand) -> tuple[Operand, Operand | None]:
    """Return masked scores, and a factor per row that is 0 if the whole row is masked (None: no such row)."""
    named = arguments(node)
    mask = named["attn_mask"]
    if mask is not None and not builder.is_constant(mask):
        if tensor(mask).dtype is torch.bool:
            return mask_scores(builder, mask, scores)
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

    Infinities become the lowest number, which changes the softmax of fully masked rows only. These rows are
    detected on half of the mask, where -inf and the lowest number still differ.
    """
    (mask,) = broadcast_operands(builder, [mask], scores.rank, scores.order)
    masked = binary(builder, "ADD", scores, binary(builder, "MAXIMUM", mask, -LARGEST))
    half = binary(builder, "MUL", reduce(builder, "REDUCE_MAX", mask, [mask.rank - 1], keepdim=True), 0.5)
    above = binary(builder, "ADD", binary(builder, "MAXIMUM", half, -2e38), 2e38)
    alive = binary(builder, "MINIMUM", binary(builder, "MUL", above, 1e-36), 1.0)
    return masked, alive
