"""Operators of transformers: matrix products with the weights of several experts."""

from __future__ import annotations

from delegate.kernels.half_precision import HALF, Array
from delegate.kernels.linear_algebra import grouped_product
from delegate.kernels.operands import WIDE
from delegate.kernels.table import KernelTable
from delegate.program.dtypes import DType

TABLE = KernelTable("transformers")


@TABLE.kernel("transformers.grouped_mm_fallback.default", dtypes=WIDE | HALF | {DType.int32, DType.int64})
def grouped_mm(x: Array, weight: Array, ends: Array, *, out: Array) -> None:
    """Multiply x (rows, in), sorted by expert, with weight (experts, in, out); ends (experts): the end of each one's
    rows.

    Rows after the last expert's rows become 0.
    """
    grouped_product(x, weight, ends, out)
