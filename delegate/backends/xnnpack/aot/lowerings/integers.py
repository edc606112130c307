"""Lowering of operators on integers: a row for each operator that XNNPACK computes in int8.

The pattern dequantize, operator, activation, quantize becomes one operator. Its lowering is the same in integers and
in floats. A row holds the differences: the arguments that must be integers, the ratios of scales that the kernels
support, and the activations that the operator includes. The quantizers of this backend use the same rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
from ai_edge_litert.schema_py_generated import ActivationFunctionType as Fused
from torch.fx import Node

from delegate.backend.qdq import DECODES, QUANTIZE, Coded
from delegate.backend.quantizable import QuantizedOperator
from delegate.backends.xnnpack.aot.builder import RegionBuilder
from delegate.backends.xnnpack.aot.lowerings.pooling import divides_by_kernel
from delegate.backends.xnnpack.aot.lowerings.shape import ALIASES, RESHAPES, SQUEEZES
from delegate.backends.xnnpack.aot.lowerings.table import TABLE, Lower, arg
from delegate.backends.xnnpack.aot.operand import HIGH, LOW, SIGMOID, Integers, exact, integers_of, shape_of
from delegate.edge.node import arguments, op_name

Bounds = tuple[float, float]

_ACTIVATIONS = ("aten.relu.default", "aten.hardtanh.default", "aten.clamp.default")
_FUSED = {(0.0, math.inf): Fused.RELU, (0.0, 6.0): Fused.RELU6, (-1.0, 1.0): Fused.RELU_N1_TO_1}
_BIASES = 2**30  # bounds of an int32 bias, so that adding the sum of products does not overflow


@dataclass(frozen=True, slots=True)
class IntegerCase:
    """An operator that may be lowered in integers.

    Args:
        builder: builder of its region.
        node: the operator.
        operands: the parameters of its activations, in the order of the row's `inputs`; None for floats.
        result: the parameters that quantize its result.
    """

    builder: RegionBuilder
    node: Node
    operands: tuple[Integers | None, ...]
    result: Integers

    def ratio(self, *factors: float) -> float:
        """Return the product of the operands' scales, and of other factors, over the result's scale."""
        scales = [x.scale for x in self.operands if x is not None]
        return math.prod(scales) * math.prod(factors) / self.result.scale


Fits = Callable[[IntegerCase], str]  # the reason if the case is not supported; else empty


@dataclass(frozen=True, slots=True)
class IntegerRow:
    """The support of one operator on integers.

    Args:
        quantized: the row for quantizers.
        fits: checks if XNNPACK's kernel supports the parameters of a case.
        lower: the lowering, if it differs from that in floats.
    """

    quantized: QuantizedOperator
    fits: Fits = field(default=lambda case: "")
    lower: Lower | None = None


def _ratio(case: IntegerCase, *factors: float, least: float = 2.0**-32, most: float = 256) -> str:
    """Check the product of the scales, and of other factors, over the result's scale."""
    return _within(case.ratio(*factors), least, most)


def _within(ratio: float, least: float, most: float) -> str:
    what = "the ratio of the scales to the result's scale"
    return "" if least <= ratio < most else f"{what} is {ratio:.3g}, but XNNPACK supports {least:.3g} to {most:.3g}"


def _layer(case: IntegerCase) -> str:
    """Check that weights are int8 with zero points 0, per tensor or per output channel, and that the bias fits."""
    named = arguments(case.node)
    weights = case.builder.weights(named["weight"])
    if not isinstance(weights, Coded) or weights.scale is None:
        return "the weight is not quantized"
    if not weights.symmetric:
        return "the weight has zero points other than 0"
    if not weights.is_plain or weights.axis not in (None, int(named.get("transposed", False))):
        return "the weight has neither one scale nor one scale per output channel"
    why = _ratio(case, float(weights.scales.min())) or _ratio(case, float(weights.scales.max()))
    if why or named["bias"] is None:
        return why
    assert case.operands[0] is not None
    codes = np.abs(case.builder.array(named["bias"])) / (weights.scales.astype(np.float64) * case.operands[0].scale)
    return "" if codes.max(initial=0) < _BIASES else "the bias does not fit into int32"


