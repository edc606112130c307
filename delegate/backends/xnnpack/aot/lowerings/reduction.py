"""Reductions along any dimensions, and what is built on them: norms, variances, logsumexp, normalisations and softmax.

All of them work in the order of their operand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch.fx import Node

from delegate.backend.long_sums import correction_of_mean, is_long, piece_of, reduce_in_stages
from delegate.backend.lowering import every, first_result_only, with_dimensions
from delegate.backends.xnnpack.aot.builder import RegionBuilder
from delegate.backends.xnnpack.aot.lowerings.elementwise import binary, broadcast_operands, unary
from delegate.backends.xnnpack.aot.lowerings.indexing import pad_zeros
from delegate.backends.xnnpack.aot.lowerings.shape import dynamic_sizes, repeat_each, source, without
from delegate.backends.xnnpack.aot.lowerings.table import FLOATS, TABLE, channels_known, floats, propagate_nan_along
from delegate.backends.xnnpack.aot.operand import Operand, shape_of
from delegate.edge.node import arguments, op_name, results_used, tensor
from delegate.verdict import YES, Reason, Verdict, no

REDUCTIONS = {
    "aten.mean.dim": "MEAN",
    "aten.mean.default": "MEAN",
    "aten.sum.dim_IntList": "SUM",
    "aten.amax.default": "REDUCE_MAX",
    "aten.amin.default": "REDUCE_MIN",
    "aten.max.default": "REDUCE_MAX",
    "aten.min.default": "REDUCE_MIN",
}
EXTREMES = {"aten.max.dim": "REDUCE_MAX", "aten.min.dim": "REDUCE_MIN"}
LARGEST = float(np.finfo(np.float32).max)


def reduce(builder: RegionBuilder, name: str, x: Operand, dims: Sequence[int], keepdim: bool) -> Operand:
    """Emit TFLite reductions, e.g. "MEAN", along dimensions of an operand in any order; long sums are in stages."""
    if not dims:
        return x
    stage = partial(_reduce_at_once, builder, name)
    if name not in ("MEAN", "SUM") or not adds_many(x, dims):
        return stage(x, dims, keepdim)
    split = partial(_split, builder)
    y = reduce_in_stages(x, dims, keepdim, shape_of=lambda x: x.shape, split=split, stage=stage)
    correction = correction_of_mean(x.shape, dims) if name == "MEAN" else 1
    return y if correction == 1 else binary(builder, "MUL", y, correction)


def adds_many(x: Operand, dims: Sequence[int]) -> bool:
    """Return true for floats whose sum along dimensions is in stages."""
    return x.type is None and is_long(x.shape, dims, neighbors={*x.order[-len(dims) :]} == {*dims})


def _split(builder: RegionBuilder, x: Operand, dim: int) -> Operand:
    """Split a dimension into pieces, with zeros at the end if they do not divide it."""
    piece = piece_of(x.shape[dim])
    x = pad_zeros(builder, x, {dim: (0, -x.shape[dim] % piece)})
    order = tuple(d + (d > dim) for d in x.order)
    at = order.index(dim) + 1
    return builder.view(
        x, (*x.shape[:dim], x.shape[dim] // piece, piece, *x.shape[dim + 1 :]), (*order[:at], dim + 1, *order[at:])
    )


def _reduce_at_once(builder: RegionBuilder, name: str, x: Operand, dims: Sequence[int], keepdim: bool) -> Operand:
    """Emit one TFLite reduction."""
    axes = builder.numbers(sorted(x.axis(d) for d in dims))
    if keepdim:
        shape: Sequence[Any] = [1 if d in dims else s for d, s in enumerate(x.shape)]
        order = x.order
    else:
        shape = [s for d, s in enumerate(x.shape) if d not in dims]
        order = without(x.order, dims)
    return builder.emit(name, [x, axes], shape, order, "ReducerOptions", keepDims=keepdim)


def dims_of(node: Node) -> list[int]:
    """Return the dimensions of a reduction, none negative: the dimensions in its argument `dim`, or all."""
    rank = len(shape_of(source(node)))
    dims = arguments(node).get("dim")
    requested = [dims] if isinstance(dims, int) else dims
    return sorted({d % rank for d in requested}) if requested and rank else list(range(rank))


def _same_dtype(node: Node) -> Verdict:
    """The reduction is computed in float32, or in the dtype of the operand."""
    dtype = arguments(node).get("dtype")
    if dtype in (None, torch.float32, tensor(source(node)).dtype):
        return YES
    return no(Reason.DTYPE, f"it reduces in {dtype}, but XNNPACK computes in float32".replace("torch.", ""))


@TABLE.lowers(*REDUCTIONS, check=every(floats, _same_dtype))
def lower_reduction(builder: RegionBuilder, node: Node) -> None:
    """Lower to one TFLite reduction."""
    x, keepdim = builder.operand(source(node)), bool(arguments(node).get("keepdim", False))
    name, dims = REDUCTIONS[op_name(node)], dims_of(node)
    y = reduce(builder, name, x, dims, keepdim)
    builder.set(node, y if name in ("MEAN", "SUM") else propagate_nan_along(builder, y, x, dims, keepdim))


def _values_only(node: Node) -> Verdict:
    """Only the values are used; they are float32, float16 or bfloat16, of rank 6 at most, and none is empty."""
    value = node.meta["val"][0]
    if tensor(source(node)).dtype not in FLOATS or value.dim() > 6:
        return floats(source(node))
    if 1 in results_used(node):
        return no(Reason.DTYPE, "its indices are used, but XNNPACK returns only the values")
    return floats(node)


@TABLE.lowers(*EXTREMES, check=_values_only)
def lower_extreme(builder: RegionBuilder, node: Node) -> None:
    """Lower to the values of `max` or `min` along one dimension."""
    x, keepdim = builder.operand(source(node)), arguments(node)["keepdim"]
    dims = dims_of(node)
    y = reduce(builder, EXTREMES[op_name(node)], x, dims, keepdim)
    builder.set(node, propagate_nan_along(builder, y, x, dims, keepdim))


# -- variance ----------------------------------------------------------------------------------------------------------


def deviation(builder: RegionBuilder, x: Operand, dims: Sequence[int], exact: bool = False) -> Operand:
    """Emit x - mean(x); twice if the mean is of many elements, or an exact result is required: the mean is rounded."""
    for _ in range(2 if exact or adds_many(x, dims) else 1):
        x = binary(builder, "SUB", x, reduce(builder, "MEAN", x, dims, keepdim=True))
    return x


def mean_square(builder: RegionBuilder, x: Operand, dims: Sequence[int], keepdim: bool = True) -> Operand:
    """Emit mean(x * x)."""
    return reduce(builder, "MEAN", unary(builder, "SQUARE", x), dims, keepdim)


def _variance_scale(node: Node) -> float | None:
    """Return the factor on the mean of squares: n / (n - correction)."""
    shape = shape_of(source(node))
    correction = arguments(node)["correction"]
    correction = 1 if correction is None else correction
    if correction == 0:
        return 1.0
    sizes = [shape[d] for d in dims_of(node)]
    if dynamic_sizes(sizes) or math.prod(sizes) <= correction:
        return None
    count = math.prod(sizes)
    return float(count / (count - correction))


def _correctable(node: Node) -> Verdict:
    """The divisor of a variance is known now."""
    if _variance_scale(node) is not None:
        return YES
    sizes = [str(shape_of(source(node))[d]) for d in dims_of(node)]
    correction = arguments(node)["correction"]
    return no(
        Reason.DYNAMIC_SHAPE, f"the correction {correction} of a variance over sizes {sizes} is not known ahead of time"
    )


_VARIANCES = ("aten.var.correction", "aten.var_mean.correction")


@TABLE.lowers(*_VARIANCES, check=every(floats, _correctable))
def lower_variance(builder: RegionBuilder, node: Node) -> None:
    """Lower to the mean of squared deviations, corrected."""
    x, dims, keepdim = builder.operand(source(node)), dims_of(node), arguments(node)["keepdim"]
    scale = _variance_scale(node)
    assert scale is not None
    used = results_used(node) if op_name(node) == "aten.var_mean.correction" else {0}
    variance = x
    if 0 in used:
        variance = mean_square(builder, deviation(builder, x, dims, exact=True), dims, keepdim)
        variance = variance if scale == 1 else binary(builder, "MUL", variance, scale)
    mean = reduce(builder, "MEAN", x, dims, keepdim) if 1 in used else x
    builder.set(node, variance, mean)


# -- norms -------------------------------------------------------------------------------------------------------------


def _known_order(node: Node) -> Verdict:
    """The order is 1, 2 or infinity; the norm is computed in float32, or in the dtype of the operand."""
    order = arguments(node)["ord"]
    if order in (1, 2, math.inf):
        return _same_dtype(node)
    return no(Reason.ATTRIBUTE, f"a norm of order {order}; supported are 1, 2 and infinity")


@TABLE.lowers("aten.linalg_vector_norm.default", check=every(floats, _known_order))
def lower_norm(builder: RegionBuilder, node: Node) -> None:
    """Lower to the root of the squares' sum, the sum of absolute values, or their maximum."""
    x, dims, keepdim = builder.operand(source(node)), dims_of(node), bool(arguments(node).get("keepdim", False))
    order = arguments(node)["ord"]
    if order == 2:
        total = reduce(builder, "SUM", unary(builder, "SQUARE", x), dims, keepdim)
        builder.set(node, unary(builder, "SQRT", total))
    else:
        name = "SUM" if order == 1 else "REDUCE_MAX"
        y = reduce(builder, name, unary(builder, "ABS", x), dims, keepdim)
        builder.set(node, y if order == 1 else propagate_nan_along(builder, y, x, dims, keepdim))


