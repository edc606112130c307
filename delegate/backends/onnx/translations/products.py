"""Products of matrices, and attention."""

from __future__ import annotations

from delegate.backends.lowering import every
from delegate.backends.onnx import attention
from delegate.backends.onnx.translations.row import BOOL, Translation, floating, same_dtypes

_PRODUCT = every(floating, same_dtypes)

ROWS = (
    Translation("aten.linear.default", ("Gemm", "MatMul", "Transpose", "Add"), _PRODUCT, keep=True),
    Translation("aten.addmm.default", ("Gemm",), _PRODUCT),
    Translation("aten.mm.default", ("MatMul",), _PRODUCT),
    Translation("aten.bmm.default", ("MatMul",), _PRODUCT),
    Translation("aten.matmul.default", ("MatMul",), _PRODUCT, keep=True),
    Translation(
        "aten.scaled_dot_product_attention.default",
        ("MatMul", "Mul", "Softmax", "Transpose", "Add", "Where", "GreaterOrEqual", "Expand", "Reshape"),
        attention.check,
        keep=True,
        beside=BOOL,
        translate=attention.translate,
    ),
)
