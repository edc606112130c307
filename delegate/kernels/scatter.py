"""Gather, scatter and reductions by index: element [i, j] belongs to index[i, j] along one dimension."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from delegate.kernels.half_precision import Array
from delegate.kernels.indexing import check_indices
from delegate.kernels.operands import along, cast
from delegate.kernels.portable_table import TABLE
from delegate.kernels.table import ANY, COMPLEX, REAL
from delegate.kernels.views import along as slices
from delegate.program.dtypes import DType
from delegate.program.raw import combine_at

_SUMS = (REAL | COMPLEX) - {DType.float16}
_MAX_CACHED = 1 << 12  # elements of a cached array of offsets
_UFUNCS = {
    "sum": np.add,
    "add": np.add,
    "mean": np.add,
    "prod": np.multiply,
    "multiply": np.multiply,
    "amax": np.maximum,
    "amin": np.minimum,
}


@lru_cache(maxsize=256)
def _offsets(shape: tuple[int, ...], size: tuple[int, ...], axis: int) -> Array:
    """Return offsets in a row-major array of `size` for the elements of an index of `shape`, without its own axis."""
    total = np.zeros([1] * len(shape), np.int64)
    for d, count in enumerate(shape):
        if d != axis and count > 1:
            total = total + along(np.arange(count) * math.prod(size[d + 1 :]), len(shape), d)
    total.flags.writeable = False
    return total


def _places(x: Array, dim: int, index: Array) -> Array:
    """Return the places in the flattened row-major `x` that `index` names; its other dimensions may be smaller.

    The part that depends only on shapes is cached if it is small.
    """
    axis = dim % x.ndim
    step = math.prod(x.shape[axis + 1 :])
    offsets = _offsets if index.size <= _MAX_CACHED else _offsets.__wrapped__
    places = check_indices(index, x.shape[axis]) * step if step > 1 else check_indices(index, x.shape[axis])
    result: Array = places if x.ndim == 1 else places + offsets(index.shape, x.shape, axis)
    return result


def _used_part(source: Any, index: Array) -> Any:
    """Return the part of the source that the index uses; scalars are returned unchanged."""
    return source[tuple(slice(n) for n in index.shape)] if isinstance(source, np.ndarray) else source


def _copy(x: Array, index: Array, source: Any, out: Array) -> tuple[Array, Array, Any]:
    """Copy `x` to `out`; return `out`, the index and the source with at least one dimension each."""
    np.copyto(out, x)
    source = np.atleast_1d(source) if isinstance(source, np.ndarray) else cast(source, out.dtype)[()]
    return np.atleast_1d(out), np.atleast_1d(index), source


@TABLE.kernel("aten.gather.default", dtypes=ANY)
def gather(x: Array, dim: int, index: Array, sparse_grad: bool, *, out: Array) -> None:
    x, index = np.atleast_1d(x), np.atleast_1d(index)
    x.reshape(-1).take(_places(x, dim, index).reshape(out.shape), out=out, mode="clip")


@TABLE.kernel("aten.scatter.src", "aten.scatter.value", dtypes=ANY - {DType.bfloat16}, in_place=True)
def scatter(x: Array, dim: int, index: Array, source: Any, *, out: Array) -> None:
    out, index, source = _copy(x, index, source, out)
    if index.size:
        part = _used_part(source, index)
        out.reshape(-1, copy=False)[_places(out, dim, index)] = part


@TABLE.kernel("aten.scatter_add.default", dtypes=_SUMS, in_place=True)
def scatter_add(x: Array, dim: int, index: Array, source: Array, *, out: Array) -> None:
    scatter_reduce(x, dim, index, source, "sum", True, out=out)


@TABLE.kernel("aten.scatter.reduce", "aten.scatter.value_reduce", dtypes=_SUMS, in_place=True)
def scatter_with(x: Array, dim: int, index: Array, source: Any, how: str, *, out: Array) -> None:
    scatter_reduce(x, dim, index, source, how, True, out=out)


@TABLE.kernel("aten.scatter_reduce.two", dtypes=_SUMS, in_place=True)
def scatter_reduce(x: Array, dim: int, index: Array, source: Any, how: str, include_self: bool, *, out: Array) -> None:
    """Combine each place's own value (unless not include_self) with all source values for this place."""
    out, index, source = _copy(x, index, source, out)
    if index.size:
        part = _used_part(source, index)
        places = _places(out, dim, index).reshape(-1)
        flat = part.reshape(-1) if isinstance(part, np.ndarray) else part
        _combine(out.reshape(-1, copy=False), (places,), flat, how, include_self)


@TABLE.kernel("aten.index_reduce.default", dtypes=_SUMS - {DType.bool} - COMPLEX, in_place=True)
def index_reduce(x: Array, dim: int, index: Array, source: Array, how: str, include_self: bool, *, out: Array) -> None:
    """Reduce whole slices like `scatter_reduce`; index (n) names the slice of `x` for every slice of the source."""
    out, index, source = _copy(x, index, source, out)
    if index.size:
        _combine(out, slices(dim, out.ndim, check_indices(index, out.shape[dim])), source, how, include_self)


def _combine(out: Array, places: tuple[Any, ...], source: Any, how: str, include_self: bool) -> None:
    ufunc = _UFUNCS[how]
    if not include_self:
        out[places] = _identity(ufunc, out.dtype)
    combine_at(ufunc, out, places, source)
    if how == "mean":
        counts = np.full(out.shape, int(include_self), np.int64)
        combine_at(np.add, counts, places, 1)
        np.maximum(counts, 1, out=counts)
        divide = np.divide if out.dtype.kind in "fc" else np.floor_divide
        divide(out, counts, out=out, casting="unsafe")


def _identity(ufunc: np.ufunc, dtype: np.dtype[Any]) -> Any:
    """Return the value that leaves all others unchanged under a ufunc."""
    if ufunc.identity is not None:
        return ufunc.identity
    if dtype.kind == "f":
        return -np.inf if ufunc is np.maximum else np.inf
    if dtype.kind == "b":
        return ufunc is np.minimum
    limits = np.iinfo(dtype)
    return limits.min if ufunc is np.maximum else limits.max
