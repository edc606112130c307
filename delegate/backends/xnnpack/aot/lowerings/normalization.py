"""Lowerings of normalisations: layer, group, instance and RMS norm; softmax and its logarithm.

All of them work in the order of their operand, because reductions go along any axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch.fx import Node

from delegate.backend.lowering import every, first_result_only
from delegate.backends.xnnpack.aot.builder import RegionBuilder
from delegate.backends.xnnpack.aot.lowerings.elementwise import binary, unary
from delegate.backends.xnnpack.aot.lowerings.reduction import adds_many, deviation, mean_square, reduce
from delegate.backends.xnnpack.aot.lowerings.shape import repeat_each, source
from delegate.backends.xnnpack.aot.lowerings.table import TABLE, floats, propagate_nan_along
from delegate.backends.xnnpack.aot.operand import Operand, shape_of
from delegate.edge.node import arguments
from delegate.verdict import YES, Reason, Verdict, no


def emit_scaled(builder: RegionBuilder, d: Operand, dims: Sequence[int], eps: float) -> Operand:
    """Emit d / sqrt(mean(d * d) + eps)."""
    variance = binary(builder, "ADD", mean_square(builder, d, dims), eps)
    return binary(builder, "MUL", d, unary(builder, "RSQRT", variance))


def affine(builder: RegionBuilder, y: Operand, weight: Any, bias: Any) -> Operand:
    """Emit y * weight + bias, where either may be None, a node or an operand that broadcasts."""
    for name, value in (("MUL", weight), ("ADD", bias)):
        if value is not None:
            (other,) = builder.broadcast([value], y.rank, y.order)
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


def _groupable(node: Node) -> Verdict:
    """The number of channels is known now."""
    channels = shape_of(source(node))[1]
    return YES if type(channels) is int else no(Reason.DYNAMIC_SHAPE, f"{channels} channels")


@TABLE.lowers("aten.group_norm.default", check=every(floats, _groupable), keep=True)
@TABLE.lowers("aten.native_group_norm.default", check=every(floats, _groupable, first_result_only))
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


def _has_dimension(node: Node) -> Verdict:
    """The operand has dimensions."""
    if not shape_of(node):
        return no(Reason.RANK, "a softmax of a tensor without dimensions")
    return YES


@TABLE.lowers("aten._softmax.default", check=every(floats, _has_dimension))
def lower_softmax(builder: RegionBuilder, node: Node) -> None:
    """Lower to one SOFTMAX."""
    builder.set(node, softmax(builder, builder.operand(source(node)), arguments(node)["dim"]))


@TABLE.lowers("aten._log_softmax.default", check=every(floats, _has_dimension))
def lower_log_softmax(builder: RegionBuilder, node: Node) -> None:
    """Lower to x - m - log(sum(exp(x - m))) with the maximum m, since the logarithm of a softmax would underflow."""
    x = builder.operand(source(node))
    dims = [arguments(node)["dim"] % x.rank]
    shifted = binary(builder, "SUB", x, reduce(builder, "REDUCE_MAX", x, dims, keepdim=True))
    total = reduce(builder, "SUM", unary(builder, "EXP", shifted), dims, keepdim=True)
    logarithm = propagate_nan_along(builder, unary(builder, "LOG", total), shifted, dims, keepdim=True)
    builder.set(node, binary(builder, "SUB", shifted, logarithm))
