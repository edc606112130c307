"""Operators whose result sizes depend on data. Their kernels allocate the results."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from delegate.kernels import views
from delegate.kernels.copies import CONVERTIBLE
from delegate.kernels.half_precision import Array
from delegate.kernels.indexing import to_numpy_index
from delegate.kernels.operands import axis_of
from delegate.kernels.table import ANY, FLOAT, INT, REAL, TABLE
from delegate.program.dtypes import DType
from delegate.program.raw import check_room, occurrences, repeated

Unique = tuple[Array, Array, Array]  # values, inverse, counts; the last two are empty if not requested


@TABLE.allocating("aten.nonzero.default", dtypes=CONVERTIBLE)
def nonzero(x: Array) -> Array:
    """Return the coordinates of nonzero elements (count, rank)."""
    return np.argwhere(x)


@TABLE.allocating("aten.masked_select.default", dtypes=ANY)
def masked_select(x: Array, mask: Array) -> Array:
    """Return the elements of x where the mask is true (count); both broadcast."""
    x, mask = np.broadcast_arrays(x, mask)
    return np.array(x[mask.astype(bool, copy=False)])


@TABLE.allocating("aten.index.Tensor", dtypes=ANY)
def index_tensor(x: Array, indices: Sequence[Array | None]) -> Array:
    """Return `x` at indices, which may be masks."""
    return np.array(x[to_numpy_index(indices)], order="C")


@TABLE.allocating("aten.repeat_interleave.Tensor", dtypes={DType.int32, DType.int64})
def repeat_interleave(repeats: Array, output_size: int | None) -> Array:
    """Repeat each position i repeats[i] times -> (sum of repeats)."""
    count = int(repeats.sum(dtype=np.float64))  # exact for every possible size
    return repeated(np.arange(len(repeats), dtype=repeats.dtype), repeats, 0, count)


@TABLE.allocating("aten.bincount.default", dtypes=INT | FLOAT)
def bincount(x: Array, weights: Array | None, minlength: int) -> Array:
    """Count each number from 0 on in x (n), or sum its weights (n)."""
    check_room((minlength,), np.dtype(np.int64), x)
    counts = occurrences(x, weights, minlength)
    return counts.astype(np.float32) if weights is not None and weights.dtype == np.float32 else counts


@TABLE.allocating("aten._unique2.default", dtypes=REAL)
def unique2(x: Array, sorted_: bool, return_inverse: bool, return_counts: bool) -> Unique:
    """Return the distinct elements in order, the position of each element of x among them, and their counts."""
    values, inverse, counts = np.unique(x, return_inverse=True, return_counts=True, equal_nan=False)
    return values, _if_requested(inverse.reshape(x.shape), return_inverse), _if_requested(counts, return_counts)


@TABLE.allocating("aten.unique_dim.default", dtypes=REAL)
def unique_dim(x: Array, dim: int, sorted_: bool, return_inverse: bool, return_counts: bool) -> Unique:
    """Return the distinct slices of a dimension, with positions and counts, which torch always returns."""
    axis = axis_of(x, dim)
    values, inverse, counts = np.unique(x, return_inverse=True, return_counts=True, axis=axis, equal_nan=False)
    return values, inverse.reshape(-1), counts


@TABLE.allocating("aten.unique_consecutive.default", dtypes=REAL)
def unique_consecutive(x: Array, return_inverse: bool, return_counts: bool, dim: int | None) -> Unique:
    """Return each run of equal elements (or of equal slices of a dimension) once, in the order of x."""
    rows = x.reshape(-1, 1) if dim is None else np.moveaxis(x, dim, 0).reshape(x.shape[dim], -1)
    begins = np.ones(len(rows), bool)
    begins[1:] = (rows[1:] != rows[:-1]).any(axis=1)
    values = x.reshape(-1)[begins] if dim is None else np.compress(begins, x, axis=dim)
    inverse = (np.cumsum(begins) - 1).reshape(x.shape if dim is None else -1)
    counts = np.diff(np.append(np.flatnonzero(begins), len(rows)))
    slices = dim is not None  # then torch always returns both
    return values, _if_requested(inverse, return_inverse or slices), _if_requested(counts, return_counts or slices)


def _if_requested(result: Array, requested: bool) -> Array:
    return result if requested else np.empty(0, result.dtype)


@TABLE.allocating("aten.slice.Tensor", dtypes=ANY)
def slice_tensor(x: Array, dim: int, start: int | None, end: int | None, step: int) -> Array:
    """Return a copy of the slice: its bounds are numbers of the data, so that a view of that size cannot be planned."""
    return np.array(views.slice_tensor(x, dim, start, end, step), order="C")
