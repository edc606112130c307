"""The integer support of OpenVINO's CPU plugin: quantizers are built from it, and patterns are found by it.

Source: the low-precision transformations, https://docs.openvino.ai (Low Precision Transformations), and the graphs that
OpenVINO 2026.4 executes: tests/test_integers.py asserts that each row runs in integers.
"""

from __future__ import annotations

import torch
from torch.fx import Node

from delegate.backends.quantizable import (
    INT4_WEIGHT,
    INT8,
    INT8_WEIGHT,
    TABLES,
    IntegerType,
    QuantizationScheme,
    QuantizedOperator,
)
from delegate.edge.node import arguments

FUSES = ("aten.relu.default", "aten.hardtanh.default", "aten.clamp.default")
_LINEAR = QuantizedOperator("aten.linear.default", weight=1, fuses=FUSES)
_GROUPS = IntegerType(torch.int8, INT4_WEIGHT.low, INT4_WEIGHT.high, symmetric=True, per_channel=True, group=16)
_MOVES = (
    *(f"aten.{name}.default" for name in ("view", "_unsafe_view", "reshape", "alias", "clone", "permute", "t")),
    *("aten.transpose.int", "aten.unsqueeze.default", "aten.squeeze.dims", "aten.squeeze.dim", "aten.slice.Tensor"),
    *("aten.select.int", "aten.expand.default", "aten.repeat.default", "aten.pixel_shuffle.default"),
    *("aten.max_pool2d_with_indices.default", "getitem", "aten.amax.default", "aten.amin.default"),
    *("aten.upsample_nearest2d.vec", "aten.upsample_nearest2d.default", "aten.cat.default"),
)


def _forward(node: Node) -> str:
    """Return the reason to reject a transposed convolution, which OpenVINO computes in floats; else ""."""
    transposed = "transpose" in str(node.target) or arguments(node).get("transposed", False)
    return "a transposed convolution" if transposed else ""


_STATIC = (
    QuantizedOperator("aten.convolution.default", weight=1, fuses=FUSES, accepts=_forward),
    _LINEAR,
    *(QuantizedOperator(f"aten.{name}.default", inputs=(0, 1)) for name in ("bmm", "matmul")),
    *(QuantizedOperator(f"aten.{name}.Tensor", inputs=(0, 1), fuses=FUSES) for name in ("add", "mul")),
    *(QuantizedOperator(f"aten.{name}.default") for name in ("_adaptive_avg_pool2d", "avg_pool2d")),
    *(QuantizedOperator(name, moves=True) for name in _MOVES),
)
INTEGERS = frozenset(row.op for row in _STATIC if not row.moves)  # that compute new values

SCHEMES = (
    QuantizationScheme("static_int8", (*_STATIC, TABLES), INT8, INT8_WEIGHT),
    QuantizationScheme("dynamic_int8", (_LINEAR, TABLES), INT8, INT8_WEIGHT, dynamic=True),
    QuantizationScheme("dynamic_int4", (_LINEAR, TABLES), INT8, _GROUPS, dynamic=True),
    QuantizationScheme("weight_only_int8", (_LINEAR, TABLES), None, INT8_WEIGHT),
    QuantizationScheme("weight_only_int4", (_LINEAR, TABLES), None, _GROUPS),
)
