"""Pooling to a given output size: window j of n over m elements spans floor(j m / n) to ceil((j + 1) m / n)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from delegate.kernels.halves import Array
from delegate.kernels.portable_table import TABLE
from delegate.kernels.table import FLOAT, INT
from delegate.kernels.windows import last
from delegate.program.dtypes import DType
from delegate.program.raw import same_shape

_FLOAT = FLOAT - {DType.float16}


def spans(size: int, count: int) -> list[slice]:
    """The windows of `count` outputs over `size` elements."""
    return [slice(j * size // count, -(-(j + 1) * size // count)) for j in range(count)]


def adaptive_avg_pool(rank: int, x: Array, size: Sequence[int], *, out: Array) -> None:
    """x ([N,] C, *spatial) -> ([N,] C, *size), axis by axis."""
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
    """x ([N,] C, *spatial) -> ([N,] C, *size), and the places of the maxima in the flattened spatial axes."""
    values, indices = out
    same_shape(values, indices)
    box = x.shape[-rank:]
    flat = np.arange(np.prod(box, dtype=int)).reshape(box)
    along = [spans(n, o) for n, o in zip(box, values.shape[-rank:], strict=True)]
    for position in np.ndindex(values.shape[-rank:]):
        window: Any = tuple(along[axis][j] for axis, j in enumerate(position))
        inside = x[last(*window)].reshape(*x.shape[:-rank], -1)
        best = inside.argmax(axis=-1)
        values[last(*position)] = np.take_along_axis(inside, best[..., None], axis=-1)[..., 0]
        indices[last(*position)] = flat[window].reshape(-1)[best]


for _rank in (1, 2, 3):
    _ops = [f"aten.adaptive_avg_pool{_rank}d.default", f"aten._adaptive_avg_pool{_rank}d.default"]
    TABLE.kernel(*_ops[: 1 if _rank == 1 else 2], dtypes=_FLOAT)(partial(adaptive_avg_pool, _rank))
    TABLE.kernel(f"aten.adaptive_max_pool{_rank}d.default", dtypes=_FLOAT | INT)(partial(adaptive_max_pool, _rank))