def _product(case: IntegerCase) -> str:
    if case.builder.is_constant(case.node.args[1]):
        return "a matrix product with a constant"
    assert case.operands[1] is not None
    return "the second factor has a zero point other than 0" if case.operands[1].zero_point else _ratio(case)


def _sum(case: IntegerCase) -> str:
    if arguments(case.node).get("alpha", 1) != 1:
        return f"alpha {arguments(case.node)['alpha']}"
    problems = (_within(scale / case.result.scale, 2.0**-10, 256) for scale in _scales(case))
    return next(filter(None, problems), "")


def _times(case: IntegerCase) -> str:
    return _within(math.prod(_scales(case)) / case.result.scale, 2.0**-16, 256)


def _scales(case: IntegerCase) -> list[float]:
    """Return the scales of both operands; either may be a constant."""
    scales = []
    for value in case.node.args[:2]:
        held = None if case.builder.is_constant(value) or not isinstance(value, Node) else case.builder.type_of(value)
        scales.append(held.scale if held is not None else _constant_scale(case.builder, value))
    return scales


def _constant_scale(builder: RegionBuilder, value: Any) -> float:
    constant = builder.weights(value) if isinstance(value, Node) else np.full((), value, np.float32)
    coded = constant if isinstance(constant, Coded) else exact(constant)
    assert coded is not None
    return float(coded.scales[0])


def _slope(case: IntegerCase) -> str:
    slope = float(arg(case.node, 1, 0.01))
    why = _ratio(case, least=2.0**-8, most=127)
    return why or ("" if 2.0**-8 <= abs(case.ratio(slope)) < 127 else f"a slope of {slope}")


def _plain_elu(case: IntegerCase) -> str:
    is_plain = all(arg(case.node, i, 1) == 1 for i in (1, 2, 3))
    return "" if is_plain else "an elu with alpha, scale or input_scale other than 1"


def _adaptive(case: IntegerCase) -> str:
    in_sizes, out_sizes = (shape_of(n)[2:] for n in (cast(Node, case.node.args[0]), case.node))
    if all(w == 1 for w in out_sizes) or not any(g % w for g, w in zip(in_sizes, out_sizes, strict=True)):
        return _ratio(case)
    return "windows of several sizes, for which an intermediate result would be rounded"


def _gate(case: IntegerCase) -> str:
    return _ratio(case, SIGMOID.scale, least=2.0**-16)


def _average(case: IntegerCase) -> str:
    return _ratio(case) if divides_by_kernel(case.node) else "windows at the edge have other divisors"


def _same(case: IntegerCase) -> str:
    return "" if case.operands[0] == case.result else "interpolation with other quantization parameters for the result"


def _is_implied(case: IntegerCase) -> str:
    """Check that the activation does no more than saturate at the ends of the result's range."""
    return "" if saturates(case.result, bounds(case.node)) else "bounds that are not the ends of the result's range"


def _requantize(builder: RegionBuilder, node: Node) -> None:
    assert builder.result is not None
    builder.set(node, builder.quantize(builder.held(cast(Node, node.args[0])), builder.result))


def _padding(node: Node) -> str:
    return "padding other than with zeros" if arguments(node).get("value") else ""


