"""The integer support of ONNX Runtime's CPU provider: quantizers are built from it, and patterns are found by it.

Source: the selectors in onnxruntime/core/optimizer/qdq_transformer/selectors_actions of
https://github.com/microsoft/onnxruntime, and ONNX Runtime 1.31 itself, queried for each operator.
"""

from __future__ import annotations

from delegate.backend.quantizable import integer_operators, library_schemes

SCHEMES = library_schemes(
    products=("aten.mm.default", "aten.bmm.default", "aten.matmul.default"),
    functions=tuple(f"aten.{name}.default" for name in ("_adaptive_avg_pool2d", "avg_pool2d", "sigmoid", "leaky_relu")),
    group=16,
)
INTEGERS = integer_operators(SCHEMES[0])
