"""Sampling of images at the points of a grid."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from delegate.kernels.half_precision import Array
from delegate.kernels.operands import row_blocks
from delegate.kernels.resize import cubic_kernel
from delegate.kernels.table import FLOAT, TABLE
from delegate.program.dtypes import DType

_BILINEAR, _NEAREST = 0, 1  # the third interpolation mode is bicubic
_MANY = 8  # channels from which gathering whole pixels is faster
_FEW = 2  # with more pixels per read pixel, only the read pixels are gathered
_SMALL = 1 << 12  # elements read of an image, up to which several images at a time are faster
_PLANE = 2  # axes; with more axes torch treats NaN differently
_ZEROS, _BORDER = 0, 1  # the third padding mode is reflection


@TABLE.kernel("aten.grid_sampler_2d.default", "aten.grid_sampler_3d.default", dtypes=FLOAT - {DType.float16})
def grid_sampler(x: Array, grid: Array, interpolation: int, padding: int, align_corners: bool, *, out: Array) -> None:
    """Sample x (N, C, [D,] H, W) at the points of a grid -> (N, C, ...).

    grid (N, ..., 2 or 3) has (x, y[, z]), each from -1 to 1 over the image.
    interpolation: 0 bilinear, 1 nearest, 2 bicubic; padding: 0 zeros, 1 border, 2 reflection.
    """
    points, rank = math.prod(out.shape[2:]), len(x.shape[2:])
    size = np.array(x.shape[2:], x.dtype).reshape(rank, 1, 1)
    grid = np.moveaxis(grid[..., ::-1], -1, 0).reshape(rank, len(x), points)
    position = _unnormalize(grid, size, align_corners)
    if interpolation <= _NEAREST:
        position = _inside(position, size, padding, align_corners)
    places, weights = _taps(position, interpolation)
    there = None
    if padding == _ZEROS:
        there = (places >= 0) & (places < size)
    else:
        places = _inside(places, size, padding, align_corners)
    pixels = np.fmin(np.fmax(places, 0), size - 1).astype(np.int64)
    index, weight = _combine_axes(pixels, weights, there, x.shape[2:])
    if x.shape[1] * index.shape[0] * points <= _SMALL:
        _sum_images(x, index, weight, out.reshape(*out.shape[:2], points, copy=False))
        return
    gather = _sum_pixels if x.shape[1] >= _MANY else _sum_planes
    if _FEW * index.shape[0] * points < math.prod(x.shape[2:]):
        gather = _sum_places
    for image, result in enumerate(out.reshape(*out.shape[:2], points, copy=False)):
        gather(x[image], index[:, image], weight[:, image], result)


def _combine_axes(pixels: Array, weights: Array, there: Array | None, size: Sequence[int]) -> tuple[Array, Array]:
    """Return the places in the flattened image, and the weights, of all combinations of the taps on each axis.

    pixels, weights (taps, axes, N, points) -> (taps ** axes, N, points). `there` marks existing pixels; None: all
    exist. Places outside get the index after the last pixel, where a zero is. On a plane, a NaN weight makes this zero
    NaN.
    """
    index, weight, inside = pixels[:, 0], weights[:, 0], None if there is None else there[:, 0]
    for axis in range(1, len(size)):
        shape = (-1, *index.shape[1:])
        index = (index[:, None] * size[axis] + pixels[:, axis]).reshape(shape)
        weight = (weight[:, None] * weights[:, axis]).reshape(shape)
        if inside is not None and there is not None:
            inside = (inside[:, None] & there[:, axis]).reshape(shape)
    if inside is not None and not inside.all():
        np.copyto(index, math.prod(size), where=~inside)
        if len(size) > _PLANE:
            np.copyto(weight, 0, where=~inside)
    return index, weight


def _sum_pixels(image: Array, index: Array, weight: Array, out: Array) -> None:
    """Sum the weighted pixels: image (C, *size), index and weight (taps, points) -> out (C, points).

    The channels of a pixel are adjacent in memory, and points are gathered in blocks.
    """
    pixels = np.zeros((math.prod(image.shape[1:]) + 1, len(image)), out.dtype)
    pixels[:-1] = image.reshape(len(image), -1).T
    for rows in row_blocks(out.shape[1], 2 * len(image)):
        total = pixels.take(index[0, rows], axis=0)
        total *= weight[0, rows, None]
        for tap in range(1, len(index)):
            part = pixels.take(index[tap, rows], axis=0)
            part *= weight[tap, rows, None]
            total += part
        out[:, rows] = total.T


def _sum_planes(image: Array, index: Array, weight: Array, out: Array) -> None:
    """Compute `_sum_pixels` channel by channel, for few channels."""
    plane = np.zeros(math.prod(image.shape[1:]) + 1, out.dtype)
    for channel, result in zip(image, out, strict=True):
        plane[:-1] = channel.reshape(-1)
        np.einsum("tp,tp->p", plane.take(index), weight, out=result)


def _sum_images(x: Array, index: Array, weight: Array, out: Array) -> None:
    """Sum the weighted pixels of several images: index and weight (taps, N, points) -> out (N, C, points).

    x is (N, C, *size). The points of a block of images form one long axis.
    """
    size, channels, points = math.prod(x.shape[2:]), x.shape[1], out.shape[2]
    for rows in row_blocks(len(out), channels * len(index) * points):
        some, places, shares = x[rows], index[:, None, rows], weight[:, rows]
        starts = size * np.arange(len(some) * channels).reshape(-1, channels).T[..., None]
        outside = places == size
        read = some.reshape(-1).take(np.where(outside, 0, places) + starts)
        if outside.any():
            np.copyto(read, 0, where=outside)
        total = np.einsum("tcp,tp->cp", read.reshape(*read.shape[:2], -1), shares.reshape(len(shares), -1))
        out[rows] = total.reshape(channels, len(some), points).swapaxes(0, 1)


def _sum_places(image: Array, index: Array, weight: Array, out: Array) -> None:
    """Compute `_sum_pixels` for few read pixels, without a copy of the image."""
    flat = image.reshape(len(image), -1)
    outside = index == flat.shape[1]
    read = flat.take(np.where(outside, 0, index), axis=1)
    read[:, outside] = 0
    np.einsum("ctp,tp->cp", read, weight, out=out)


def _unnormalize(position: Array, size: Array, align_corners: bool) -> Array:
    half = position.dtype.type(0.5)
    scaled: Array = (position + 1) * half * (size - 1) if align_corners else ((position + 1) * size - 1) * half
    return scaled


def _inside(position: Array, size: Array, padding: int, align_corners: bool) -> Array:
    """Move coordinates (..., axes, N, points) into the image of `size` (axes, 1, 1), by the padding mode.

    As in torch, NaN becomes the first pixel of a plane and the last pixel of a volume.
    """
    if padding == _ZEROS:
        return position
    if padding > _BORDER:
        low, span = (size * 0, size - 1) if align_corners else (size * 0 - position.dtype.type(0.5), size)
        distance = np.abs(position - low)
        turns, rest = np.floor(distance / span), np.fmod(distance, span)
        mirrored = np.where(turns % 2 == 0, rest + low, span - rest + low)
        position = np.where(span == 0, 0, mirrored).astype(position.dtype)
    not_before = np.maximum if len(size) > _PLANE else np.fmax
    inside: Array = np.fmin(not_before(position, 0), size - 1)
    return inside


def _taps(position: Array, interpolation: int) -> tuple[Array, Array]:
    """Return the integer coordinates next to each position and their weights: (taps, *position)."""
    if interpolation == _NEAREST:
        return np.rint(position)[None], np.ones_like(position)[None]
    low = np.floor(position)
    share = position - low
    if interpolation == _BILINEAR:
        return np.stack([low, low + 1]), np.stack([1 - share, share])
    steps = np.arange(-1, 3, dtype=position.dtype).reshape(4, 1, 1, 1)
    return low + steps, cubic_kernel(np.abs(share - steps), -0.75) + 0 * share
