"""Quantization schemes of libraries that form operators on integers from quantize and dequantize operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch.fx import Node

from delegate.backend.quantizable import INT4_WEIGHT, INT8, INT8_WEIGHT, TABLES, QuantizationScheme, QuantizedOperator
from delegate.edge.node import arguments


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
