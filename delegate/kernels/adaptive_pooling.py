"""Pooling to an output size: window j of n over m elements spans floor(j m / n) to ceil((j + 1) m / n)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from delegate.kernels.half_precision import Array
from delegate.kernels.portable_table import TABLE
from delegate.kernels.table import FLOAT, INT
from delegate.kernels.windows import last
from delegate.program.dtypes import DType
from delegate.program.raw import same_shape

_FLOAT = FLOAT - {DType.float16}


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
        return np.mean(x, axis=axis, keepdims=True, dtype=x.dtype)
    after = (slice(None),) * (-axis - 1)
    means = [x[last(span, *after)].mean(axis=axis) for span in spans(size, count)]
    return np.stack(means, axis=axis) if means else x[last(slice(0), *after)]


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
    _ops = [f"aten.adaptive_avg_pool{_rank}d.default", f"aten._adaptive_avg_pool{_rank}d.default"]
    TABLE.kernel(*_ops[: 1 if _rank == 1 else 2], dtypes=_FLOAT)(partial(adaptive_avg_pool, _rank))
    TABLE.kernel(f"aten.adaptive_max_pool{_rank}d.default", dtypes=_FLOAT | INT)(partial(adaptive_max_pool, _rank))