@TABLE.lowers("aten.logsumexp.default", check=floats, keep=True)
def lower_logsumexp(builder: RegionBuilder, node: Node) -> None:
    """Lower to log(sum(exp(x - m))) + m with the finite m nearest to the maximum, and at least the maximum.

    The last step changes infinity only, because XNNPACK's kernel for CPUs without AVX-512 gives it a finite logarithm.
    """
    x, dims = builder.operand(source(node)), dims_of(node)
    largest = reduce(builder, "REDUCE_MAX", x, dims, keepdim=True)
    m = binary(builder, "MAXIMUM", binary(builder, "MINIMUM", largest, LARGEST), -LARGEST)
    exponents = unary(builder, "EXP", binary(builder, "SUB", x, m))
    result = binary(builder, "ADD", unary(builder, "LOG", reduce(builder, "SUM", exponents, dims, keepdim=True)), m)
    result = propagate_nan_along(builder, binary(builder, "MAXIMUM", result, largest), x, dims, keepdim=True)
    builder.set(
        node, result if arguments(node)["keepdim"] else builder.view(result, shape_of(node), without(x.order, dims))
    )


def emit_scaled(builder: RegionBuilder, d: Operand, dims: Sequence[int], eps: float) -> Operand:
    """Emit d / sqrt(mean(d * d) + eps)."""
    variance = binary(builder, "ADD", mean_square(builder, d, dims), eps)
    return binary(builder, "MUL", d, unary(builder, "RSQRT", variance))


