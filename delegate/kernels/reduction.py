"""Reductions: sum, mean, product, extrema, any and all, variance, norms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from delegate.kernels.half_precision import Array
from delegate.kernels.operands import WIDE, WIDE_COMPLEX, axes_of, cast, count_of
from delegate.kernels.portable_table import TABLE
from delegate.kernels.table import BOOL, COMPLEX, INT, REAL, UNSIGNED
from delegate.program.dtypes import DType

_ROWS = 64  # of factors that are multiplied independently

Dims = int | Sequence[int] | None


def reduce(ufunc: np.ufunc, x: Array, dim: Dims, keepdim: bool, *, out: Array) -> None:
    """Reduce in out's dtype."""
    if not np.can_cast(x.dtype, out.dtype, "same_kind"):
        x = x.astype(out.dtype)
    ufunc.reduce(x, axis=axes_of(x, dim), dtype=out.dtype, out=out, keepdims=keepdim)


def _reduce_all(ufunc: np.ufunc, x: Array, _dtype: DType | None = None, *, out: Array) -> None:
    reduce(ufunc, x, None, False, out=out)


def _reduce_dims(
    ufunc: np.ufunc, x: Array, dim: Dims, keepdim: bool, _dtype: DType | None = None, *, out: Array
) -> None:
    reduce(ufunc, x, dim, keepdim, out=out)


_NUMBERS = WIDE_COMPLEX | INT | BOOL
_OVER_ALL: dict[str, np.ufunc] = {
    "sum.default": np.add, "max.default": np.maximum, "min.default": np.minimum,
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


def _truth(ufunc: np.ufunc, x: Array, dim: Dims = None, keepdim: bool = False, *, out: Array) -> None:
    """Reduce truth values. Unlike in other reductions, an empty list of dimensions names none."""
    ufunc.reduce(x, axis=() if dim == [] else axes_of(x, dim), out=out, keepdims=keepdim)


for _name, _ufunc in (("any", np.logical_or), ("all", np.logical_and)):
    _ops = [f"aten.{_name}.{overload}" for overload in ("default", "dim", "dims")]
    TABLE.kernel(*_ops, dtypes=REAL | COMPLEX | UNSIGNED)(partial(_truth, _ufunc))


@TABLE.kernel("aten.mean.default", dtypes=_NUMBERS)
def mean_all(x: Array, _dtype: DType | None, *, out: Array) -> None:
    mean(x, None, False, _dtype, out=out)


@TABLE.kernel("aten.mean.dim", dtypes=_NUMBERS)
def mean(x: Array, dim: Dims, keepdim: bool, _dtype: DType | None, *, out: Array) -> None:
    reduce(np.add, x, dim, keepdim, out=out)
    np.divide(out, count_of(x, axes_of(x, dim)), out=out)


@TABLE.kernel("aten.nansum.default", dtypes=WIDE | INT | BOOL)
def nansum(x: Array, dim: Dims, keepdim: bool, _dtype: DType | None, *, out: Array) -> None:
    reduce(np.add, np.where(np.isnan(x), x.dtype.type(0), x), dim, keepdim, out=out)


@TABLE.kernel("aten.count_nonzero.default", "aten.count_nonzero.dim_IntList", dtypes=REAL | COMPLEX)
def count_nonzero(x: Array, dim: Dims, *, out: Array) -> None:
    np.copyto(out, np.count_nonzero(x, axis=axes_of(x, dim)))


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


@TABLE.kernel("aten.aminmax.default", dtypes=WIDE | INT | BOOL)
def aminmax(x: Array, dim: int | None, keepdim: bool, *, out: tuple[Array, Array]) -> None:
    reduce(np.minimum, x, dim, keepdim, out=out[0])
    reduce(np.maximum, x, dim, keepdim, out=out[1])


def variance(x: Array, dim: Dims, correction: float, keepdim: bool, out: Array, mean_out: Array | None = None) -> None:
    """Compute the real variance about the mean in two passes, divided by max(count - correction, 0)."""
    axes = axes_of(x, dim)
    count = count_of(x, axes)
    center = np.divide(np.add.reduce(x, axis=axes, keepdims=True), count)
    difference = np.subtract(x, center)
    if x.dtype.kind == "c":
        difference = np.abs(difference)
    np.add.reduce(np.square(difference, out=difference if x.ndim else None), axis=axes, keepdims=keepdim, out=out)
    np.divide(out, max(0.0, count - correction), out=out)
    if mean_out is not None:
        np.copyto(mean_out, center.reshape(mean_out.shape))


def _var(
    root: bool, x: Array, dim: Dims, correction: float | None, keepdim: bool, *, out: Array | tuple[Array, Array]
) -> None:
    """Compute variance or deviation; `correction` None means 1; True and False of older overloads mean 1 and 0."""
    result, mean_out = out if isinstance(out, tuple) else (out, None)
    variance(x, dim, 1.0 if correction is None else float(correction), keepdim, result, mean_out)
    if root:
        np.sqrt(result, out=result)


def _var_all(root: bool, x: Array, unbiased: bool, *, out: Array | tuple[Array, Array]) -> None:
    _var(root, x, None, unbiased, False, out=out)


for _name, _root in (("var", False), ("std", True), ("var_mean", False), ("std_mean", True)):
    TABLE.kernel(f"aten.{_name}.correction", f"aten.{_name}.dim", dtypes=WIDE_COMPLEX)(partial(_var, _root))
    TABLE.kernel(f"aten.{_name}.default", dtypes=WIDE_COMPLEX)(partial(_var_all, _root))


@TABLE.kernel("aten.linalg_vector_norm.default", dtypes=WIDE_COMPLEX)
def vector_norm(x: Array, order: float, dim: Dims, keepdim: bool, _dtype: DType | None, *, out: Array) -> None:
    """Compute (sum |x| ** order) ** (1 / order), or its limit for 0, infinity and minus infinity."""
    size = np.empty(x.shape, out.dtype)
    np.abs(x, out=size)
    if order in (math.inf, -math.inf):
        reduce(np.maximum if order > 0 else np.minimum, size, dim, keepdim, out=out)
    elif order == 0:
        np.add.reduce(size != 0, axis=axes_of(x, dim), dtype=out.dtype, out=out, keepdims=keepdim)
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


@TABLE.kernel("aten.norm.ScalarOpt_dim", dtypes=WIDE_COMPLEX)
def norm(x: Array, order: float | None, dim: Dims, keepdim: bool, *, out: Array) -> None:
    vector_norm(x, 2 if order is None else order, dim, keepdim, None, out=out)


@TABLE.kernel("aten.norm.Scalar", dtypes=WIDE_COMPLEX)
def norm_all(x: Array, order: float, *, out: Array) -> None:
    vector_norm(x, order, None, False, None, out=out)


@TABLE.kernel("aten.logsumexp.default", dtypes=WIDE | INT | BOOL, whole=True)
def logsumexp(x: Array, dim: Dims, keepdim: bool, *, out: Array) -> None:
    """Compute log(sum(exp(x))), shifted by the largest element unless that is infinite."""
    x, axes = cast(x, out.dtype), axes_of(x, dim)
    largest = np.maximum.reduce(x, axis=axes, keepdims=True, initial=-math.inf)
    largest = np.where(np.isinf(largest), x.dtype.type(0), largest)
    shifted = np.subtract(x, largest)
    np.add.reduce(np.exp(shifted, out=shifted if x.ndim else None), axis=axes, keepdims=keepdim, out=out)
    np.log(out, out=out)
    np.add(out, largest.reshape(out.shape), out=out)
