"""Operators of transformers: matrix products with the weights of several experts."""

from __future__ import annotations

import numpy as np

from delegate.errors import KernelError
from delegate.kernels.half_precision import Array
from delegate.kernels.operands import WIDE
from delegate.kernels.table import KernelTable
from delegate.program.dtypes import DType

TABLE = KernelTable("transformers")


@TABLE.kernel("transformers.grouped_mm_fallback.default", dtypes=WIDE | {DType.int32, DType.int64})
def grouped_mm(x: Array, weight: Array, ends: Array, *, out: Array) -> None:
    """Multiply x (rows, in), sorted by expert, with weight (experts, in, out); ends (experts): the end of each one's
    rows.

    Rows after the last expert's rows become 0.
    """
    start = 0
    for matrix, end in zip(weight, ends.tolist(), strict=True):
        if not start <= end <= len(x):
            raise KernelError(
                f"the rows of an expert run from {start} to {end}, but there are {len(x)} rows",
                remedy="check the offsets, which must increase",
            )
        if end > start:
            np.matmul(x[start:end], matrix, out=out[start:end])
        start = end
    out[start:] = 0