def affine(builder: RegionBuilder, y: Operand, weight: Any, bias: Any) -> Operand:
    """Emit y * weight + bias, where either may be None, a node or an operand that broadcasts."""
    for name, value in (("MUL", weight), ("ADD", bias)):
        if value is not None:
            (other,) = broadcast_operands(builder, [value], y.rank, y.order)
            y = binary(builder, name, y, other)
    return y


def _last_dims(node: Node, shape: Sequence[Any]) -> list[int]:
    rank = len(shape)
    return list(range(rank - len(arguments(node)["normalized_shape"]), rank))


@TABLE.lowers("aten.layer_norm.default", check=floats, keep=True)
@TABLE.lowers("aten.native_layer_norm.default", check=every(floats, first_result_only))
def lower_layer_norm(builder: RegionBuilder, node: Node) -> None:
    """Lower to the deviation from the mean over its root mean square, along the last dimensions."""
    named, x = arguments(node), builder.operand(source(node))
    dims = _last_dims(node, x.shape)
    y = emit_scaled(builder, deviation(builder, x, dims), dims, named["eps"])
    builder.set(node, affine(builder, y, named["weight"], named["bias"]))


@TABLE.lowers("aten.rms_norm.default", check=floats, keep=True)
def lower_rms_norm(builder: RegionBuilder, node: Node) -> None:
    """Lower to x over its root mean square, along the last dimensions."""
    named, x = arguments(node), builder.operand(source(node))
    eps = torch.finfo(torch.float32).eps if named["eps"] is None else named["eps"]
    builder.set(node, affine(builder, emit_scaled(builder, x, _last_dims(node, x.shape), eps), named["weight"], None))


def _groups(node: Node) -> int:
    named = arguments(node)
    return cast(int, named["num_groups"] if "num_groups" in named else named["group"])


