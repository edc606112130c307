"""Elementwise operators: unary, binary with broadcasting and scalars, powers and quotients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch.fx import Node

from delegate.backend.aot import RegionRefused
from delegate.backend.lowering import every, no_nan
from delegate.backends.xnnpack.aot.builder import RegionBuilder
from delegate.backends.xnnpack.aot.lowerings.shape import same_shape
from delegate.backends.xnnpack.aot.lowerings.table import (
    TABLE,
    arg,
    floats,
    floats_beside,
    propagate_nan,
    propagate_nan_of_log,
    propagate_nan_of_operand,
    whole_precision,
    without_large_angles,
)
from delegate.backends.xnnpack.aot.operand import Operand, shape_of
from delegate.edge.node import op_name
from delegate.verdict import YES, Reason, Verdict, no

UNARY = {
    "aten.abs.default": "ABS",
    "aten.cos.default": "COS",
    "aten.exp.default": "EXP",
    "aten.log.default": "LOG",
    "aten.sigmoid.default": "LOGISTIC",
    "aten.sin.default": "SIN",
    "aten.sqrt.default": "SQRT",
    "aten.tanh.default": "TANH",
    "aten.relu.default": "RELU",
}
JUMPS = {"aten.ceil.default": "CEIL", "aten.floor.default": "FLOOR", "aten.round.default": "ROUND"}
_PREPARE = {"COS": without_large_angles, "SIN": without_large_angles}
_PROPAGATE_NAN = {"EXP": propagate_nan, "LOG": propagate_nan_of_log}
EXTREMES = ("MAXIMUM", "MINIMUM")
_TABLES = {"ADD": "AddOptions", "SUB": "SubOptions", "MUL": "MulOptions", "DIV": "DivOptions"}
BINARY = {
    "aten.mul.Scalar": "MUL",
    "aten.div.Tensor": "DIV",
    "aten.div.Scalar": "DIV",
    "aten.maximum.default": "MAXIMUM",
    "aten.minimum.default": "MINIMUM",
}


def unary(builder: RegionBuilder, name: str, x: Operand, table: str = "", **options: Any) -> Operand:
    """Emit an elementwise operator of one operand, in the operand's order."""
    return builder.emit(name, [x], x.shape, x.order, table, **options)


def binary(builder: RegionBuilder, name: str, x: Operand, y: Operand | float) -> Operand:
    """Emit an operator of two operands of the same shape and order, or of an operand and a number."""
    other = y if isinstance(y, Operand) else builder.scalar(y)
    return builder.emit(name, [x, other], x.shape, x.order, _TABLES.get(name, ""))


def broadcasting(builder: RegionBuilder, node: Node, name: str, arguments: Sequence[Any]) -> Operand:
    """Emit a binary operator on two nodes or numbers, in the order that moves the fewest elements."""
    shape = shape_of(node)
    order = builder.common_order(arguments, len(shape))
    operands = builder.broadcast(arguments, len(shape), order)
    return builder.emit(name, operands, shape, order, _TABLES.get(name, ""))


def extreme(builder: RegionBuilder, node: Node, name: str, arguments: Sequence[Any]) -> Operand:
    """Emit a MAXIMUM or MINIMUM that propagates NaN of both operands.

    Constants go first, because NaN of the second operand is propagated by XNNPACK.

    Raises:
        RegionRefused: a constant has NaN, which would be lost.
    """
    first, second = arguments
    if not _varies(builder, second):
        first, second = second, first
    if isinstance(first, Node) and builder.is_constant(first) and np.isnan(builder.array(first)).any():
        raise RegionRefused(
            {node.name: f"the constant {first.name} has NaN, which XNNPACK's maximum and minimum do not propagate"}
        )
    y = broadcasting(builder, node, name, (first, second))
    if not _varies(builder, first):
        return y
    operands = builder.broadcast([first, second], y.rank, y.order)
    is_broadcast = not same_shape(operands[0].shape, operands[1].shape)  # XNNPACK may swap such operands
    for x in operands[: 2 if is_broadcast else 1]:
        y = propagate_nan_of_operand(builder, y, x)
    return y


def _varies(builder: RegionBuilder, value: Any) -> bool:
    return isinstance(value, Operand) or (isinstance(value, Node) and not builder.is_constant(value))


def _numbers(node: Node) -> Verdict:
    """Scalars are real numbers."""
    for argument in (*node.args, *node.kwargs.values()):
        if isinstance(argument, complex):
            return no(Reason.DTYPE, f"argument {argument} is complex")
    return YES


simple = every(floats, _numbers)


@TABLE.lowers(*UNARY, check=floats)
def lower_unary(builder: RegionBuilder, node: Node) -> None:
    """Lower to one TFLite operator."""
    name, x = UNARY[op_name(node)], builder.operand(node.args[0])
    y = unary(builder, name, _PREPARE[name](builder, x) if name in _PREPARE else x)
    builder.set(node, _PROPAGATE_NAN[name](builder, y, x) if name in _PROPAGATE_NAN else y)


