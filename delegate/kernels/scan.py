"""Scans along one dimension: cumulative sums, products and extrema."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from delegate.kernels.half_precision import Array
from delegate.kernels.operands import WIDE, WIDE_COMPLEX, axis_of
from delegate.kernels.portable_table import TABLE
from delegate.kernels.table import BOOL, INT, UNSIGNED
from delegate.program.dtypes import DType
from delegate.program.raw import same_shape

_WIDER = {np.dtype(np.float32): np.dtype(np.float64), np.dtype(np.complex64): np.dtype(np.complex128)}
_STEP, _INNER = 1 << 10, 1 << 6  # elements of one step of a scan, and the adjacent ones among them


def _accumulate(ufunc: np.ufunc, x: Array, dim: int, _dtype: DType | None = None, *, out: Array) -> None:
    """Scan; float32 accumulates in float64, as in torch, because a running sum has no pairwise summation."""
    if x.ndim == 0:
        np.copyto(out, x, casting="unsafe")
        return
    if x.dtype.kind in "fc" and out.dtype.kind not in "fc":
        x = x.astype(out.dtype)
    axis, wide = axis_of(x, dim), _WIDER.get(out.dtype, out.dtype)
    if _steps_are_long(x.shape, axis):
        _step_by_step(ufunc, np.moveaxis(x, axis, 0), wide, np.moveaxis(out, axis, 0))
        return
    total = x.astype(wide)
    ufunc.accumulate(total, axis=axis, out=total)
    np.copyto(out, total, casting="same_kind")


def _steps_are_long(shape: Sequence[int], axis: int) -> bool:
    """Return if each position along a nonempty axis has enough elements for a NumPy call."""
    inner = prod(shape[axis + 1 :])
    return shape[axis] > 0 and inner >= _INNER and prod(shape[:axis]) * inner >= _STEP


def _step_by_step(ufunc: np.ufunc, x: Array, wide: np.dtype[Any], out: Array) -> None:
    """Scan along the first dimension; NumPy's own strided access would take up to ten times as long."""
    total = x[0].astype(wide)
    np.copyto(out[0], total, casting="same_kind")
    for step, result in zip(x[1:], out[1:], strict=True):
        ufunc(total, step, out=total, dtype=wide, casting="unsafe")
        np.copyto(result, total, casting="same_kind")


TABLE.kernel("aten.cumsum.default", dtypes=WIDE_COMPLEX | INT | BOOL | UNSIGNED)(partial(_accumulate, np.add))
TABLE.kernel("aten.cumprod.default", dtypes=WIDE_COMPLEX | INT | BOOL | UNSIGNED)(partial(_accumulate, np.multiply))


@TABLE.kernel("aten.logcumsumexp.default", dtypes=WIDE)
def logcumsumexp(x: Array, dim: int, *, out: Array) -> None:
    _accumulate(np.logaddexp, x, dim, out=out)


def _extremum(maximum: bool, x: Array, dim: int, *, out: tuple[Array, Array]) -> None:
    """Find the running extremum and its last index; NaN stays once it occurs."""
    values, indices = out
    if x.ndim == 0:
        np.copyto(values, x)
        indices.fill(0)
        return
    same_shape(x, values, indices)
    axis = axis_of(x, dim)
    (np.maximum if maximum else np.minimum).accumulate(x, axis=axis, out=values)
    here = (x == values) | np.isnan(x)
    positions = np.arange(x.shape[axis]).reshape([-1 if d == axis else 1 for d in range(x.ndim)])
    np.maximum.accumulate(np.where(here, positions, 0), axis=axis, out=indices)


TABLE.kernel("aten.cummax.default", dtypes=WIDE | INT | BOOL)(partial(_extremum, True))
TABLE.kernel("aten.cummin.default", dtypes=WIDE | INT | BOOL)(partial(_extremum, False))
