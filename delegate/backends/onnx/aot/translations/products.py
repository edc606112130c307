"""Products of matrices, and attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from delegate.backends.lowering import every
from delegate.backends.onnx.aot import attention
from delegate.backends.onnx.aot.translations.row import BOOL, floating, ints, ops, row, same_dtypes, scalar


def row_products(x: Any, matrix: Any, vector: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    """beta x + alpha (matrix @ vector)."""
    return _sum(x, ops().MatMul(matrix, vector), beta, alpha)


def products(x: Any, y: Any) -> Any:
    """x @ y, vectors as matrices: ONNX Runtime joins a transpose with what it takes for one."""
    op, left, right = ops(), len(x.shape) == 1, len(y.shape) == 1
    x, y = op.Unsqueeze(x, ints([0])) if left else x, op.Unsqueeze(y, ints([1])) if right else y
    product = op.MatMul(x, y)
    axes = [-2] * left + [-1] * right
    return op.Squeeze(product, ints(axes)) if axes else product


def summed_products(x: Any, first: Any, second: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    """beta x + alpha (the sum of the batch's products)."""
    op = ops()
    return _sum(x, op.ReduceSum(op.MatMul(first, second), ints([0]), keepdims=0), beta, alpha)


def _sum(x: Any, product: Any, beta: float, alpha: float) -> Any:
    op = ops()
    scaled = product if alpha == 1 else op.Mul(product, scalar(alpha, x))
    return op.Add(x if beta == 1 else op.Mul(x, scalar(beta, x)), scaled)


def trilinear(
    first: Any,
    second: Any,
    third: Any,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Any:
    """The product of three, each with dimensions of 1 added, summed over some."""
    op = ops()
    wide = [
        op.Unsqueeze(x, ints(list(added))) if added else x
        for x, added in zip((first, second, third), (expand1, expand2, expand3), strict=True)
    ]
    return op.ReduceSum(op.Mul(op.Mul(wide[0], wide[1]), wide[2]), ints(list(sumdim)), keepdims=0)  # fmt: skip


_PRODUCT = every(floating, same_dtypes)

ROWS = (
    row("aten.linear.default", ("Gemm", "MatMul", "Transpose", "Add"), _PRODUCT, keep=True),
    row("aten.addmm.default", ("Gemm",), _PRODUCT),
    row("aten.addmv.default", ("MatMul", "Mul", "Add"), _PRODUCT, translate=row_products),
    row("aten.addbmm.default", ("MatMul", "ReduceSum", "Mul", "Add"), _PRODUCT, translate=summed_products),
    row("aten._trilinear.default", ("Mul", "ReduceSum", "Unsqueeze"), _PRODUCT, translate=trilinear),
    row("aten.mm.default", ("MatMul",), _PRODUCT),
    row("aten.bmm.default", ("MatMul",), _PRODUCT),
    row("aten.matmul.default", ("MatMul", "Unsqueeze", "Squeeze"), _PRODUCT, keep=True, translate=products),
    row(
        "aten.scaled_dot_product_attention.default",
        ("MatMul", "Mul", "Softmax", "Transpose", "Add", "Where", "GreaterOrEqual", "Expand", "Reshape"),
        attention.check,
        keep=True,
        also=BOOL,
        translate=attention.translate,
    ),
)