def _rows() -> list[IntegerRow]:
    op = QuantizedOperator
    moving = (
        *RESHAPES, *SQUEEZES, *ALIASES, "aten.permute.default", "aten.transpose.int", "aten.t.default",
        "aten.slice.Tensor", "aten.select.int", "aten.index.Tensor", "aten.expand.default", "aten.repeat.default",
        "aten.max_pool2d_with_indices.default", "aten.amax.default", "aten.amin.default",
        "aten.split.Tensor", "aten.split_with_sizes.default", "getitem",
        "aten.pixel_shuffle.default", "aten.pixel_unshuffle.default", "aten.cat.default",
        "aten.reflection_pad1d.default", "aten.reflection_pad2d.default",
        "aten.replication_pad1d.default", "aten.replication_pad2d.default",
        "aten.upsample_nearest2d.vec", "aten.upsample_nearest2d.default",
        "aten._upsample_nearest_exact2d.vec", "aten._upsample_nearest_exact2d.default",
    )  # fmt: skip
    products = ("mm", "bmm", "matmul")
    return [
        *(IntegerRow(op(f"aten.{n}.default", weight=1, fuses=_ACTIVATIONS), _layer) for n in ("convolution", "linear")),
        *(IntegerRow(op(f"aten.{n}.default", inputs=(0, 1), symmetric=(1,)), _product) for n in products),
        *(IntegerRow(op(f"aten.{n}.Tensor", inputs=(0, 1), fuses=_ACTIVATIONS), _sum) for n in ("add", "sub")),
        IntegerRow(op("aten.mul.Tensor", inputs=(0, 1), fuses=_ACTIVATIONS), _times),
        *(IntegerRow(op(name), _ratio) for name in ("aten.mean.dim", "aten.mean.default")),
        IntegerRow(op("aten._adaptive_avg_pool2d.default"), _adaptive),
        IntegerRow(op("aten.avg_pool2d.default"), _average),
        *(IntegerRow(op(f"aten.{n}.default")) for n in ("sigmoid", "tanh")),
        *(IntegerRow(op(f"aten.{n}.default"), _gate) for n in ("silu", "glu")),
        IntegerRow(op("aten.leaky_relu.default"), _slope),
        IntegerRow(op("aten.elu.default"), _plain_elu),
        *(IntegerRow(op(f"aten.upsample_bilinear2d.{n}", moves=True), _same) for n in ("vec", "default")),
        *(IntegerRow(op(name), _is_implied, _requantize) for name in _ACTIVATIONS),
        *(IntegerRow(op(name, moves=True)) for name in moving),
        *(IntegerRow(op(f"aten.{n}.default", moves=True, accepts=_padding)) for n in ("pad", "constant_pad_nd")),
    ]  # fmt: skip


ROWS: dict[str, IntegerRow] = {row.quantized.op: row for row in _rows()}
_CONVERSIONS = frozenset({QUANTIZE, *DECODES})
_ROUNDS = frozenset({"aten.upsample_bilinear2d.vec", "aten.upsample_bilinear2d.default"})  # moves, but rounds


# -- lowering in integers ----------------------------------------------------------------------------------------------


def bounds(node: Node) -> Bounds | None:
    """Return the bounds of a rectifier or clamp; None if a bound is not a number."""
    if op_name(node) == "aten.relu.default":
        return 0.0, math.inf
    named = arguments(node)
    low, high = (named[k] for k in (("min_val", "max_val") if "hardtanh" in op_name(node) else ("min", "max")))
    if isinstance(low, Node) or isinstance(high, Node):
        return None
    return -math.inf if low is None else float(low), math.inf if high is None else float(high)


def saturates(result: Integers, limits: Bounds | None) -> bool:
    """Return true if values that saturate at the ends of a range need no clamp to these limits."""
    if limits is None:
        return False
    inverse = np.float32(1 / result.scale)
    low, high = (np.rint(np.float32(v) * inverse) + result.zero_point for v in limits)  # as quantization computes them
    return bool(low <= LOW and high >= HIGH)


@dataclass(frozen=True, slots=True)
class QuantizedUse:
    """The only use of a value: an optional activation, then the node that quantizes it."""

    activation: Node | None
    quantize: Node

    @property
    def result(self) -> Integers:
        """Return the parameters of the quantization."""
        parameters = integers_of(self.quantize)
        assert parameters is not None
        return parameters


