"""Sliding windows over the last axes of an array, for convolution, pooling and im2col."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

from delegate.kernels.half_precision import Array
from delegate.program.raw import check_room


def spread(values: Sequence[int], rank: int, default: Sequence[int] = ()) -> tuple[int, ...]:
    """Return one value per spatial axis: `values`, one value repeated, or the default for an empty list."""
    sizes = tuple(values) or tuple(default)
    return sizes * rank if len(sizes) == 1 else sizes


def last(*index: Any) -> Any:
    """Return the NumPy index that applies an index to each of the last axes."""
    return (..., *index)


def pad_axes(x: Array, before: Sequence[int], after: Sequence[int], value: Any = 0) -> Array:
    """Pad the last axes with a value; return the array itself if there is nothing to pad."""
    if not any(before) and not any(after):
        return x
    rank = len(before)
    spatial = x.shape[-rank:]
    shape = x.shape[:-rank] + tuple(n + b + a for n, b, a in zip(spatial, before, after, strict=True))
    check_room(shape, x.dtype, x)
    wide = np.zeros(shape, x.dtype) if value == 0 else np.full(shape, value, x.dtype)
    wide[last(*(slice(b, b + n) for b, n in zip(before, spatial, strict=True)))] = x
    return wide


def taps(
    kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int], count: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], tuple[Any, ...]]]:
    """Yield every position k in the kernel, with the index that takes x[..., i * stride + k * dilation] for all i."""
    for position in product(*map(range, kernel)):
        starts = (k * d for k, d in zip(position, dilation, strict=True))
        yield (
            position,
            (..., *(slice(b, b + s * (n - 1) + 1, s) for b, s, n in zip(starts, stride, count, strict=True))),
        )
