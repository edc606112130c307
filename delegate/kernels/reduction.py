"""Reductions (sum, mean, product, extrema, any and all, variance, norms) and cumulative sums, products and extrema."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from delegate.kernels import short_rows
from delegate.kernels.half_precision import Array
from delegate.kernels.operands import WIDE, WIDE_COMPLEX, axes_of, axis_of, cast, count_of
from delegate.kernels.sums import add
from delegate.kernels.table import BOOL, COMPLEX, INT, REAL, TABLE, UNSIGNED
from delegate.program.dtypes import DType
from delegate.program.raw import same_shape

_ROWS = 64  # of factors that are multiplied independently

Dims = int | Sequence[int] | None


def reduce(ufunc: np.ufunc, x: Array, dim: Dims, keepdim: bool, *, out: Array) -> None:
    """Reduce in out's dtype."""
    if not np.can_cast(x.dtype, out.dtype, "same_kind"):
        x = x.astype(out.dtype)
    if ufunc is np.add:
        add(x, axes_of(x, dim), dtype=out.dtype, out=out, keepdims=keepdim)
    else:
        short_rows.reduce(ufunc, x, axes_of(x, dim), dtype=out.dtype, out=out, keepdims=keepdim)


def _reduce_all(ufunc: np.ufunc, x: Array, _dtype: DType | None = None, *, out: Array) -> None:
    reduce(ufunc, x, None, False, out=out)


def _reduce_dims(
    ufunc: np.ufunc, x: Array, dim: Dims, keepdim: bool, _dtype: DType | None = None, *, out: Array
) -> None:
    reduce(ufunc, x, dim, keepdim, out=out)


_NUMBERS = WIDE_COMPLEX | INT | BOOL
_OVER_ALL: dict[str, np.ufunc] = {
    "max.default": np.maximum, "min.default": np.minimum,
}  # fmt: skip
_OVER_DIMS: dict[str, np.ufunc] = {
    "sum.dim_IntList": np.add, "prod.dim_int": np.multiply, "amax.default": np.maximum, "amin.default": np.minimum,
}  # fmt: skip
for _name, _ufunc in _OVER_ALL.items():
    TABLE.kernel(f"aten.{_name}", dtypes=_NUMBERS | UNSIGNED)(partial(_reduce_all, _ufunc))
for _name, _ufunc in _OVER_DIMS.items():
    TABLE.kernel(f"aten.{_name}", dtypes=_NUMBERS | UNSIGNED)(partial(_reduce_dims, _ufunc))


@TABLE.kernel("aten.prod.default", dtypes=_NUMBERS | UNSIGNED)
def product(x: Array, _dtype: DType | None, *, out: Array) -> None:
    """Multiply in independent rows while they are long: in a single product, each multiplication waits for the last."""
    flat = x.reshape(-1)
    while flat.size >= _ROWS * _ROWS:
        even = flat.size // _ROWS * _ROWS
        rows = np.multiply.reduce(flat[:even].reshape(_ROWS, -1), axis=0, dtype=out.dtype)
        flat = np.concatenate([rows, flat[even:].astype(out.dtype)])
    reduce(np.multiply, flat, None, False, out=out)


@TABLE.kernel("aten.any.default", "aten.any.dim", "aten.any.dims", dtypes=REAL | COMPLEX | UNSIGNED)
def any_(x: Array, dim: Dims = None, keepdim: bool = False, *, out: Array) -> None:
    """Find out if an element is true; unlike in other reductions, an empty list of dimensions names none."""
    np.logical_or.reduce(x, axis=() if dim == [] else axes_of(x, dim), out=out, keepdims=keepdim)


@TABLE.kernel("aten.mean.default", dtypes=_NUMBERS)
def mean_all(x: Array, _dtype: DType | None, *, out: Array) -> None:
    mean(x, None, False, _dtype, out=out)


@TABLE.kernel("aten.mean.dim", dtypes=_NUMBERS)
def mean(x: Array, dim: Dims, keepdim: bool, _dtype: DType | None, *, out: Array) -> None:
    reduce(np.add, x, dim, keepdim, out=out)
    np.divide(out, count_of(x, axes_of(x, dim)), out=out)


def _argument(maximum: bool, x: Array, dim: int | None, keepdim: bool, *, out: Array) -> None:
    """Find the first index of the extremum; NaN counts as the extremum."""
    find = np.argmax if maximum else np.argmin
    np.copyto(out, find(x, axis=dim if x.ndim else None, keepdims=keepdim))


