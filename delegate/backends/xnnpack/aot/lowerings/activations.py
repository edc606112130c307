"""Activations and inference batch normalisation, as XNNPACK's own operators or short exact combinations of them."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
from ai_edge_litert.schema_py_generated import ActivationFunctionType as Fused
from torch.fx import Node

from delegate.backend.aot import RegionRefused
from delegate.backend.lowering import every, first_result_only, no_nan, with_dimensions
from delegate.backends.xnnpack.aot.builder import RegionBuilder
from delegate.backends.xnnpack.aot.lowerings.elementwise import Formula, binary, unary
from delegate.backends.xnnpack.aot.lowerings.table import TABLE, arg, constant, floats
from delegate.backends.xnnpack.aot.operand import SIGMOID, Operand, shape_of
from delegate.edge.node import arguments, op_name, tensor
from delegate.verdict import YES, Reason, Verdict, no

_LINEAR, _OVERFLOW = 15, 88  # from 15 on, softplus(x) equals x in float32; beyond 88, torch's formula overflows
_SMALLEST, _LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
_CLAMPS = {(0.0, math.inf): "RELU", (0.0, 6.0): "RELU6", (-1.0, 1.0): "RELU_N1_TO_1"}


def clamp(builder: RegionBuilder, x: Operand, low: float, high: float) -> Operand:
    """Clamp x between two numbers; -inf and inf stand for no bound."""
    name = _CLAMPS.get((low, high))
    if name:
        return unary(builder, name, x)
    x = binary(builder, "MAXIMUM", x, low) if low > -math.inf else x
    return binary(builder, "MINIMUM", x, high) if high < math.inf else x


# -- clamps ------------------------------------------------------------------------------------------------------------


@TABLE.lowers("aten.hardtanh.default", check=every(floats, no_nan))
def hardtanh(builder: RegionBuilder, node: Node) -> None:
    """Lower to a clamp; its default bounds are -1 and 1."""
    low, high = (float(cast(float, v)) for v in (arg(node, 1, -1), arg(node, 2, 1)))
    builder.set(node, clamp(builder, builder.operand(node.args[0]), low, high))


@TABLE.lowers("aten.clamp.default", check=every(floats, no_nan))
def lower_clamp(builder: RegionBuilder, node: Node) -> None:
    """Lower to a clamp between numbers; None stands for no bound."""
    low, high = arg(node, 1, node.kwargs.get("min")), arg(node, 2, node.kwargs.get("max"))
    low, high = -math.inf if low is None else float(low), math.inf if high is None else float(high)
    builder.set(node, clamp(builder, builder.operand(node.args[0]), low, high))


# -- rectifiers --------------------------------------------------------------------------------------------------------


def _slope(node: Node) -> Verdict:
    """The negative slope is a normal number, or 0 of a tensor with dimensions."""
    slope = arg(node, 1, 0.01)
    if not slope:
        return with_dimensions(node)
    return YES if _is_normal(slope) else no(Reason.ATTRIBUTE, f"the negative slope {slope} is not a normal number")


def _is_normal(number: float) -> bool:
    """Return true for a number that is normal and finite in float32."""
    return _SMALLEST <= abs(number) <= _LARGEST


@TABLE.lowers("aten.leaky_relu.default", check=every(floats, _slope))
def leaky_relu(builder: RegionBuilder, node: Node) -> None:
    """Lower to LEAKY_RELU, or to PRELU for a slope of 0, which LEAKY_RELU rejects."""
    slope = float(arg(node, 1, 0.01))
    x = builder.operand(node.args[0])
    if slope == 0:
        slopes = builder.constant(np.full((1,) * x.rank, slope, np.float32), x.order)
        builder.set(node, builder.emit("PRELU", [x, slopes], x.shape, x.order))
    else:
        builder.set(node, unary(builder, "LEAKY_RELU", x, "LeakyReluOptions", alpha=slope))


@TABLE.lowers("aten.prelu.default", check=every(floats, with_dimensions, constant((1, "weight"))), keep=True)
def prelu(builder: RegionBuilder, node: Node) -> None:
    """Lower to PRELU with one slope per channel, or one slope for all."""
    x = builder.operand(node.args[0])
    weight = builder.array(cast(Node, node.args[1]))
    if not np.isfinite(weight).all():
        raise RegionRefused({node.name: "a slope is infinite or NaN, but XNNPACK returns zeros unchanged"})
    if weight.ndim == 1 and x.rank > 1:
        weight = weight.reshape(-1, *[1] * (x.rank - 2))
    weight = weight.reshape((1,) * (x.rank - weight.ndim) + weight.shape)
    builder.set(node, builder.emit("PRELU", [x, builder.constant(weight, x.order)], x.shape, x.order))


def _factors(node: Node) -> Verdict:
    """The product of alpha and scale, and the scales, are finite; the input scale is not negative."""
    alpha, scale, input_scale = (float(arg(node, i, 1)) for i in (1, 2, 3))
    if abs(alpha * scale) <= _LARGEST and abs(scale) <= _LARGEST and 0 <= input_scale <= _LARGEST:
        return YES
    return no(Reason.ATTRIBUTE, f"alpha={alpha}, scale={scale}, input_scale={input_scale}")


@TABLE.lowers("aten.elu.default", check=every(floats, _factors))
def elu(builder: RegionBuilder, node: Node) -> None:
    """Lower to an ELU with alpha, scale and input scale."""
    alpha, scale, input_scale = (float(arg(node, i, 1)) for i in (1, 2, 3))
    builder.set(node, _elu(builder, builder.operand(node.args[0]), alpha, scale, input_scale))


def _elu(builder: RegionBuilder, x: Operand, alpha: float, scale: float, input_scale: float) -> Operand:
    """Emit scale * (max(x, 0) + alpha * expm1(min(input_scale * x, 0))), which is TFLite's ELU if all three are 1."""
    if alpha == scale == input_scale == 1:
        return unary(builder, "ELU", x)
    below = binary(builder, "MINIMUM", x, 0.0)
    below = below if input_scale == 1 else binary(builder, "MUL", below, input_scale)
    below = binary(builder, "MUL", unary(builder, "ELU", below), alpha * scale)
    above = unary(builder, "RELU", x)
    above = above if scale == 1 else binary(builder, "MUL", above, scale)
    return binary(builder, "ADD", above, below)


