"""Sampling images at the points of a grid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from delegate.kernels.halves import Array
from delegate.kernels.portable_table import TABLE
from delegate.kernels.resize import keys
from delegate.kernels.table import FLOAT
from delegate.program.dtypes import DType

_BILINEAR, _NEAREST = 0, 1  # the third interpolation mode is bicubic
_ZEROS, _BORDER = 0, 1  # the third padding mode is reflection


@TABLE.kernel("aten.grid_sampler_2d.default", "aten.grid_sampler_3d.default", dtypes=FLOAT - {DType.float16})
def grid_sampler(x: Array, grid: Array, interpolation: int, padding: int, align_corners: bool, *, out: Array) -> None:
    """x (N, C, [D,] H, W), grid (N, ..., 2 or 3) of (x, y[, z]) in -1 to 1 over the image -> (N, C, ...).

    interpolation: 0 bilinear, 1 nearest, 2 bicubic; padding: 0 zeros, 1 border, 2 reflection.
    """
    size = x.shape[2:]
    positions = [_unnormalize(grid[..., -1 - axis], n, align_corners) for axis, n in enumerate(size)]
    if interpolation <= _NEAREST:
        positions = [_inside(p, n, padding, align_corners) for p, n in zip(positions, size, strict=True)]
    out.fill(0)
    for taps in product(*(_taps(p, interpolation) for p in positions)):
        places, weights = zip(*taps, strict=True)
        _add_tap(x, places, math.prod(weights), padding, align_corners, out)


def _add_tap(x: Array, places: Sequence[Array], weight: Array, padding: int, align_corners: bool, out: Array) -> None:
    """Add the pixels at whole coordinates (N, ...), weighted; those outside of the image are padding."""
    axes = list(zip(places, x.shape[2:], strict=True))
    if padding == _ZEROS:
        for place, n in axes:
            weight = np.where((place >= 0) & (place < n), weight, 0)
    else:
        axes = [(_inside(place, n, padding, align_corners), n) for place, n in axes]
    where = [np.nan_to_num(place).clip(0, n - 1).astype(np.int64) for place, n in axes]
    batch = np.arange(len(x)).reshape(-1, *[1] * (weight.ndim - 1))
    index: Any = (batch, slice(None), *where)
    out += np.moveaxis(x[index], -1, 1) * weight[:, None].astype(out.dtype)


def _unnormalize(position: Array, size: int, align_corners: bool) -> Array:
    half = position.dtype.type(0.5)
    scaled: Array = (position + 1) * half * (size - 1) if align_corners else ((position + 1) * size - 1) * half
    return scaled


def _inside(position: Array, size: int, padding: int, align_corners: bool) -> Array:
    """Coordinates brought into the image, as the padding mode says."""
    if padding == _ZEROS:
        return position
    if padding > _BORDER:
        low, span = (0.0, size - 1.0) if align_corners else (-0.5, float(size))
        if span == 0:
            return np.zeros_like(position)
        distance = np.abs(position - low)
        turns, rest = np.floor(distance / span), np.fmod(distance, span)
        position = np.where(turns % 2 == 0, rest + low, span - rest + low).astype(position.dtype)
    return position.clip(0, size - 1)


def _taps(position: Array, interpolation: int) -> list[tuple[Array, Array]]:
    """Whole coordinates next to each position, and their weights."""
    if interpolation == _NEAREST:
        return [(np.rint(position), np.ones_like(position))]
    low = np.floor(position)
    share = position - low
    if interpolation == _BILINEAR:
        return [(low, 1 - share), (low + 1, share)]
    return [(low + k, keys(np.abs(share - k), -0.75)) for k in range(-1, 3)]
