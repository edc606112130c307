"""Sampling images at the points of a grid."""

from __future__ import annotations

import numpy as np

from delegate.kernels.halves import Array
from delegate.kernels.portable_table import TABLE
from delegate.kernels.resize import keys
from delegate.kernels.table import FLOAT
from delegate.program.dtypes import DType

_BILINEAR, _NEAREST = 0, 1  # the third interpolation mode is bicubic
_ZEROS, _BORDER = 0, 1  # the third padding mode is reflection


@TABLE.kernel("aten.grid_sampler_2d.default", dtypes=FLOAT - {DType.float16})
def grid_sampler(x: Array, grid: Array, interpolation: int, padding: int, align_corners: bool, *, out: Array) -> None:
    """x (N, C, H, W), grid (N, h, w, 2) of (x, y) in -1 to 1 over the image -> (N, C, h, w).

    interpolation: 0 bilinear, 1 nearest, 2 bicubic; padding: 0 zeros, 1 border, 2 reflection.
    """
    height, width = x.shape[2:]
    column, row = (_unnormalize(grid[..., i], n, align_corners) for i, n in ((0, width), (1, height)))
    if interpolation <= _NEAREST:
        column, row = (_inside(p, n, padding, align_corners) for p, n in ((column, width), (row, height)))
    out.fill(0)
    for places_y, weight_y in _taps(row, interpolation):
        for places_x, weight_x in _taps(column, interpolation):
            _add_tap(x, places_y, places_x, weight_y * weight_x, padding, align_corners, out)


def _add_tap(x: Array, row: Array, column: Array, weight: Array, padding: int, align_corners: bool, out: Array) -> None:
    """Add the pixels at whole coordinates (N, h, w), weighted; those outside of the image are padding."""
    height, width = x.shape[2:]
    if padding == _ZEROS:
        weight = np.where((row >= 0) & (row < height) & (column >= 0) & (column < width), weight, 0)
    else:
        row, column = _inside(row, height, padding, align_corners), _inside(column, width, padding, align_corners)
    y, x_ = (np.nan_to_num(p).clip(0, n - 1).astype(np.int64) for p, n in ((row, height), (column, width)))
    batch = np.arange(len(x))[:, None, None]
    out += np.moveaxis(x[batch, :, y, x_], -1, 1) * weight[:, None].astype(out.dtype)


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
