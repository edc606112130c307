"""Pooling in 1 to 3 dimensions.

The windows have a fixed size, or follow from the size of the result (adaptive). Adaptive window j of n over m elements
spans floor(j m / n) to ceil((j + 1) m / n).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from delegate.kernels.half_precision import Array
from delegate.kernels.operands import put, row_blocks
from delegate.kernels.sums import add
from delegate.kernels.table import FLOAT, INT, TABLE
from delegate.kernels.windows import last, pad_axes, spread, taps
from delegate.program.dtypes import DType
from delegate.program.raw import same_shape

_FLOAT = FLOAT - {DType.float16}


def _lowest(dtype: np.dtype[Any]) -> Any:
    return -np.inf if dtype.kind == "f" else np.iinfo(dtype).min


def _surround(
    x: Array,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    count: Sequence[int],
    value: Any,
) -> Array:
    """Pad the array so that every window is inside, also the last windows that ceil_mode adds."""
    axes = zip(x.shape[-len(kernel) :], kernel, stride, padding, dilation, count, strict=True)
    after = [max((o - 1) * s + (k - 1) * d + 1 - n - p, 0) for n, k, s, p, d, o in axes]
    return pad_axes(x, padding, after, value)


def _fold(
    x: Array,
    ufunc: np.ufunc,
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    count: Sequence[int],
    out: Array,
) -> None:
    """Combine the elements of every window with a ufunc, axis by axis from the last."""
    for axis in range(-1, -len(kernel) - 1, -1):
        wide = 1 + (kernel[axis] - 1) * dilation[axis]
        after = (slice(None),) * (-axis - 1)
        if count[axis] == 1:
            folded = ufunc.reduce(x[last(slice(0, wide, dilation[axis]), *after)], axis=axis, keepdims=True)
        else:
            span = stride[axis] * (count[axis] - 1) + 1
            starts = range(0, wide, dilation[axis])
            shifted = [x[last(slice(b, b + span, stride[axis]), *after)] for b in starts]
            folded = shifted[0] if len(shifted) == 1 else ufunc(shifted[0], shifted[1])
            for part in shifted[2:]:
                ufunc(folded, part, out=folded)
        x = folded
    np.copyto(out, x)


def max_pool(
    rank: int,
    x: Array,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    *,
    out: Array,
) -> None:
    """Find the maxima of x ([N,] C, *spatial); padding never wins, and NaN always does."""
    kernel, padding, dilation = spread(kernel, rank), spread(padding, rank), spread(dilation, rank)
    stride, count = spread(stride, rank, kernel), out.shape[-rank:]
    wide = _surround(x, kernel, stride, padding, dilation, count, _lowest(x.dtype))
    _fold(wide, np.maximum, kernel, stride, dilation, count, out)


def max_pool_with_indices(
    rank: int,
    x: Array,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    *,
    out: tuple[Array, Array],
) -> None:
    """Compute `max_pool` and the place of each maximum in the flattened spatial axes."""
    size, count = x.shape[-rank:], out[0].shape[-rank:]
    kernel, padding, dilation = spread(kernel, rank), spread(padding, rank), spread(dilation, rank)
    stride = spread(stride, rank, kernel)
    lowest = _lowest(x.dtype)
    wide = _surround(x, kernel, stride, padding, dilation, count, lowest)
    axes = list(zip(size, kernel, stride, padding, dilation, count, strict=True))
    corner = _flat([s * np.arange(o) - p for _, _, s, p, _, o in axes], size)
    steps = _flat([d * np.arange(k) for _, k, _, _, d, _ in axes], size).reshape(-1)
    inside = _flat([_first_inside(s * np.arange(o) - p, d) for _, _, s, p, d, o in axes], size)
    images = wide.reshape(-1, *wide.shape[-rank:])
    values, indices = (y.reshape(len(images), *count, copy=False) for y in out)
    for block in row_blocks(len(images), math.prod(count)):
        some, maxima = images[block], values[block]
        _fold(some, np.maximum, kernel, stride, dilation, count, maxima)
        where = corner + steps[_which(some, maxima, list(taps(kernel, stride, dilation, count)))]
        if (nothing := maxima == lowest).any():  # possibly a padded place
            where = np.where(nothing, inside, where)
        np.copyto(indices[block], where)


def _which(x: Array, best: Array, places: Sequence[tuple[Any, Any]]) -> Array:
    """Return the number of the tap with a window's best element: the first tap, or for NaN the last."""
    number = np.zeros(best.shape, np.min_scalar_type(len(places)))
    for tap in reversed(range(len(places))):
        put(number, tap, x[places[tap][1]] == best)
    if best.dtype.kind == "f" and np.isnan(best).any():
        for tap, (_, place) in enumerate(places):
            put(number, tap, np.isnan(x[place]))
    return number