def find_quantized_use(node: Node, fuses: Sequence[str]) -> QuantizedUse | None:
    """Return the quantized use of an operator's value; None if other nodes read it before."""
    users = list(node.users)
    if len(users) != 1 or users[0].op != "call_function":
        return None
    user = users[0]
    if op_name(user) == QUANTIZE and integers_of(user) is not None:
        return QuantizedUse(None, user)
    if op_name(user) in fuses:
        following = find_quantized_use(user, ())
        return None if following is None else replace(following, activation=user)
    return None


def lower_in_integers(builder: RegionBuilder, node: Node) -> str | None:
    """Lower an operator in integers if its operands are integers and XNNPACK supports it.

    Returns:
        None on success, else the reason to lower it in floats; an empty reason if no operand is quantized.
    """
    name = op_name(node)
    row = ROWS.get(name)
    if row is None:
        reads_integers = name not in _CONVERSIONS and any(builder.type_of(x) for x in node.all_input_nodes)
        return name if reads_integers else ""
    operands = _operands(builder, node, row.quantized)
    if not any(operands):
        return ""
    moves = row.quantized.moves and name not in _ROUNDS
    why = (_lower_move if moves else _lower_computation)(builder, node, row, operands)
    return f"{name}: {why}" if why else None


def _lower_computation(
    builder: RegionBuilder, node: Node, row: IntegerRow, operands: tuple[Integers | None, ...]
) -> str:
    """Lower an operator that computes new values; return the reason if this is not possible."""
    use = find_quantized_use(node, row.quantized.fuses)
    if use is None:
        return "its result is not quantized"
    result, limits, code = use.result, None, Fused.NONE
    if use.activation is not None:
        limits = bounds(use.activation)
        code = Fused.NONE if saturates(result, limits) else _FUSED.get(limits or (0.0, 0.0), -1)
    if code < 0:
        return f"an activation with the bounds {limits}"
    why = _describe_float_operand(builder, node, row, operands) or row.fits(
        IntegerCase(builder, node, operands, result)
    )
    if why:
        return why
    with builder.integers(result, code):
        (row.lower or TABLE[op_name(node)].lower)(builder, node)
        quantized = builder.quantize(builder.held(node), result)
    for member in (node, use.activation, use.quantize):
        if member is not None:
            builder.set(member, quantized)
    return ""


def _lower_move(builder: RegionBuilder, node: Node, row: IntegerRow, operands: tuple[Integers | None, ...]) -> str:
    """Lower an operator that only moves values; return the reason if this is not possible."""
    use = find_quantized_use(node, ()) if op_name(node) == "aten.cat.default" else None
    if None in operands or (use is None and len(set(operands)) > 1):
        return "the operands have different quantization parameters"
    result = operands[0] if use is None else use.result
    assert result is not None
    why = row.fits(IntegerCase(builder, node, operands, result))
    if why:
        return why
    with builder.integers(result):
        (row.lower or TABLE[op_name(node)].lower)(builder, node)
    return ""


def _operands(builder: RegionBuilder, node: Node, row: QuantizedOperator) -> tuple[Integers | None, ...]:
    """Return the parameters of the activations; None for floats, and for constants."""
    values: list[Any] = []
    for position in row.inputs:
        value = arg(node, position)
        values += value if isinstance(value, list | tuple) else [value]
    return tuple(builder.type_of(v) if isinstance(v, Node) else None for v in values)


def _describe_float_operand(
    builder: RegionBuilder, node: Node, row: IntegerRow, operands: Sequence[Integers | None]
) -> str:
    """Return a message about an operand in floats that is not an exact constant in integers; empty if there is none."""
    for position, held in zip(row.quantized.inputs, operands, strict=True):
        value = arg(node, position)
        if held is None and not _is_exact(builder, value):
            return f"argument {value} is not quantized"
    return ""


def _is_exact(builder: RegionBuilder, value: Any) -> bool:
    if not isinstance(value, Node):
        return isinstance(value, int | float) and exact(np.full((), value, np.float32)) is not None
    if not builder.is_constant(value):
        return False
    held = builder.weights(value)
    if isinstance(held, Coded):
        return held.scale is not None and held.is_plain and held.axis is None and held.ndim > 0
    return exact(held) is not None
