"""The integer support of OpenVINO's CPU plugin: quantizers are built from it, and patterns are found by it.

Source: the low-precision transformations, https://docs.openvino.ai (Low Precision Transformations), and the graphs that
OpenVINO 2026.4 executes: tests/test_integers.py asserts that each row runs in integers.
"""

from __future__ import annotations

from delegate.backends.quantizable import QuantizedOperator, linear_schemes, refuse_transposed

FUSES = ("aten.relu.default", "aten.hardtanh.default", "aten.clamp.default")
_LINEAR = QuantizedOperator("aten.linear.default", weight=1, fuses=FUSES)
_MOVES = (
    *(f"aten.{name}.default" for name in ("view", "_unsafe_view", "reshape", "alias", "clone", "permute", "t")),
    *("aten.transpose.int", "aten.unsqueeze.default", "aten.squeeze.dims", "aten.squeeze.dim", "aten.slice.Tensor"),
    *("aten.select.int", "aten.expand.default", "aten.repeat.default", "aten.pixel_shuffle.default"),
    *("aten.max_pool2d_with_indices.default", "getitem", "aten.amax.default", "aten.amin.default"),
    *("aten.upsample_nearest2d.vec", "aten.upsample_nearest2d.default", "aten.cat.default"),
)


_STATIC = (
    QuantizedOperator("aten.convolution.default", weight=1, fuses=FUSES, accepts=refuse_transposed),
    _LINEAR,
    *(QuantizedOperator(f"aten.{name}.default", inputs=(0, 1)) for name in ("bmm", "matmul")),
    *(QuantizedOperator(f"aten.{name}.Tensor", inputs=(0, 1), fuses=FUSES) for name in ("add", "mul")),
    *(QuantizedOperator(f"aten.{name}.default") for name in ("_adaptive_avg_pool2d", "avg_pool2d")),
    *(QuantizedOperator(name, moves=True) for name in _MOVES),
)
INTEGERS = frozenset(row.op for row in _STATIC if not row.moves)  # that compute new values

SCHEMES = linear_schemes(_STATIC, _LINEAR, group=16)
