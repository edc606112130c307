"""The integer support of a backend as data: quantizers are built from it, so that they annotate what it supports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch.fx import Node

from delegate.edge.node import arguments


@dataclass(frozen=True, slots=True)
class IntegerType:
    """A code for real numbers: round(x / scale) + zero_point, from `low` to `high`.

    Args:
        dtype: the dtype that holds the numbers; torch.int8 for 4 bits.
        low, high: the ends of the range.
        symmetric: true if the zero point is the middle of the range (0 of signed types).
        per_channel: true for a scale per output channel, false for one scale of the whole tensor.
        group: The inputs of a channel that share a weight's scale; any multiple is supported too. 0 for no groups.
    """

    dtype: torch.dtype
    low: int
    high: int
    symmetric: bool = False
    per_channel: bool = False
    group: int = 0


INT8 = IntegerType(torch.int8, -128, 127)
INT8_WEIGHT = IntegerType(torch.int8, -127, 127, symmetric=True, per_channel=True)
INT4_WEIGHT = IntegerType(torch.int8, -8, 7, symmetric=True, per_channel=True)


@dataclass(frozen=True, slots=True)
class QuantizedOperator:
    """A row: an operator that the backend runs on integers.

    Args:
        op: the name in edge programs, e.g. "aten.convolution.default".
        inputs: positions of the arguments that are activations; a list of tensors counts as one position.
        weight: position of its constant weight; without `inputs`, only the weight is quantized.
        axis: the axis of the weight's output channels.
        kind: the integers of the weight; None for the scheme's integers.
        moves: true if it only moves data; operands and results then share their parameters.
        fuses: names of activations that are fused if they follow; no parameters are between them.
        symmetric: positions of activations whose zero point must be the middle.
        result: the parameters (scale, zero point) that the result must have; None for any.
        accepts: returns the reason why a node of torch.export is not supported on integers, else an empty text. None
            accepts all nodes.
    """

    op: str
    inputs: tuple[int, ...] = (0,)
    weight: int | None = None
    axis: int = 0
    kind: IntegerType | None = None
    moves: bool = False
    fuses: tuple[str, ...] = ()
    symmetric: tuple[int, ...] = ()
    result: tuple[float, int] | None = None
    accepts: Callable[[Node], str] | None = None


# Looked up by kernels, not by the backend: each row has a scale, and is decoded when it has been looked up.
TABLES = QuantizedOperator("aten.embedding.default", inputs=(), weight=0, kind=INT8_WEIGHT)


@dataclass(frozen=True, slots=True)
class QuantizationScheme:
    """A way of quantizing that the backend supports.

    Args:
        name: the name that users write, e.g. "static_int8".
        operators: the rows; with `dynamic`, or without `activations`, rows with a weight.
        activations: the integers of activations; None if only weights are quantized.
        weights: the integers of weights.
        dynamic: true if the parameters of activations are chosen at run time.
    """

    name: str
    operators: tuple[QuantizedOperator, ...]
    activations: IntegerType | None
    weights: IntegerType
    dynamic: bool = False


def refuse_transposed(convolution: Node) -> str:
    """Return the reason to reject a transposed convolution, for libraries that compute it in floats; else ""."""
    transposed = "transpose" in str(convolution.target) or arguments(convolution).get("transposed", False)
    return "a transposed convolution" if transposed else ""


# Of libraries that form operators on integers from dequantize and quantize operators around them.
FUSES = ("aten.relu.default", "aten.hardtanh.default", "aten.clamp.default")
_LINEAR = QuantizedOperator("aten.linear.default", weight=1, fuses=FUSES)
_MOVES = (
    *(f"aten.{name}.default" for name in ("view", "_unsafe_view", "reshape", "alias", "clone", "permute", "t")),
    *("aten.transpose.int", "aten.unsqueeze.default", "aten.squeeze.dims", "aten.squeeze.dim", "aten.slice.Tensor"),
    *("aten.select.int", "aten.expand.default", "aten.repeat.default", "aten.pixel_shuffle.default"),
    *("aten.max_pool2d_with_indices.default", "getitem", "aten.amax.default", "aten.amin.default"),
    *("aten.upsample_nearest2d.vec", "aten.upsample_nearest2d.default", "aten.cat.default"),
)


def library_schemes(products: Sequence[str], functions: Sequence[str], group: int) -> tuple[QuantizationScheme, ...]:
    """Return the schemes of a library that quantizes linear layers alone at run time, or in their weights only.

    On integers it computes convolutions but transposed ones, linear layers, sums, products, and what only moves values.

    Args:
        products: its products of two matrices on integers.
        functions: its other operators on integers.
        group: the number of int4 weights that share a scale, unless the user chooses another.
    """
    static = (
        QuantizedOperator("aten.convolution.default", weight=1, fuses=FUSES, accepts=refuse_transposed),
        _LINEAR,
        *(QuantizedOperator(name, inputs=(0, 1)) for name in products),
        *(QuantizedOperator(f"aten.{name}.Tensor", inputs=(0, 1), fuses=FUSES) for name in ("add", "mul")),
        *(QuantizedOperator(name) for name in functions),
        *(QuantizedOperator(name, moves=True) for name in _MOVES),
    )
    layers, groups = (_LINEAR, TABLES), replace(INT4_WEIGHT, group=group)
    return (
        QuantizationScheme("static_int8", (*static, TABLES), INT8, INT8_WEIGHT),
        QuantizationScheme("dynamic_int8", layers, INT8, INT8_WEIGHT, dynamic=True),
        QuantizationScheme("dynamic_int4", layers, INT8, groups, dynamic=True),
        QuantizationScheme("weight_only_int8", layers, None, INT8_WEIGHT),
        QuantizationScheme("weight_only_int4", layers, None, groups),
    )


def integer_operators(static: QuantizationScheme) -> frozenset[str]:
    """Return the operators of a static scheme that compute new values from activations."""
    return frozenset(row.op for row in static.operators if row.inputs and not row.moves)


def exact_scales(scales: torch.Tensor) -> torch.Tensor:
    """Return scales of groups rounded to bfloat16, in which XNNPACK computes with them; float16 is exact, too."""
    return scales.bfloat16().to(scales.dtype)
