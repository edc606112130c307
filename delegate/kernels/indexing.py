"""Reads and writes at positions from tensors of indices or masks: index, gather, scatter, sums by index, bags.

Gather and scatter: element [i, j] belongs to index[i, j] along one dimension.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from delegate.errors import KernelError
from delegate.kernels.copies import CONVERTIBLE
from delegate.kernels.half_precision import HALF, Array, widen_kernel
from delegate.kernels.operands import along, cast
from delegate.kernels.table import ANY, COMPLEX, FLOAT, REAL, TABLE
from delegate.program import raw
from delegate.program.dtypes import DType
from delegate.program.raw import combine_at

_NARROW = 16  # elements per row up to which single elements are added
_LONG = 16  # rows per sum from which each sum is a separate call


def _add_at(out: Array, index: Array, source: Array) -> None:
    """Add out[index[i]] += source[i] in order; out (rows, width), index (n), source (n, width)."""
    width = out.shape[1]
    if width <= _NARROW or source.size <= 1 << 12:
        flat = index * width
        places = (flat[:, None] + np.arange(width)).reshape(-1) if width > 1 else flat
        combine_at(np.add, out.reshape(-1, copy=False), (places,), source.reshape(-1))
        return
    order = np.argsort(index, kind="stable")
    ordered = index[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    add_segments(out, ordered[starts], source, order, starts, np.diff(np.append(starts, len(index))))


def add_segments(out: Array, targets: Array, source: Array, rows: Array, starts: Array, counts: Array) -> None:
    """Add sums over rows of the source to rows of `out`.

    Args:
        out: (any, width).
        targets: (sums) distinct rows of `out`.
        source: (any, width).
        rows: (n) rows of the source; the rows of one sum are consecutive.
        starts, counts: (sums) the start in `rows` and the number of rows in each sum.
    """
    long = counts > _LONG
    for sum_ in np.flatnonzero(long):
        begin = starts[sum_]
        out[targets[sum_]] += np.add.reduce(source.take(rows[begin : begin + counts[sum_]], axis=0), axis=0)
    if long.any():
        short = ~long
        targets, starts, counts = targets[short], starts[short], counts[short]
    for step in range(int(counts.max(initial=0))):
        if step:
            remaining = counts > step
            targets, starts, counts = targets[remaining], starts[remaining], counts[remaining]
        _add_rows(out, targets, source.take(rows[starts + step], axis=0))


def _add_rows(out: Array, targets: Array, rows: Array) -> None:
    """Add to distinct rows; in one addition if these are all rows."""
    if len(targets) == len(out) and targets[0] == 0 and (targets[1:] > targets[:-1]).all():
        np.add(out, rows, out=out)
    else:
        out[targets] += rows


SUMS = (REAL | COMPLEX) - {DType.float16}


def check_indices(indices: Array, size: int, negative: bool = False) -> Array:
    """Return the indices; raise KernelError if one is out of range for a dimension of that size."""
    if indices.size and (indices.min() < (-size if negative else 0) or indices.max() >= size):
        raise KernelError(
            f"an index is out of range: {indices.min()} to {indices.max()} for a dimension of size {size}",
            remedy="check the indices that are passed to the model",
        )
    return indices


@TABLE.kernel("aten.embedding.default", dtypes=ANY)
def embedding(
    weight: Array, indices: Array, padding_idx: int, scale_grad_by_freq: bool, sparse: bool, *, out: Array
) -> None:
    """Copy rows: weight (rows, width), indices (...) -> (..., width)."""
    weight.take(check_indices(indices, len(weight)), axis=0, out=out, mode="clip")


@TABLE.kernel("aten.index_select.default", dtypes=ANY)
def index_select(x: Array, dim: int, index: Array, *, out: Array) -> None:
    if x.ndim:
        x.take(check_indices(index.reshape(-1), x.shape[dim]), axis=dim, out=out, mode="clip")
    else:
        np.copyto(out, x)


def to_numpy_index(indices: Sequence[Array | None]) -> tuple[Any, ...]:
    """Return the NumPy index of torch's list of indices, where bytes are masks."""
    return tuple(slice(None) if i is None else i.astype(bool) if i.dtype == np.uint8 else i for i in indices)


@TABLE.kernel("aten.index.Tensor", dtypes=ANY)
def index_tensor(x: Array, indices: Sequence[Array | None], *, out: Array) -> None:
    """Index x: indices broadcast, None selects all of a dimension, and bools are masks."""
    np.copyto(out, x[to_numpy_index(indices)])