# -- smooth activations ------------------------------------------------------------------------------------------------


@TABLE.lowers("aten.gelu.default", check=floats)
def gelu(builder: RegionBuilder, node: Node) -> None:
    """Lower to GELU, exact or approximated by tanh."""
    approximate = node.kwargs.get("approximate", "none") == "tanh"
    x = builder.operand(node.args[0])
    builder.set(node, unary(builder, "GELU", x, "GeluOptions", approximate=approximate))


def _fixed_split_size(node: Node) -> Verdict:
    """The dimension that is halved has a fixed size."""
    named = arguments(node)
    size = tensor(named["self"]).shape[named["dim"]]
    return (
        YES
        if isinstance(size, int)
        else no(Reason.DYNAMIC_SHAPE, f"the dimension to halve has the dynamic size {size}")
    )


@TABLE.lowers("aten.glu.default", check=every(floats, _fixed_split_size), keep=True)
def glu(builder: RegionBuilder, node: Node) -> None:
    """Lower to the first half times the sigmoid of the second half."""
    x = builder.operand(node.args[0])
    axis = builder.numbers(x.axis(arguments(node)["dim"] % x.rank))
    first, second = builder.emit_many("SPLIT", [axis, x], [shape_of(node)] * 2, x.order, "SplitOptions", numSplits=2)
    builder.set(node, _gate(builder, first, second))


def log1p_exp(builder: RegionBuilder, x: Operand) -> Operand:
    """Emit log(1 + exp(-|x|)), to full precision even if the result is tiny.

    With e = exp(-|x|) <= 1 and z = e / (2 + e), the result is 2 * atanh(z), whose series converges fast for z <= 1/3.
    """
    e = unary(builder, "EXP", unary(builder, "NEG", unary(builder, "ABS", x)))
    z = binary(builder, "DIV", e, binary(builder, "ADD", e, 2.0))
    square = unary(builder, "SQUARE", z)
    series = binary(builder, "MUL", square, 1 / 13)
    for divisor in (11, 9, 7, 5, 3):
        series = binary(builder, "MUL", binary(builder, "ADD", series, 1 / divisor), square)
    return binary(builder, "MUL", binary(builder, "ADD", series, 1.0), binary(builder, "MUL", z, 2.0))


