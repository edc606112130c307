"""Elementwise operators: unary, binary with broadcasting and scalars, powers and quotients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch.fx import Node

from delegate.backend.aot import RegionRefused
from delegate.backend.lowering import every, no_nan
from delegate.backends.xnnpack.aot import layout
from delegate.backends.xnnpack.aot.builder import RegionBuilder
from delegate.backends.xnnpack.aot.layout import Order
from delegate.backends.xnnpack.aot.lowerings.shape import same_shape
from delegate.backends.xnnpack.aot.lowerings.table import (
    TABLE,
    arg,
    floats,
    floats_beside,
    propagate_nan,
    propagate_nan_of_log,
    whole_precision,
    without_large_angles,
)
from delegate.backends.xnnpack.aot.operand import Operand, example, shape_of, signature
from delegate.edge.node import op_name
from delegate.verdict import YES, Reason, Verdict, no

JUMPS = {"aten.ceil.default": "CEIL", "aten.floor.default": "FLOOR", "aten.round.default": "ROUND"}
Formula = Callable[[RegionBuilder, Operand], Operand]

_SHORT_ROW = 4  # elements in a row
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


def broadcast_operands(builder: RegionBuilder, values: Sequence[Any], rank: int, order: Order) -> list[Operand]:
    """Return the operands of an elementwise operator whose result has `rank` dimensions and `order`.

    Args:
        values: fx nodes, operands or plain numbers; constants are prepared ahead of time.
        rank: The rank that the result has.
        order: The dimension order that the result has.
    """
    operands = [_broadcast_one(builder, value, rank, order) for value in values]
    if len(operands) > 1 and all(x.rank < rank for x in operands):  # one must have the result's leading sizes of 1
        static = [i for i, x in enumerate(operands) if signature(x.sizes) is None]  # a RESHAPE infers few sizes
        at = static[0] if static else 0
        x = operands[at]
        missing = rank - x.rank
        order = (*range(missing), *(d + missing for d in x.order))
        operands[at] = builder.view(x, (1,) * missing + x.shape, order)
    return operands


def _broadcast_one(builder: RegionBuilder, value: Any, rank: int, order: Order) -> Operand:
    if isinstance(value, Operand):
        return expand_rank(builder, value, rank, order)
    if isinstance(value, Node) and not builder.is_constant(value):
        return expand_rank(builder, builder.operand(value), rank, order)
    array = builder.weights(value) if isinstance(value, Node) else np.asarray(value, np.float32)
    array = array[(None,) * (rank - array.ndim) + (slice(None),) * array.ndim].transpose(order)
    while array.ndim and array.shape[0] == 1:
        array = array[0]
    return builder.constant(array)


def common_order(builder: RegionBuilder, values: Sequence[Any], shape: Sequence[Any]) -> Order:
    """Return the order in which an elementwise operator on these values moves the fewest elements.

    Only values of full rank that are not constant count. `shape` has the sizes of the result. XNNPACK computes the
    elements in a row until an operand begins or ends to be broadcast. With three channels last, as images have them,
    and a number for each, such rows are so short that changing the order takes less time.
    """
    plain = layout.row_major(len(shape))
    weights: dict[Order, int] = {}
    for value in values:
        is_variable = isinstance(value, Node) and not builder.is_constant(value)
        x = builder.operand(value) if is_variable else value
        if isinstance(x, Operand) and x.rank == len(shape):
            count = math.prod(example(s) for s in x.shape)
            for order in [o for o in weights if layout.same_memory(x.shape, x.order, o)] or [x.order]:
                weights[order] = weights.get(order, 0) + count
    best = max(weights, key=lambda o: weights[o]) if weights else plain
    return plain if _row_length(values, shape, best) <= _SHORT_ROW < _row_length(values, shape, plain) else best


def expand_rank(builder: RegionBuilder, x: Operand, rank: int, order: Order) -> Operand:
    """Add leading sizes of 1 to a value, so that it broadcasts to `rank` dimensions in `order`."""
    missing = rank - x.rank
    x = builder.reorder(x, tuple(d - missing for d in order if d >= missing))
    if order[:missing] == tuple(range(missing)):
        return x  # TFLite broadcasts from the right, too
    return builder.view(x, (1,) * missing + x.shape, order)


def emit_broadcast(builder: RegionBuilder, node: Node, name: str, arguments: Sequence[Any]) -> Operand:
    """Emit a binary operator on two nodes or numbers, in their common order."""
    shape = shape_of(node)
    order = common_order(builder, arguments, shape)
    operands = broadcast_operands(builder, arguments, len(shape), order)
    return builder.emit(name, operands, shape, order, _TABLES.get(name, ""))


def _row_length(arguments: Sequence[Any], shape: Sequence[Any], order: Order) -> int:
    """Return the number of elements, from the last dimension on, over which each operand is broadcast or is not."""
    shapes = [shape_of(x) if isinstance(x, Node) else x.shape for x in arguments if isinstance(x, Node | Operand)]
    length, first = 1, None
    for dim in reversed([d for d in order if not layout.is_one(shape[d])]):
        is_broadcast = [dim < len(shape) - len(s) or layout.is_one(s[dim - len(shape)]) for s in shapes]
        first = first or is_broadcast
        if is_broadcast != first:
            break
        length *= example(shape[dim])
    return length


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
    y = emit_broadcast(builder, node, name, (first, second))
    if not _varies(builder, first):
        return y
    operands = broadcast_operands(builder, [first, second], y.rank, y.order)
    is_broadcast = not same_shape(operands[0].shape, operands[1].shape)  # XNNPACK may swap such operands
    for x in operands[: 2 if is_broadcast else 1]:
        y = propagate_nan(builder, y, x)
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


@TABLE.lowers(*BINARY, check=every(simple, no_nan))
def lower_binary(builder: RegionBuilder, node: Node) -> None:
    """Lower to one TFLite operator; numbers become constants."""
    name = BINARY[op_name(node)]
    build = extreme if name in EXTREMES else emit_broadcast
    builder.set(node, build(builder, node, name, node.args[:2]))


@TABLE.lowers("aten.mul.Tensor", check=every(floats_beside(torch.bool), _numbers))
def lower_product(builder: RegionBuilder, node: Node) -> None:
    """Lower to a MUL; a boolean mask holds 0 and 1."""
    builder.set(node, emit_broadcast(builder, node, "MUL", node.args[:2]))


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
        builder.set(node, emit_broadcast(builder, node, code, (x, y)))
        return
    if not isinstance(y, Node):
        builder.set(node, emit_broadcast(builder, node, code, (x, y * alpha)))
        return
    if builder.is_constant(y):
        scaled = builder.constant(builder.array(y) * np.float32(alpha))
    else:
        scaled = binary(builder, "MUL", builder.operand(y), float(alpha))
    builder.set(node, emit_broadcast(builder, node, code, (x, scaled)))


# -- powers and quotients ----------------------------------------------------------------------------------------------

_MAX_POWER = 16


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


# -- one operand -------------------------------------------------------------------------------------------------------


def _logarithm(base: float) -> Formula:
    """Return the natural logarithm, scaled, with NaN of the operand."""

    def emit(builder: RegionBuilder, x: Operand) -> Operand:
        natural = propagate_nan_of_log(builder, unary(builder, "LOG", x), x)
        return natural if base == math.e else binary(builder, "MUL", natural, 1 / math.log(base))

    return emit


FORMULAS: dict[str, Formula] = {
    "aten.abs.default": lambda b, x: unary(b, "ABS", x),
    "aten.cos.default": lambda b, x: unary(b, "COS", without_large_angles(b, x)),
    "aten.exp.default": lambda b, x: propagate_nan(b, unary(b, "EXP", x), x),
    "aten.log.default": _logarithm(math.e),
    "aten.log10.default": _logarithm(10.0),
    "aten.log2.default": _logarithm(2.0),
    "aten.neg.default": lambda b, x: binary(b, "MUL", x, -1.0),  # NEG returns 0.0 for 0.0 instead of -0.0
    "aten.reciprocal.default": inverse,
    "aten.relu.default": lambda b, x: unary(b, "RELU", x),
    "aten.rsqrt.default": lambda b, x: inverse(b, unary(b, "SQRT", x)),  # RSQRT returns NaN for 0
    "aten.sigmoid.default": lambda b, x: unary(b, "LOGISTIC", x),
    "aten.sin.default": lambda b, x: unary(b, "SIN", without_large_angles(b, x)),
    "aten.sqrt.default": lambda b, x: unary(b, "SQRT", x),
    "aten.tanh.default": lambda b, x: unary(b, "TANH", x),
}


@TABLE.lowers(*FORMULAS, check=floats)
def lower_formula(builder: RegionBuilder, node: Node) -> None:
    """Lower to the operator's formula."""
    builder.set(node, FORMULAS[op_name(node)](builder, builder.operand(node.args[0])))


@TABLE.lowers(*JUMPS, check=every(floats, whole_precision))
def lower_jump(builder: RegionBuilder, node: Node) -> None:
    """Lower to one TFLite operator."""
    builder.set(node, unary(builder, JUMPS[op_name(node)], builder.operand(node.args[0])))