@TABLE.kernel("aten.index_put.default", dtypes=SUMS | HALF, in_place=True)
def index_put(x: Array, indices: Sequence[Array | None], values: Array, accumulate: bool, *, out: Array) -> None:
    """Copy `x` with values written, or added one by one, at the indices."""
    if accumulate and out.dtype == np.uint16:  # bfloat16 bits can be copied, but not added
        widen_kernel(index_put, frozenset({DType.bfloat16}))(x, indices, values, accumulate, out=out)
        return
    np.copyto(out, x)
    if accumulate:
        _accumulate(out, indices, values)
    else:
        out[to_numpy_index(indices)] = values


def _accumulate(out: Array, indices: Sequence[Array | None], values: Array) -> None:
    """Add values at the indices; integer indices on the leading dimensions select rows, others use NumPy's way."""
    present = [i for i in indices if i is not None]
    first = len(present) and all(i is not None for i in indices[: len(present)])
    if not first or any(i.dtype.kind != "i" for i in present) or not out.size:
        combine_at(np.add, out, to_numpy_index(indices), values)
        return
    places = np.zeros((), np.int64)
    for index, size in zip(present, out.shape, strict=False):
        places = places * size + check_indices(index, size, negative=True) % size
    shape = places.shape + out.shape[len(present) :]
    rows = out.reshape(-1, math.prod(out.shape[len(present) :]), copy=False)
    _add_at(rows, places.reshape(-1), np.broadcast_to(values, shape).reshape(-1, rows.shape[1]))


@TABLE.kernel("aten.index_add.default", dtypes=SUMS, whole=True, in_place=True)
def index_add(x: Array, dim: int, index: Array, source: Array, alpha: Any, *, out: Array) -> None:
    np.copyto(out, x)
    if x.ndim:
        scaled = source if alpha == 1 else np.multiply(source, cast(alpha, out.dtype))
        places, axis = check_indices(index.reshape(-1), x.shape[dim]), dim % x.ndim
        before, after = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
        if before > 1:
            places = (np.arange(before)[:, None] * x.shape[axis] + places).reshape(-1)
        if out.size:
            _add_at(out.reshape(-1, after, copy=False), places, scaled.reshape(-1, after))
    else:
        out[...] += np.multiply(source.reshape(()), cast(alpha, out.dtype))


def _mask(mask: Array) -> Array:
    return mask if mask.dtype == bool else mask != 0


@TABLE.kernel("aten.masked_fill.Scalar", "aten.masked_fill.Tensor", dtypes=CONVERTIBLE, whole=True, in_place=True)
def masked_fill(x: Array, mask: Array, value: Any, *, out: Array) -> None:
    np.copyto(out, x)
    np.copyto(out, cast(value, out.dtype), where=_mask(mask))


@TABLE.kernel("aten.masked_scatter.default", dtypes=ANY, in_place=True)
def masked_scatter(x: Array, mask: Array, source: Array, *, out: Array) -> None:
    """Copy `x` and write the first elements of the source, in order, where the mask is true."""
    np.copyto(out, x)
    mask = np.broadcast_to(mask, out.shape)
    out[mask] = source.reshape(-1)[: np.count_nonzero(mask)]


def _side(right: bool) -> Literal["left", "right"]:
    return "right" if right else "left"


@TABLE.kernel("aten.bucketize.Tensor", "aten.bucketize.Scalar", dtypes=REAL - {DType.float16, DType.bool})
def bucketize(x: Any, boundaries: Array, out_int32: bool, right: bool, *, out: Array) -> None:
    """Find the bucket of every value by ascending boundaries (n); `right` puts values at a boundary after it."""
    np.copyto(out, boundaries.searchsorted(x, _side(right)), casting="same_kind")


@TABLE.kernel("aten.searchsorted.Tensor", "aten.searchsorted.Scalar", dtypes=REAL - {DType.float16, DType.bool})
def searchsorted(
    ordered: Array, x: Any, out_int32: bool, right: bool, side: str | None, sorter: Array | None, *, out: Array
) -> None:
    """Find buckets by ordered (n), or ordered (..., n) for x (..., m), where `sorter` is the order of `ordered`."""
    where = _side(right or side == "right")
    if sorter is not None:
        ordered = np.take_along_axis(ordered, sorter, axis=-1)
    if ordered.ndim == 1:
        np.copyto(out, ordered.searchsorted(x, where), casting="same_kind")
        return
    if not ordered.shape[:-1] == x.shape[:-1] == out.shape[:-1]:
        raise KernelError(
            f"the sorted rows have the shape {list(ordered.shape)}, but the values have {list(x.shape)}",
            remedy="pass values whose dimensions match those of the sorted rows, except the last",
        )
    for row in np.ndindex(ordered.shape[:-1]):
        out[row] = ordered[row].searchsorted(x[row], where)


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
    """Return offsets in a row-major array of `size` for the elements of an index with `shape`, without its own axis."""
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


