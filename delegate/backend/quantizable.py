"""The integer support of a backend as data: quantizers are built from it, so that they annotate what it supports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.fx import Node


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


def exact_scales(scales: torch.Tensor) -> torch.Tensor:
    """Return scales of groups rounded to bfloat16, in which XNNPACK computes with them; float16 is exact, too."""
    return scales.bfloat16().to(scales.dtype)