@TABLE.lowers("aten.group_norm.default", check=every(floats, channels_known), keep=True)
@TABLE.lowers("aten.native_group_norm.default", check=every(floats, channels_known, first_result_only))
def lower_group_norm(builder: RegionBuilder, node: Node) -> None:
    """Normalise along all but the first two dimensions and along the channels of a group.

    No view of dynamic sizes is needed.
    """
    named, x, count = arguments(node), builder.operand(source(node)), _groups(node)
    weight, bias = (_per_channel(builder, named[name], x.rank) for name in ("weight", "bias"))
    d = x
    for _ in range(2 if adds_many(x, range(2, x.rank)) else 1):  # as in `deviation`
        d = binary(builder, "SUB", d, _means(builder, d, count))
    variance = binary(builder, "ADD", _means(builder, unary(builder, "SQUARE", d), count), named["eps"])
    scale = affine(builder, unary(builder, "RSQRT", variance), weight, None)
    builder.set(node, affine(builder, binary(builder, "MUL", d, scale), None, bias))


def _means(builder: RegionBuilder, x: Operand, count: int) -> Operand:
    """Emit the mean of each channel's group: (batch, channels, 1, ...)."""
    dims, channels = list(range(2, x.rank)), cast(int, x.shape[1]) // count
    channel_means = reduce(builder, "MEAN", x, dims, keepdim=True) if dims else x
    group_means = reduce(
        builder, "MEAN", builder.reshape(channel_means, (x.shape[0], count, channels)), [2], keepdim=True
    )
    spread = repeat_each(builder, group_means, {2: channels}, inner=False)
    return builder.reorder(builder.reshape(spread, channel_means.shape), x.order)


def _per_channel(builder: RegionBuilder, parameter: Node | None, rank: int) -> Operand | None:
    """Return a value per channel, in a shape that broadcasts to (batch, channels, ...)."""
    if parameter is None:
        return None
    shape = (-1, *(1,) * (rank - 2))
    if builder.is_constant(parameter):
        return builder.constant(builder.array(parameter).reshape(shape))
    return builder.reshape(builder.operand(parameter), (*shape_of(parameter), *shape[1:]))


def _own_statistics(node: Node) -> Verdict:
    """The norm has no running statistics."""
    named = arguments(node)
    if named["use_input_stats"] and named["running_mean"] is None:
        return YES
    return no(Reason.ATTRIBUTE, "an instance norm with running statistics", "set track_running_stats=False")


@TABLE.lowers("aten.instance_norm.default", check=every(floats, _own_statistics), keep=True)
def lower_instance_norm(builder: RegionBuilder, node: Node) -> None:
    """Normalise every channel of every sample along the remaining dimensions."""
    named, x = arguments(node), builder.operand(source(node))
    dims = list(range(2, x.rank))
    y = emit_scaled(builder, deviation(builder, x, dims), dims, named["eps"])
    builder.set(node, affine(builder, y, *(_per_channel(builder, named[name], x.rank) for name in ("weight", "bias"))))


# -- softmax -----------------------------------------------------------------------------------------------------------


def softmax(builder: RegionBuilder, x: Operand, dim: int) -> Operand:
    """Emit a softmax along a dimension, which TFLite requires to be last in memory."""
    dim %= x.rank
    x = builder.reorder(x, (*(d for d in x.order if d != dim), dim))
    return builder.emit("SOFTMAX", [x], x.shape, x.order, "SoftmaxOptions", beta=1.0)


@TABLE.lowers("aten._softmax.default", check=every(floats, with_dimensions))
def lower_softmax(builder: RegionBuilder, node: Node) -> None:
    """Lower to one SOFTMAX."""
    builder.set(node, softmax(builder, builder.operand(source(node)), arguments(node)["dim"]))


@TABLE.lowers("aten._log_softmax.default", check=every(floats, with_dimensions))
def lower_log_softmax(builder: RegionBuilder, node: Node) -> None:
    """Lower to x - m - log(sum(exp(x - m))) with the maximum m, since the logarithm of a softmax would underflow."""
    x = builder.operand(source(node))
    dims = [arguments(node)["dim"] % x.rank]
    shifted = binary(builder, "SUB", x, reduce(builder, "REDUCE_MAX", x, dims, keepdim=True))
    total = reduce(builder, "SUM", unary(builder, "EXP", shifted), dims, keepdim=True)
    logarithm = propagate_nan_along(builder, unary(builder, "LOG", total), shifted, dims, keepdim=True)
    builder.set(node, binary(builder, "SUB", shifted, logarithm))