def copy_for(x: Array, index: Array, source: Any, out: Array) -> tuple[Array, Array, Any]:
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
    out, index, source = copy_for(x, index, source, out)
    if index.size:
        part = _used_part(source, index)
        out.reshape(-1, copy=False)[_places(out, dim, index)] = part


@TABLE.kernel("aten.scatter_add.default", dtypes=SUMS, in_place=True)
def scatter_add(x: Array, dim: int, index: Array, source: Array, *, out: Array) -> None:
    scatter_reduce(x, dim, index, source, "sum", True, out=out)


@TABLE.kernel("aten.scatter.reduce", "aten.scatter.value_reduce", dtypes=SUMS, in_place=True)
def scatter_with(x: Array, dim: int, index: Array, source: Any, how: str, *, out: Array) -> None:
    scatter_reduce(x, dim, index, source, how, True, out=out)


@TABLE.kernel("aten.scatter_reduce.two", dtypes=SUMS, in_place=True)
def scatter_reduce(x: Array, dim: int, index: Array, source: Any, how: str, include_self: bool, *, out: Array) -> None:
    """Combine each place's own value (unless not include_self) with all source values for this place."""
    out, index, source = copy_for(x, index, source, out)
    if index.size:
        part = _used_part(source, index)
        places = _places(out, dim, index).reshape(-1)
        flat = part.reshape(-1) if isinstance(part, np.ndarray) else part
        combine(out.reshape(-1, copy=False), (places,), flat, how, include_self)


def combine(out: Array, places: tuple[Any, ...], source: Any, how: str, include_self: bool) -> None:
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


_MEAN = 1  # mode 0 is the sum, and 2 is max


@TABLE.kernel(
    "aten._embedding_bag.default",
    "aten._embedding_bag_forward_only.default",
    dtypes=(FLOAT | {DType.int32, DType.int64}) - {DType.float16},
)
def embedding_bag(
    weight: Array,
    indices: Array,
    offsets: Array,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    sample_weights: Array | None,
    include_last_offset: bool,
    padding_idx: int | None,
    *,
    out: tuple[Array, Array, Array, Array],
) -> None:
    """Reduce the rows of weight (rows, width) at indices (n) to (bags, width); offsets (bags) start the bags.

    The other results are as torch returns them on the CPU: the bag of every index, the size of every bag, and the index
    of each maximum. Results that torch leaves empty stay empty. Indices equal to padding_idx do not count.
    """
    result, bag_of, sizes, winners = out
    bounds = np.append(offsets[: len(result)], len(indices))
    if include_last_offset:
        bounds[-1] = offsets[-1]
    counts = np.diff(bounds)
    if len(offsets) and (bounds[0] != 0 or counts.min(initial=0) < 0 or bounds[-1] > len(indices)):
        raise KernelError(
            f"the offsets of bags run from {bounds[0]} to {bounds[-1]} over {len(indices)} indices, or they decrease",
            remedy="pass increasing offsets that begin at 0",
        )
    used = check_indices(indices[: bounds[-1]], len(weight))
    if bag_of.size == len(used):
        bag_of[...] = raw.repeated(np.arange(len(result)), counts, 0, len(used))
    else:
        bag_of.fill(0)
    weights = None if sample_weights is None else sample_weights[: len(used)]
    if padding_idx is not None and (left := used != padding_idx).sum() < len(used):
        counts = raw.occurrences(raw.repeated(np.arange(len(result)), counts, 0, len(used))[left], None, len(result))
        used, weights = used[left], None if weights is None else weights[left]
    sizes[...] = counts if sizes.shape == counts.shape else 0
    starts = np.cumsum(counts) - counts
    if mode > _MEAN:
        winners[...] = -1 if winners.size else 0
        _write_maxima(weight, used, starts, counts, result, winners if winners.shape == result.shape else None)
        return
    winners.fill(0)
    filled = np.flatnonzero(counts)
    source, rows = (weight, used) if weights is None else (weight[used] * weights[:, None], np.arange(len(used)))
    result.fill(0)
    add_segments(result, filled, source, rows, starts[filled], counts[filled])
    if mode == _MEAN:
        result /= np.maximum(counts, 1)[:, None].astype(result.dtype)


def _write_maxima(
    weight: Array, used: Array, starts: Array, counts: Array, result: Array, winners: Array | None
) -> None:
    """Write the maxima of every bag (0 for an empty bag) and the rows of the weight that contain them."""
    result.fill(0)
    for bag in np.flatnonzero(counts):
        members = used[starts[bag] : starts[bag] + counts[bag]]
        best = weight[members].argmax(axis=0)
        result[bag] = weight[members[best], np.arange(weight.shape[1])]
        if winners is not None:
            winners[bag] = members[best]