def _first_inside(starts: Array, dilation: int) -> Array:
    """Return the first place of each window that is not padding, along one axis."""
    return np.asarray(starts - np.minimum(starts, 0) // dilation * dilation)


def _flat(coordinates: Sequence[Array], size: Sequence[int]) -> Array:
    """Return places in a flattened box of that size, from one vector of coordinates for every axis."""
    flat = np.zeros((), np.int64)
    for places, length in zip(coordinates, size, strict=True):
        flat = flat[..., None] * length + places
    return flat


def avg_pool(
    rank: int,
    x: Array,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None = None,
    *,
    out: Array,
) -> None:
    """Average windows of x ([N,] C, *spatial); windows that ceil_mode adds count only the input and its padding."""
    size = x.shape[-rank:]
    kernel, padding = spread(kernel, rank), spread(padding, rank)
    stride, count = spread(stride, rank, kernel), out.shape[-rank:]
    dilation = (1,) * rank
    wide = _surround(x, kernel, stride, padding, dilation, count, 0)
    _fold(wide, np.add, kernel, stride, dilation, count, out)
    if divisor is not None:
        _divide(out, np.asarray(divisor))
        return
    for axis in range(-rank, 0):
        start = stride[axis] * np.arange(count[axis]) - padding[axis]
        end = np.minimum(start + kernel[axis], size[axis] + padding[axis])
        if not count_include_pad:
            start, end = np.maximum(start, 0), np.minimum(end, size[axis])
        inside = (end - start).astype(out.dtype)
        _divide(out, inside.reshape(-1, *[1] * (-axis - 1)))


def _divide(x: Array, by: Array) -> None:
    """Divide in place; quotients of integers truncate towards 0."""
    if x.dtype.kind == "f":
        np.divide(x, by, out=x)
        return
    whole = x // by
    np.copyto(x, whole + ((whole < 0) & (whole * by != x)))


for _rank in (1, 2, 3):
    TABLE.kernel(f"aten.max_pool{_rank}d.default", dtypes=_FLOAT | INT, whole=True)(partial(max_pool, _rank))
    if _rank > 1:
        TABLE.kernel(f"aten.max_pool{_rank}d_with_indices.default", dtypes=_FLOAT | INT)(
            partial(max_pool_with_indices, _rank)
        )
    TABLE.kernel(f"aten.avg_pool{_rank}d.default", dtypes=_FLOAT | {DType.int64})(partial(avg_pool, _rank))


def spans(size: int, count: int) -> list[slice]:
    """Return the windows of `count` outputs over `size` elements."""
    return [slice(j * size // count, -(-(j + 1) * size // count)) for j in range(count)]


def adaptive_avg_pool(rank: int, x: Array, size: Sequence[int], *, out: Array) -> None:
    """Average x ([N,] C, *spatial) to ([N,] C, *size), axis by axis."""
    for axis in range(-rank, 0):
        x = _average(x, axis, out.shape[axis])
    np.copyto(out, x)


def _average(x: Array, axis: int, count: int) -> Array:
    size = x.shape[axis]
    if count == size:
        return x
    if count == 1:
        return _mean(x, axis)
    after = (slice(None),) * (-axis - 1)
    means = [_mean(x[last(span, *after)], axis) for span in spans(size, count)]
    return np.concatenate(means, axis=axis) if means else x[last(slice(0), *after)]


def _mean(x: Array, axis: int) -> Array:
    """Average along an axis, counted from the end, which gets size 1."""
    mean = add(x, (x.ndim + axis,), keepdims=True)
    np.divide(mean, x.shape[axis], out=mean)
    return mean


def adaptive_max_pool(rank: int, x: Array, size: Sequence[int], *, out: tuple[Array, Array]) -> None:
    """Find the maxima of x ([N,] C, *spatial) -> ([N,] C, *size), and their places in the flattened spatial axes."""
    values, indices = out
    same_shape(values, indices)
    count = values.shape[-rank:]
    places, taken = np.zeros((), np.int64), x
    for axis, (n, o) in enumerate(zip(x.shape[-rank:], count, strict=True)):
        window = _window(n, o)
        # (..., o, window) for every finished axis
        taken = taken.take(window, axis=x.ndim - rank + 2 * axis)
        places = places[..., None, None] * n + window
    batch = x.shape[:-rank]
    order = [*range(0, 2 * rank, 2), *range(1, 2 * rank, 2)]
    lead = [*range(len(batch)), *(len(batch) + d for d in order)]
    inside = taken.transpose(lead).reshape(*batch, *count, -1)
    best = inside.argmax(axis=-1)[..., None]
    np.copyto(values, np.take_along_axis(inside, best, axis=-1)[..., 0])
    flat = np.broadcast_to(places.transpose(order).reshape(*count, -1), inside.shape)
    np.copyto(indices, np.take_along_axis(flat, best, axis=-1)[..., 0])


def _window(size: int, count: int) -> Array:
    """Return the elements of every window (count, longest); a shorter window repeats its last element."""
    parts = spans(size, count)
    longest = max((p.stop - p.start for p in parts), default=0)
    starts, ends = (np.array([getattr(p, end) for p in parts], np.int64).reshape(-1, 1) for end in ("start", "stop"))
    return np.minimum(starts + np.arange(longest), ends - 1)


for _rank in (1, 2, 3):
    _op = f"aten.{'_' if _rank > 1 else ''}adaptive_avg_pool{_rank}d.default"
    TABLE.kernel(_op, dtypes=_FLOAT)(partial(adaptive_avg_pool, _rank))
    if _rank > 1:
        TABLE.kernel(f"aten.adaptive_max_pool{_rank}d.default", dtypes=_FLOAT | INT)(partial(adaptive_max_pool, _rank))