def _threshold(node: Node) -> Verdict:
    """The threshold is so high that the result has no step there, and so low that torch's formula does not overflow.
    The number beta and its reciprocal are normal numbers.
    """
    beta, threshold = arg(node, 1, 1), arg(node, 2, 20)
    if not _LINEAR <= threshold <= _OVERFLOW:
        return no(
            Reason.INACCURATE, f"torch returns x itself above the threshold {threshold}, which is a step in the result"
        )
    if not (_is_normal(beta) and _is_normal(1 / beta)):
        return no(Reason.ATTRIBUTE, f"beta={beta}")
    return YES


@TABLE.lowers("aten.softplus.default", check=every(floats, _threshold), keep=True)
def softplus(builder: RegionBuilder, node: Node) -> None:
    """Lower to x beyond 0, plus log(1 + exp(-|beta * x|)) / beta, which needs no threshold."""
    beta = float(arg(node, 1, 1))
    x = builder.operand(node.args[0])
    beyond = unary(builder, "RELU", x) if beta > 0 else binary(builder, "MINIMUM", x, 0.0)
    tail = log1p_exp(builder, x if beta == 1 else binary(builder, "MUL", x, beta))
    builder.set(node, binary(builder, "ADD", beyond, tail if beta == 1 else binary(builder, "MUL", tail, 1 / beta)))


def _gate(builder: RegionBuilder, x: Operand, gate: Operand) -> Operand:
    """Emit x * sigmoid(gate)."""
    with builder.intermediate(SIGMOID):
        sigmoid = unary(builder, "LOGISTIC", gate)
    return binary(builder, "MUL", x, sigmoid)


def _hardsigmoid(builder: RegionBuilder, x: Operand) -> Operand:
    """Emit relu6(x + 3) / 6."""
    operands = [x, builder.scalar(3.0)]
    shifted = builder.emit("ADD", operands, x.shape, x.order, "AddOptions", fusedActivationFunction=Fused.RELU6)
    return binary(builder, "MUL", shifted, 1 / 6)


def _log_sigmoid(builder: RegionBuilder, x: Operand) -> Operand:
    """Emit min(x, 0) - log(1 + exp(-|x|))."""
    return binary(builder, "SUB", binary(builder, "MINIMUM", x, 0.0), log1p_exp(builder, x))


KEPT: dict[str, Formula] = {
    "aten.hardsigmoid.default": _hardsigmoid,
    "aten.hardswish.default": lambda b, x: unary(b, "HARD_SWISH", x),  # x * relu6(x + 3) / 6
    "aten.log_sigmoid.default": _log_sigmoid,
    "aten.silu.default": lambda b, x: _gate(b, x, x),
}


@TABLE.lowers(*KEPT, check=floats, keep=True)
def lower_kept(builder: RegionBuilder, node: Node) -> None:
    """Lower to the operator's formula."""
    builder.set(node, KEPT[op_name(node)](builder, builder.operand(node.args[0])))


# -- batch normalisation -----------------------------------------------------------------------------------------------


@TABLE.lowers(
    "aten._native_batch_norm_legit_no_training.default",
    check=every(
        floats, constant((1, "weight"), (2, "bias"), (3, "running mean"), (4, "running variance")), first_result_only
    ),
)
def batch_norm(builder: RegionBuilder, node: Node) -> None:
    """Lower to x * scale + shift per channel, which passes fold into a preceding convolution."""
    x_node, weight, bias, mean, var, _, eps = cast(Any, node.args)
    x = builder.operand(x_node)
    scale = 1 / np.sqrt(builder.array(var).astype(np.float64) + eps)
    scale = scale if weight is None else scale * builder.array(weight)
    shift = -builder.array(mean) * scale + (0 if bias is None else builder.array(bias))
    shape = (-1, *[1] * (len(shape_of(x_node)) - 2))
    y = x
    for name, numbers in (("MUL", scale), ("ADD", shift)):
        rank = max(x.rank, 2)
        coefficients = numbers.astype(np.float32).reshape(shape)
        coefficients = coefficients.reshape((1,) * (rank - coefficients.ndim) + coefficients.shape)
        y = binary(builder, name, y, builder.constant(coefficients, x.order))
    builder.set(node, y)