def _extremum(maximum: bool, x: Array, dim: int, keepdim: bool, *, out: tuple[Array, Array]) -> None:
    """Find values and first indices along a dimension."""
    reduce(np.maximum if maximum else np.minimum, x, dim, keepdim, out=out[0])
    _argument(maximum, x, dim, keepdim, out=out[1])


for _name, _maximum in (("max", True), ("min", False)):
    TABLE.kernel(f"aten.arg{_name}.default", dtypes=WIDE | INT | BOOL)(partial(_argument, _maximum))
    TABLE.kernel(f"aten.{_name}.dim", dtypes=WIDE | INT | BOOL)(partial(_extremum, _maximum))


def variance(x: Array, dim: Dims, correction: float, keepdim: bool, out: Array, mean_out: Array | None = None) -> None:
    """Compute the real variance about the mean in two passes, divided by max(count - correction, 0)."""
    axes = axes_of(x, dim)
    count = count_of(x, axes)
    center = np.divide(add(x, axes, keepdims=True), count)
    difference = np.subtract(x, center)
    rest = np.abs(add(difference, axes, keepdims=keepdim))  # of the rounding of the mean
    if x.dtype.kind == "c":
        difference = np.abs(difference)
    add(np.square(difference, out=difference if x.ndim else None), axes, keepdims=keepdim, out=out)
    np.maximum(out - np.square(rest) / max(1, count), 0, out=out)
    np.divide(out, max(0.0, count - correction), out=out)
    if mean_out is not None:
        np.copyto(mean_out, center.reshape(mean_out.shape))


@TABLE.kernel("aten.var.correction", "aten.var.dim", "aten.var_mean.correction", dtypes=WIDE_COMPLEX)
def var(x: Array, dim: Dims, correction: float | None, keepdim: bool, *, out: Array | tuple[Array, Array]) -> None:
    """Compute the variance, and the mean; `correction` None means 1; True and False of `var.dim` mean 1 and 0."""
    result, mean_out = out if isinstance(out, tuple) else (out, None)
    variance(x, dim, 1.0 if correction is None else float(correction), keepdim, result, mean_out)


@TABLE.kernel("aten.linalg_vector_norm.default", dtypes=WIDE_COMPLEX)
def vector_norm(x: Array, order: float, dim: Dims, keepdim: bool, _dtype: DType | None, *, out: Array) -> None:
    """Compute (sum |x| ** order) ** (1 / order), or its limit for 0, infinity and minus infinity."""
    size = np.empty(x.shape, out.dtype)
    np.abs(x, out=size)
    if order in (math.inf, -math.inf):
        reduce(np.maximum if order > 0 else np.minimum, size, dim, keepdim, out=out)
    elif order == 0:
        add(size != 0, axes_of(x, dim), dtype=out.dtype, out=out, keepdims=keepdim)
    else:
        if order == 2:
            np.square(size, out=size)
        elif order != 1:
            np.power(size, order, out=size)
        reduce(np.add, size, dim, keepdim, out=out)
        if order == 2:
            np.sqrt(out, out=out)
        elif order != 1:
            np.power(out, 1.0 / order, out=out)


@TABLE.kernel("aten.logsumexp.default", dtypes=WIDE | INT | BOOL, whole=True)
def logsumexp(x: Array, dim: Dims, keepdim: bool, *, out: Array) -> None:
    """Compute log(sum(exp(x))), shifted by the largest element unless that is infinite."""
    x, axes = cast(x, out.dtype), axes_of(x, dim)
    largest = np.maximum.reduce(x, axis=axes, keepdims=True, initial=-math.inf)
    largest = np.where(np.isinf(largest), x.dtype.type(0), largest)
    shifted = np.subtract(x, largest)
    add(np.exp(shifted, out=shifted if x.ndim else None), axes, keepdims=keepdim, out=out)
    np.log(out, out=out)
    np.add(out, largest.reshape(out.shape), out=out)


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


def _running_extremum(maximum: bool, x: Array, dim: int, *, out: tuple[Array, Array]) -> None:
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


TABLE.kernel("aten.cummax.default", dtypes=WIDE | INT | BOOL)(partial(_running_extremum, True))
TABLE.kernel("aten.cummin.default", dtypes=WIDE | INT | BOOL)(partial(_running_extremum, False))
