"""Histograms of one and several columns, and sums over segments."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from delegate.errors import KernelError
from delegate.kernels.half_precision import Array
from delegate.kernels.operands import WIDE
from delegate.program.dtypes import DType
from delegate.program.raw import check_room, occurrences
from delegate_kernels_extra.table import TABLE


@TABLE.kernel("aten.histogram.bin_ct", dtypes=WIDE)
def histogram(
    x: Array,
    bins: int,
    limits: Sequence[float] | None,
    weight: Array | None,
    density: bool,
    *,
    out: tuple[Array, Array],
) -> None:
    """Compute the weight in equal bins (bins) within the limits, or over the range of x, and their edges (bins + 1).

    Raises:
        KernelError: the range is not finite.
    """
    edges = _equal_bins(x, bins, limits)
    np.copyto(out[1], edges)
    _fill_bins(x.reshape(-1, 1), [edges], weight, density, out[0])


@TABLE.kernel("aten.histogram.bins_tensor", dtypes=WIDE)
def histogram_of_edges(x: Array, bins: Array, weight: Array | None, density: bool, *, out: tuple[Array, Array]) -> None:
    """Compute the weight in the bins between edges (bins + 1), and copy the edges."""
    np.copyto(out[1], bins)
    _fill_bins(x.reshape(-1, 1), [bins], weight, density, out[0])


@TABLE.kernel("aten._histogramdd_bin_edges.default", dtypes=WIDE)
def histogramdd_bin_edges(
    x: Array,
    bins: Sequence[int],
    limits: Sequence[float] | None,
    weight: Array | None,
    density: bool,
    *,
    out: Sequence[Array],
) -> None:
    """Compute the edges of equal bins (bins + 1) for each column of x (..., D), see `histogram`."""
    for edges, computed in zip(out, _bins_of_columns(x, bins, limits), strict=True):
        np.copyto(edges, computed)


@TABLE.kernel("aten._histogramdd_from_bin_cts.default", dtypes=WIDE)
def histogramdd(
    x: Array, bins: Sequence[int], limits: Sequence[float] | None, weight: Array | None, density: bool, *, out: Array
) -> None:
    """Compute the weight of the points x (..., D) in equal bins (*bins)."""
    _fill_bins(x.reshape(-1, x.shape[-1]), _bins_of_columns(x, bins, limits), weight, density, out)


@TABLE.kernel("aten._histogramdd_from_bin_tensors.default", dtypes=WIDE)
def histogramdd_of_edges(x: Array, bins: Sequence[Array], weight: Array | None, density: bool, *, out: Array) -> None:
    """Compute the weight of the points x (..., D) in the bins between edges, for each column of x."""
    _fill_bins(x.reshape(-1, x.shape[-1]), bins, weight, density, out)


def _bins_of_columns(x: Array, bins: Sequence[int], limits: Sequence[float] | None) -> list[Array]:
    """Return the edges for each column of x (..., D)."""
    pairs = [None] * len(bins) if limits is None else [limits[2 * i : 2 * i + 2] for i in range(len(bins))]
    return [_equal_bins(x[..., i], count, pair) for i, (count, pair) in enumerate(zip(bins, pairs, strict=True))]


def _equal_bins(x: Array, bins: int, limits: Sequence[float] | None) -> Array:
    """Return the edges (bins + 1) of equal bins within the limits, or over the range of x; raise KernelError."""
    low, high = limits or ((x.min(), x.max()) if x.size else (0, 1))
    if not (math.isfinite(low) and math.isfinite(high)):
        raise KernelError(f"a histogram needs a finite range, not {low} to {high}", remedy="pass its range")
    if low == high:
        low, high = low - 0.5, high + 0.5
    check_room((bins + 1,), x.dtype)
    first, last, index = x.dtype.type(low), x.dtype.type(high), np.arange(bins + 1)
    step = (last - first) / x.dtype.type(bins)
    edges: Array = np.where(index < (bins + 1) // 2, first + step * index, last - step * index[::-1]).astype(x.dtype)
    return edges


def _fill_bins(points: Array, edges: Sequence[Array], weight: Array | None, density: bool, out: Array) -> None:
    """Write the weight of points (N, D) in each bin.

    The last bin of a column includes its upper edge; NaN is in none.
    """
    inside = np.ones(len(points), np.bool_)
    for column, ends in zip(points.T, edges, strict=True):
        inside &= (column >= ends[0]) & (column <= ends[-1])
    place = np.zeros(int(inside.sum()), np.int64)
    for column, ends, count in zip(points[inside].T, edges, out.shape, strict=True):
        place = place * count + np.minimum(np.searchsorted(ends, column, side="right"), count) - 1
    weights = None if weight is None else weight.reshape(-1)[inside]
    np.copyto(out, occurrences(place, weights, out.size).reshape(out.shape), casting="unsafe")
    if density:
        np.divide(out, out.sum(), out=out)
        for axis, ends in enumerate(edges):
            np.divide(out, np.diff(ends).reshape([-1 if i == axis else 1 for i in range(out.ndim)]), out=out)


_FOLDS = {"sum": np.add, "mean": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
_EMPTY = {"sum": 0.0, "mean": np.nan, "prod": 1.0, "max": -np.inf, "min": np.inf}


@TABLE.kernel("aten.segment_reduce.default", dtypes=WIDE | {DType.int32, DType.int64})
def segment_reduce(
    x: Array,
    how: str,
    lengths: Array | None,
    indices: Array | None,
    offsets: Array | None,
    axis: int,
    unsafe: bool,
    initial: float | None,
    *,
    out: Array,
) -> None:
    """Reduce runs of slices of x along an axis, with lengths (..., runs) or offsets (..., runs + 1).

    `initial` takes part in each reduction; without it, the result of an empty run is the identity of the reduction.
    """
    table = lengths if lengths is not None else offsets
    assert table is not None, "torch refuses it"
    axis = table.ndim - 1
    out.fill(0)
    for row in np.ndindex(table.shape[:axis]):
        for run, (begin, end) in enumerate(_runs(table[row], lengths is not None)):
            part = x[row][begin:end]
            reduced = _FOLDS[how].reduce(part, axis=0, initial=_EMPTY[how] if how != "mean" else 0.0)
            if initial is not None:
                reduced = _FOLDS[how](reduced, initial)
            count = end - begin
            if how == "mean" and (count or initial is None):
                reduced = reduced / count if count else np.full_like(reduced, np.nan)
            out[(*row, run)] = reduced


def _runs(table: Array, lengths: bool) -> Iterator[tuple[int, int]]:
    bounds = np.concatenate([[0], np.cumsum(table)]) if lengths else table
    return pairwise(int(b) for b in bounds)
