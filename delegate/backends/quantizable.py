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
        dtype: that holds the numbers; 4 bits lie in torch.int8.
        low, high: the ends of the range.
        symmetric: the zero point is the middle of the range (0 of signed types).
        per_channel: a scale per output channel; else one for the whole tensor.
        group: of weights: a scale per so many inputs of a channel; any multiple of it will do. 0 for none.
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
    """A row: an operator that the backend takes in integers.

    Args:
        op: as edge programs have it, e.g. "aten.convolution.default".
        inputs: positions of the arguments that are activations; a list of tensors stands for all of them.
        weight: position of its constant weight; without `inputs` nothing else of it is quantized.
        axis: the axis of the weight's output channels.
        kind: of the weight's integers; None for those of the scheme.
        moves: it only moves data, so that what it gives has the parameters of what it takes, all of which share them.
        fuses: activations that it takes over when they follow, by the same kind of name: no parameters in between.
        symmetric: positions of activations whose zero point must be the middle.
        result: the parameters (scale, zero point) that the result must have; None for any.
        accepts: says of a node, as torch.export gives it, why it is not taken so; empty where it is. None: all are.
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
    """A way of quantizing that the backend takes.

    Args:
        name: what users write, e.g. "static_int8".
        operators: by row; with `dynamic`, and without `activations`, those that have a weight.
        activations: None where only weights are quantized.
        weights: of operators that have one.
        dynamic: the parameters of activations are chosen at run time.
    """

    name: str
    operators: tuple[QuantizedOperator, ...]
    activations: IntegerType | None
    weights: IntegerType
    dynamic: bool = False
