"""Statistics: medians, modes, counts of equal bins, distances."""

from __future__ import annotations

from functools import partial

import numpy as np

from delegate.errors import KernelError
from delegate.kernels.half_precision import Array
from delegate.kernels.operands import WIDE, axis_of
from delegate.kernels.reduction import vector_norm
from delegate.kernels.sorting import elements, order_of, place_of
from delegate.kernels.table import BOOL, COMPLEX, INT, TABLE
from delegate.program.raw import check_room, occurrences


def _median(skip_nan: bool, x: Array, dim: int, keepdim: bool, *, out: tuple[Array, Array]) -> None:
    """Find the lower median and its index; NaN elements either are skipped or make the median NaN."""
    line = np.moveaxis(x, axis_of(x, dim), -1) if x.ndim else x.reshape(1)
    nans = _count_nan(line)
    if nans is None:
        indices = place_of(line, (line.shape[-1] - 1) // 2)
    else:
        count = line.shape[-1]
        middle = np.maximum(count - nans - 1, 0) // 2
        place = middle if skip_nan else np.where(nans > 0, count - nans, middle)
        indices = elements(order_of(line, line.ndim - 1, False), place)
    np.copyto(out[0], elements(line, indices).reshape(out[0].shape))
    np.copyto(out[1], indices.reshape(out[1].shape))


def _count_nan(line: Array) -> Array | None:
    """Return the number of NaN along the last axis (..., 1); None if the array has no NaN."""
    if line.dtype.kind != "f" or not (nans := np.isnan(line)).any():
        return None
    counts: Array = nans.sum(axis=-1, keepdims=True)
    return counts


def _median_of_all(skip_nan: bool, x: Array, *, out: Array) -> None:
    """Find the median of all elements; NaN if there are none."""
    flat = x.reshape(-1)
    if x.size == 0:
        out.fill(np.nan if out.dtype.kind == "f" else np.iinfo(out.dtype).min)
    elif _count_nan(flat) is None:
        middle = (x.size - 1) // 2
        np.copyto(out, np.partition(flat, middle)[middle])
    else:
        _median(skip_nan, flat, 0, False, out=(out, np.empty((), np.int64)))


for _name, _skip in (("median", False), ("nanmedian", True)):
    TABLE.kernel(f"aten.{_name}.dim", dtypes=WIDE | INT)(partial(_median, _skip))
    TABLE.kernel(f"aten.{_name}.default", dtypes=WIDE | INT)(partial(_median_of_all, _skip))


@TABLE.kernel("aten.mode.default", dtypes=WIDE | INT | BOOL)
def mode(x: Array, dim: int, keepdim: bool, *, out: tuple[Array, Array]) -> None:
    """Find the most frequent value, the least of several, and its last index."""
    values, indices = out
    if values.shape != indices.shape:
        raise KernelError(f"the results have the shapes {values.shape} and {indices.shape}")
    if values.size == 0:
        return
    line = np.moveaxis(x, axis_of(x, dim), -1) if x.ndim else x.reshape(1)
    if line.shape[-1] == 0:
        raise KernelError("there is no mode of no elements")
    order = order_of(line, line.ndim - 1, False)
    ordered = elements(line, order)
    starts = np.ones(line.shape, np.bool_)
    np.not_equal(ordered[..., 1:], ordered[..., :-1], out=starts[..., 1:])
    places = np.arange(line.shape[-1])
    run = places - np.maximum.accumulate(np.where(starts, places, 0), axis=-1)
    last = run.argmax(axis=-1, keepdims=True)
    np.copyto(values, elements(ordered, last).reshape(values.shape))
    np.copyto(indices, elements(order, last).reshape(indices.shape))


@TABLE.kernel("aten.histc.default", dtypes=WIDE | INT)
def histc(x: Array, bins: int, low: float, high: float, *, out: Array) -> None:
    """Count the elements in equal bins from low to high, or over the range of x if low and high are equal."""
    if low == high and x.size:
        low, high = float(x.min()), float(x.max())
    if low == high:
        low, high = low - 1, high + 1
    inside = x[(x >= low) & (x <= high)].astype(np.float64)
    place = np.minimum(((inside - low) / (high - low) * bins).astype(np.int64), bins - 1)
    check_room((bins,), place.dtype, x, out)
    np.copyto(out, occurrences(place, None, bins), casting="unsafe")


@TABLE.kernel("aten.bincount.default", dtypes=WIDE | INT)
def bincount(x: Array, weights: Array | None, length: int, *, out: Array) -> None:
    """Count each number in x (n), or sum its weights; out has at least `length` elements."""
    np.copyto(out, occurrences(x.astype(np.int64), weights, len(out)), casting="unsafe")


@TABLE.kernel("aten.dist.default", dtypes=WIDE | COMPLEX)
def dist(left: Array, right: Array, order: float, *, out: Array) -> None:
    """Compute the norm of the difference."""
    vector_norm(np.subtract(left, right), order, None, False, None, out=out)
