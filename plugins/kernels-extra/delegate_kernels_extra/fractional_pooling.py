"""Fractional max pooling in 2 and 3 dimensions, whose windows have random places (Graham, arXiv:1412.6071)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from delegate.kernels.half_precision import Array, from_bfloat16, to_bfloat16
from delegate.kernels.operands import row_blocks
from delegate.kernels.table import FLOAT
from delegate.program.dtypes import DType
from delegate_kernels_extra.table import TABLE


def _starts(samples: Array, size: int, kernel: int, count: int) -> Array:
    """Return the starts of the windows along one axis (planes, count), from a number in [0, 1) per plane.

    Every step is rounded to the dtype of the samples, as in torch; bfloat16 samples are bits.
    """
    bits = samples.dtype == np.uint16
    fractions = from_bfloat16(samples) if bits else samples
    kind = fractions.dtype.type

    def round_half(x: Array) -> Array:
        return from_bfloat16(to_bfloat16(x)) if bits else x

    starts = np.full((len(fractions), count), size - kernel, np.int64)
    if count > 1:
        step = round_half(
            np.asarray(round_half(np.asarray(size - kernel, kind)) / round_half(np.asarray(count - 1, kind)))
        )
        first = round_half(fractions * step).astype(np.int64)
        numbers = round_half(np.arange(count - 1).astype(kind))
        places = round_half(round_half(numbers + fractions[:, None]) * step)
        starts[:, :-1] = places.astype(np.int64) - first[:, None]
    return starts


def fractional_max_pool(
    rank: int, x: Array, kernel: Sequence[int], size: Sequence[int], samples: Array, *, out: tuple[Array, Array]
) -> None:
    """Find the maxima of x ([N,] C, *spatial) -> ([N,] C, *size), and their places in the flattened spatial axes.

    Args:
        rank: the number of spatial axes.
        x: the images; bfloat16 as bits.
        kernel: the size of a window on each axis.
        size: the number of windows on each axis.
        samples: ([N,] C, rank) in [0, 1); for 2 axes torch has the order (width, height).
        out: the maxima and their places. NaN counts as the greatest, and of several NaN the last has the place.
    """
    spatial, count = x.shape[-rank:], out[0].shape[-rank:]
    planes, drawn = x.reshape(-1, math.prod(spatial)), samples.reshape(-1, rank)
    order = (1, 0) if rank == 2 else range(rank)
    values, indices = (y.reshape(len(planes), *count, copy=False) for y in out)
    for block in row_blocks(len(planes), math.prod(count) * math.prod(kernel)):
        places = np.zeros((), np.int64)
        for axis, column in enumerate(order):
            starts = _starts(drawn[block, column], spatial[axis], kernel[axis], count[axis])
            here = starts[:, :, None] + np.arange(kernel[axis])  # (planes, windows, elements of a window)
            shape = [len(starts), *[1] * (2 * rank)]
            shape[1 + axis], shape[1 + rank + axis] = here.shape[1:]
            places = places * spatial[axis] + here.reshape(shape)
        flat = places.reshape(len(places), *count, -1)
        taken = np.take_along_axis(planes[block], flat.reshape(len(flat), -1), axis=1).reshape(flat.shape)
        best = _last_nan_or_first_maximum(from_bfloat16(taken) if taken.dtype == np.uint16 else taken)
        np.copyto(values[block], np.take_along_axis(taken, best, axis=-1)[..., 0])
        np.copyto(indices[block], np.take_along_axis(flat, best, axis=-1)[..., 0])


def _last_nan_or_first_maximum(windows: Array) -> Array:
    best = windows.argmax(axis=-1)
    nan = np.isnan(windows)
    if nan.any():
        last = windows.shape[-1] - 1 - nan[..., ::-1].argmax(axis=-1)
        best = np.where(nan.any(axis=-1), last, best)
    return np.asarray(best[..., None])


for _rank in (2, 3):
    TABLE.kernel(f"aten.fractional_max_pool{_rank}d.default", dtypes=FLOAT | {DType.bfloat16, DType.int64})(
        partial(fractional_max_pool, _rank)
    )
