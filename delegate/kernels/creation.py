"""Tensors made from numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from delegate.kernels.copies import CONVERTIBLE
from delegate.kernels.half_precision import Array
from delegate.kernels.table import ANY, REAL, TABLE
from delegate.program.dtypes import DType
from delegate.program.raw import check_room

Number = int | float


@TABLE.kernel("aten.full.default", "aten.full_like.default", "aten.fill.Scalar", dtypes=CONVERTIBLE)
def full(_shape: Any, value: Any, *_options: Any, out: Array) -> None:
    """Fill with a number, which torch converts so that integers truncate a fraction."""
    np.copyto(out, np.asarray(value), casting="unsafe")


@TABLE.kernel("aten.scalar_tensor.default", dtypes=CONVERTIBLE)
def scalar_tensor(value: Any, *_options: Any, out: Array) -> None:
    full(None, value, out=out)


@TABLE.kernel("aten.arange.start_step", dtypes=REAL)
def arange(start: Number, end: Number, step: Number, *_options: Any, out: Array) -> None:
    """Write start + step * i; in integers for integers."""
    if out.dtype.kind in "iu":
        start, step = int(start), int(step)
    np.copyto(out, np.arange(out.size) * step + start, casting="unsafe")


@TABLE.kernel("aten.tril_indices.default", dtypes={DType.int32, DType.int64})
def tril_indices(rows: int, columns: int, offset: int, *_options: Any, out: Array) -> None:
    check_room((rows, columns), out.dtype, out)
    out[...] = np.tril_indices(rows, offset, columns)


@TABLE.kernel("aten.triu_indices.default", dtypes={DType.int32, DType.int64})
def triu_indices(rows: int, columns: int, offset: int, *_options: Any, out: Array) -> None:
    check_room((rows, columns), out.dtype, out)
    out[...] = np.triu_indices(rows, offset, columns)


@TABLE.kernel(
    "aten.empty.memory_format", "aten.empty_strided.default", "aten.empty_permuted.default",
    "aten.new_empty_strided.default",
    dtypes=ANY,
)  # fmt: skip
def empty(*_args: Any, out: Array) -> None:
    """Fill with zeros what torch leaves uninitialized, so that every run gives the same result."""
    out.fill(0)
