"""Tensors made from numbers."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from delegate.kernels.copies import CONVERTIBLE
from delegate.kernels.half_precision import Array
from delegate.kernels.table import ANY, REAL, TABLE
from delegate.program.dtypes import DType
from delegate.program.raw import check_room

Number = int | float


def _fill(out: Array, value: Any) -> None:
    """Convert as torch does: integers truncate a fraction."""
    np.copyto(out, np.asarray(value), casting="unsafe")


@TABLE.kernel("aten.full.default", dtypes=CONVERTIBLE)
def full(size: Any, value: Any, *_options: Any, out: Array) -> None:
    _fill(out, value)


@TABLE.kernel("aten.full_like.default", "aten.fill.Scalar", "aten.fill.Tensor", dtypes=CONVERTIBLE)
def full_like(x: Array, value: Any, *_options: Any, out: Array) -> None:
    _fill(out, value)


@TABLE.kernel("aten.new_full.default", dtypes=CONVERTIBLE)
def new_full(x: Array, size: Any, value: Any, *_options: Any, out: Array) -> None:
    _fill(out, value)


@TABLE.kernel("aten.scalar_tensor.default", dtypes=CONVERTIBLE)
def scalar_tensor(value: Any, *_options: Any, out: Array) -> None:
    _fill(out, value)


def constant(value: int, *_args: Any, out: Array) -> None:
    """Fill a tensor with one value, regardless of the arguments that give its shape."""
    out.fill(value)


@TABLE.kernel("aten.arange.default", dtypes=REAL)
def arange_end(end: Number, *_options: Any, out: Array) -> None:
    _arange(0, 1, out)


@TABLE.kernel("aten.arange.start", dtypes=REAL)
def arange_start(start: Number, end: Number, *_options: Any, out: Array) -> None:
    _arange(start, 1, out)


@TABLE.kernel("aten.arange.start_step", dtypes=REAL)
def arange(start: Number, end: Number, step: Number, *_options: Any, out: Array) -> None:
    _arange(start, step, out)


def _arange(start: Number, step: Number, out: Array) -> None:
    """Write start + step * i; in integers for integers."""
    if out.dtype.kind in "iu":
        start, step = int(start), int(step)
    np.copyto(out, np.arange(out.size) * step + start, casting="unsafe")


@TABLE.kernel("aten.linspace.default", dtypes=REAL)
def linspace(start: Number, end: Number, steps: int, *_options: Any, out: Array) -> None:
    """Write evenly spaced numbers with both ends exact: the second half counts from the end."""
    if out.dtype.kind in "iu":
        start, end = int(start), int(end)
    check_room((steps,), out.dtype, out)
    index, step = np.arange(steps), (end - start) / max(steps - 1, 1)
    values = np.where(index < steps // 2, start + step * index, end - step * (steps - 1 - index))
    np.copyto(out, values if steps > 1 else start, casting="unsafe")


@TABLE.kernel("aten.logspace.default", dtypes=REAL)
def logspace(start: Number, end: Number, steps: int, base: float, *_options: Any, out: Array) -> None:
    check_room((steps,), out.dtype, out)
    np.copyto(out, np.power(base, np.linspace(start, end, steps)), casting="unsafe")


@TABLE.kernel("aten.eye.default", "aten.eye.m", dtypes=ANY - {DType.bfloat16})
def eye(*_args: Any, out: Array) -> None:
    out.fill(0)
    out.reshape(-1)[: min(out.shape) * out.shape[1] : out.shape[1] + 1] = 1


@TABLE.kernel("aten.tril_indices.default", dtypes={DType.int32, DType.int64})
def tril_indices(rows: int, columns: int, offset: int, *_options: Any, out: Array) -> None:
    check_room((rows, columns), out.dtype, out)
    out[...] = np.tril_indices(rows, offset, columns)


@TABLE.kernel("aten.triu_indices.default", dtypes={DType.int32, DType.int64})
def triu_indices(rows: int, columns: int, offset: int, *_options: Any, out: Array) -> None:
    check_room((rows, columns), out.dtype, out)
    out[...] = np.triu_indices(rows, offset, columns)


# Memory that torch leaves uninitialized is zero here, so every run gives the same result.
_CONSTANTS = {
    "zeros.default": 0,
    "zeros_like.default": 0,
    "new_zeros.default": 0,
    "empty.memory_format": 0,
    "empty_like.default": 0,
    "empty_strided.default": 0,
    "empty_permuted.default": 0,
    "new_empty.default": 0,
    "new_empty_strided.default": 0,
    "ones.default": 1,
    "ones_like.default": 1,
    "new_ones.default": 1,
}
for _op, _value in _CONSTANTS.items():
    TABLE.kernel(f"aten.{_op}", dtypes=ANY if _value == 0 else CONVERTIBLE)(partial(constant, _value))