@TABLE.lowers("aten.neg.default", check=floats)
def lower_neg(builder: RegionBuilder, node: Node) -> None:
    """Lower to a product with -1, because NEG subtracts from 0, which gives 0.0 for 0.0 instead of -0.0."""
    builder.set(node, binary(builder, "MUL", builder.operand(node.args[0]), -1.0))


@TABLE.lowers(*BINARY, check=every(simple, no_nan))
def lower_binary(builder: RegionBuilder, node: Node) -> None:
    """Lower to one TFLite operator; numbers become constants."""
    name = BINARY[op_name(node)]
    build = extreme if name in EXTREMES else broadcasting
    builder.set(node, build(builder, node, name, node.args[:2]))


@TABLE.lowers(*JUMPS, check=every(floats, whole_precision))
def lower_jump(builder: RegionBuilder, node: Node) -> None:
    """Lower to one TFLite operator."""
    builder.set(node, unary(builder, JUMPS[op_name(node)], builder.operand(node.args[0])))


@TABLE.lowers("aten.mul.Tensor", check=every(floats_beside(torch.bool), _numbers))
def lower_product(builder: RegionBuilder, node: Node) -> None:
    """Lower to a MUL; a boolean mask holds 0 and 1."""
    builder.set(node, broadcasting(builder, node, "MUL", node.args[:2]))


@TABLE.lowers(
    "aten.add.Tensor",
    "aten.add.Scalar",
    "aten.sub.Tensor",
    "aten.sub.Scalar",
    check=simple,
)
def lower_sum(builder: RegionBuilder, node: Node) -> None:
    """Lower to x + alpha * y or x - alpha * y."""
    name = op_name(node)
    x, y = node.args[:2]
    alpha = arg(node, 2, node.kwargs.get("alpha", 1))
    code = "ADD" if "add" in name else "SUB"
    if alpha == 1:
        builder.set(node, broadcasting(builder, node, code, (x, y)))
        return
    if not isinstance(y, Node):
        builder.set(node, broadcasting(builder, node, code, (x, y * alpha)))
        return
    if builder.is_constant(y):
        scaled = builder.constant(builder.array(y) * np.float32(alpha))
    else:
        scaled = binary(builder, "MUL", builder.operand(y), float(alpha))
    builder.set(node, broadcasting(builder, node, code, (x, scaled)))


# -- powers and quotients ----------------------------------------------------------------------------------------------

_MAX_POWER = 16
_LOGS = {"aten.log2.default": 2.0, "aten.log10.default": 10.0}


def _exponent(node: Node) -> Verdict:
    """The exponent is 0.5, -0.5 or a small whole number other than 0."""
    value = node.args[1]
    if not isinstance(value, int | float):
        return no(Reason.ATTRIBUTE, f"the exponent {value} is not known ahead of time")
    if value in (0.5, -0.5) or (0 < abs(value) <= _MAX_POWER and value == int(value)):
        return YES
    return no(
        Reason.ATTRIBUTE,
        f"the exponent {value}: XNNPACK has no power operator, and only small integer exponents become products",
    )


@TABLE.lowers("aten.pow.Tensor_Scalar", check=every(floats, _exponent))
def power(builder: RegionBuilder, node: Node) -> None:
    """Lower roots to SQRT, and integer powers to repeated squaring."""
    exponent = float(cast(float, node.args[1]))
    x = builder.operand(node.args[0])
    if abs(exponent) == 0.5:
        root = unary(builder, "SQRT", x)
        builder.set(node, root if exponent > 0 else inverse(builder, root))
        return
    y = _integer_power(builder, x, abs(int(exponent)))
    builder.set(node, y if exponent > 0 else inverse(builder, y))


def _integer_power(builder: RegionBuilder, x: Operand, exponent: int) -> Operand:
    if exponent == 1:
        return x
    half = _integer_power(builder, x, exponent // 2)
    square = unary(builder, "SQUARE", half)
    return binary(builder, "MUL", square, x) if exponent % 2 else square


def inverse(builder: RegionBuilder, x: Operand) -> Operand:
    """Emit 1 / x."""
    return builder.emit("DIV", [builder.scalar(1.0), x], x.shape, x.order, "DivOptions")


@TABLE.lowers("aten.reciprocal.default", check=floats)
def reciprocal(builder: RegionBuilder, node: Node) -> None:
    """Lower to 1 / x."""
    builder.set(node, inverse(builder, builder.operand(node.args[0])))


@TABLE.lowers("aten.rsqrt.default", check=floats)
def rsqrt(builder: RegionBuilder, node: Node) -> None:
    """Lower to 1 / sqrt(x), because XNNPACK's RSQRT gives NaN for 0."""
    builder.set(node, inverse(builder, unary(builder, "SQRT", builder.operand(node.args[0]))))


@TABLE.lowers(*_LOGS, check=floats)
def logarithm(builder: RegionBuilder, node: Node) -> None:
    """Lower to the natural logarithm, scaled."""
    x = builder.operand(node.args[0])
    natural = propagate_nan_of_log(builder, unary(builder, "LOG", x), x)
    builder.set(node, binary(builder, "MUL", natural, 1 / math.log(_LOGS[op_name(node)])))
