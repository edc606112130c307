"""Interpolation: images resized by a factor or to a size, and sampled at positions of a grid."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from delegate.kernels.half_precision import Array
from delegate.kernels.operands import row_blocks
from delegate.kernels.table import ANY, FLOAT, TABLE
from delegate.program.dtypes import DType
from delegate.program.raw import check_room

_FLOAT = FLOAT - {DType.float16}
_BILINEAR, _NEAREST = 0, 1  # the third interpolation mode is bicubic
_SMALL_PLANE = 128  # height plus width of an output
_MANY = 8  # channels from which gathering whole pixels is faster
_FEW_PIXELS = 2  # with more pixels per read pixel, only the read pixels are gathered
_SMALL = 1 << 12  # elements read of an image, up to which several images at a time are faster
_PLANE = 2  # axes; with more axes torch treats NaN differently
_ZEROS, _BORDER = 0, 1  # the third padding mode is reflection
_FEW_PLACES = 4  # from axes this many times as long as the places read, only these places are gathered
_LONG = 8  # taps from which a product with the weights is faster than a sum over taps
_MAX_BITS = 22  # of the fraction of an integer weight
Taps = tuple[Array, Array]  # (size, taps) places in the input and their weights, for every place of the output


def _used_scale(size: int, count: int, scale: float | None) -> float | None:
    """Return the scale of an axis; None if its size stays: then torch ignores it, but in cubic kernels."""
    return None if size == count else scale


def _centers(size: int, count: int, scale: float | None, align_corners: bool, dtype: np.dtype[Any]) -> Array:
    """Return the centers of the outputs on an input axis, in units of its elements."""
    centers = np.arange(count, dtype=dtype)
    if align_corners:
        centers *= (size - 1) / (count - 1) if count > 1 else 0
    else:
        centers += 0.5
        centers *= 1 / scale if scale else size / count
        centers -= 0.5
    return centers


def _linear(size: int, count: int, scale: float | None, align_corners: bool, dtype: np.dtype[Any]) -> Taps:
    center = np.maximum(_centers(size, count, _used_scale(size, count, scale), align_corners, dtype), 0)
    low = np.minimum(center.astype(np.int64), size - 1)
    share = center - low
    return np.stack([low, np.minimum(low + 1, size - 1)], 1), np.stack([1 - share, share], 1)


def _cubic(size: int, count: int, scale: float | None, align_corners: bool, dtype: np.dtype[Any]) -> Taps:
    center = _centers(size, count, scale, align_corners, dtype)
    low = np.floor(center)
    places = low.astype(np.int64)[:, None] + np.arange(-1, 3)
    return places.clip(0, size - 1), _cubic_kernel(np.abs(center[:, None] - places), -0.75)


def _cubic_kernel(x: Array, a: float) -> Array:
    """Evaluate Keys' cubic kernel at distances x >= 0."""
    inner = ((a + 2) * x - (a + 3)) * x * x + 1
    outer = ((x - 5) * x + 8) * x * a - 4 * a
    values: Array = np.where(x <= 1, inner, np.where(x < 2, outer, 0)).astype(x.dtype)
    return values


def _triangle(x: Array) -> Array:
    return (1 - x).clip(0)


def _antialiasing_taps(
    support: float,
    kernel: Callable[[Array], Array],
    size: int,
    count: int,
    scale: float | None,
    align_corners: bool,
    dtype: np.dtype[Any],
) -> Taps:
    """Return the taps of a kernel that is stretched if the image shrinks; the weights sum to 1."""
    places, weights, beyond = _windows(support, kernel, True, size, count, scale, align_corners)
    weights /= weights.sum(axis=1, keepdims=True)
    # The taps beyond share the first tap's place and weight: a weight of 0 times infinity would be NaN.
    sources = np.where(beyond, places[:, :1], places)
    beyond[:, 0] = True
    weights = np.where(beyond, weights[:, :1] / beyond.sum(axis=1, keepdims=True), weights)
    return sources.clip(0, size - 1), weights.astype(dtype)


def _windows(
    support: float,
    kernel: Callable[[Array], Array],
    antialias: bool,
    size: int,
    count: int,
    scale: float | None,
    align_corners: bool,
) -> tuple[Array, Array, Array]:
    """Return the places along one axis that outputs read, their weights, and a mask of taps after an output's last.

    All are (count, taps). A kernel is `support` wide on each side, and stretched with `antialias` if the image shrinks.
    """
    scale = _used_scale(size, count, scale)
    free = 1 / scale if scale else size / count
    ratio = (size - 1) / max(count - 1, 1) * (count > 1) if align_corners else free
    stretch, shift = max(ratio, 1.0) if antialias else 1.0, 0.5 if align_corners and not antialias else 0.0
    center, reach = ratio * (np.arange(count) + 0.5 - shift), support * stretch
    first = np.maximum((center - reach + 0.5 + shift).astype(np.int64), 0)
    last = np.minimum((center + reach + 0.5 + shift).astype(np.int64), size)
    if not antialias:
        last = np.minimum(last, first + int(2 * support))
    width = max(int((last - first).max(initial=1)), 1)
    check_room((count, width), center.dtype)
    places = first[:, None] + np.arange(width)
    weights = kernel(np.abs((places - center[:, None] + 0.5 - shift) / stretch))
    beyond = places >= last[:, None]
    weights[beyond] = 0
    return places, weights, beyond


def resample(taps: Callable[..., Taps], x: Array, scales: Sequence[float | None], align: bool, out: Array) -> None:
    """Interpolate the last len(scales) axes of x (N, C, *spatial) to the sizes of `out`; the most shrunk axis first."""
    axes = range(-1, -len(scales) - 1, -1)
    plan = {axis: taps(x.shape[axis], out.shape[axis], scales[axis], align, out.dtype) for axis in axes}
    if all(_FEW_PLACES * places.size <= x.shape[axis] for axis, (places, _) in plan.items()):
        read: tuple[Any, ...] = np.ix_(*(plan[axis][0].ravel() for axis in reversed(axes)))
        x = x[(..., *read)]
        plan = {
            axis: (np.arange(places.size).reshape(places.shape), weights) for axis, (places, weights) in plan.items()
        }
    for axis in sorted(axes, key=lambda axis: out.shape[axis] / max(x.shape[axis], 1)):
        size, count = x.shape[axis], out.shape[axis]
        places, weights = plan[axis]
        if count == size and (places == np.arange(size)[:, None]).all(where=weights != 0):
            continue
        x = _method(places, weights, size)(x, places, weights, axis)
    np.copyto(out, x)


def _method(places: Array, weights: Array, size: int) -> Callable[[Array, Array, Array, int], Array]:
    if max(len(places), _LONG) < places.shape[1]:
        return _sum_per_output
    return _sum_slices if _is_regular(places, weights, size) else _sum_taps


def _sum_taps(x: Array, places: Array, weights: Array, axis: int) -> Array:
    shape = (-1, *[1] * (-axis - 1))
    total = x.take(places[:, 0], axis=axis)
    total *= weights[:, 0].reshape(shape)
    for k in range(1, places.shape[1]):
        part = x.take(places[:, k], axis=axis)
        part *= weights[:, k].reshape(shape)
        total += part
    return total


def _sum_per_output(x: Array, places: Array, weights: Array, axis: int) -> Array:
    """Compute `_sum_taps` for fewer outputs than taps: one output after the other, each a product with its weights."""
    shape = list(x.shape)
    shape[axis] = len(places)
    total = np.empty(shape, x.dtype)
    for target, sources, share in zip(np.moveaxis(total, axis, 0), places, weights, strict=True):
        np.matmul(np.moveaxis(x.take(sources, axis=axis), axis, -1), share, out=target)
    return total


def _is_regular(places: Array, weights: Array, size: int) -> bool:
    """Return if an axis grows by a whole factor: all inner elements then have the same weights for their neighbors."""
    count, taps = places.shape
    if size <= 2 * taps or count % size or count == size:
        return False
    factor = count // size
    inside = slice(taps * factor, count - taps * factor)
    steps = places[inside].reshape(-1, factor, taps) - np.arange(taps, size - taps)[:, None, None]
    same = weights[inside].reshape(-1, factor, taps)
    return bool((steps == steps[0]).all() and (same == same[0]).all())


def _sum_slices(x: Array, places: Array, weights: Array, axis: int) -> Array:
    """Compute `_sum_taps` for `_is_regular` axes: slices replace places, except at the ends."""
    (count, taps), factor = places.shape, len(places) // x.shape[axis]
    shape = list(x.shape)
    shape[axis] = count
    total = np.empty(shape, x.dtype)
    source, result = np.moveaxis(x, axis, 0), np.moveaxis(total, axis, 0)
    edge = taps * factor
    for ends in (slice(0, edge), slice(count - edge, count)):
        result[ends] = np.moveaxis(_sum_taps(x, places[ends], weights[ends], axis), axis, 0)
    for phase in range(edge, edge + factor):
        target = result[phase : count - edge : factor]
        parts = (source[first : first + len(target)] for first in places[phase])
        np.multiply(next(parts), weights[phase, 0], out=target)
        for k, part in enumerate(parts, 1):
            target += part * weights[phase, k]
    return total


def nearest(rank: int, offset: float, x: Array, size: Any, *scales: Any, out: Array) -> None:
    """Resize x (N, C, *spatial); every output copies the input at (output + offset) times the ratio of the sizes.

    The results are rounded as torch does, which has two codes: the one for small planes computes in float32 throughout,
    and ignores a scale if sizes stay or double.
    """
    is_small = rank == 2 and sum(out.shape[-2:]) <= _SMALL_PLANE
    dtype = np.float64 if x.dtype == np.float64 and not is_small else np.float32
    for axis, scale in zip(range(-rank, 0), _scales(rank, scales), strict=True):
        old, new = x.shape[axis], out.shape[axis]
        is_ignored = is_small and not offset and new in (old, 2 * old)
        ratio = dtype(1 / scale) if scale and not is_ignored else dtype(old) / dtype(new)
        positions = (np.arange(new, dtype=dtype) + dtype(offset)) * ratio
        x = x.take(np.minimum(positions.astype(np.float32).astype(np.int64), old - 1), axis=axis)
    np.copyto(out, x)


def interpolate(
    taps: Callable[..., Taps], rank: int, x: Array, size: Any, align: bool, *scales: Any, out: Array
) -> None:
    """Resize x (N, C, *spatial); every output is a weighted sum of inputs."""
    resample(taps, x, _scales(rank, scales), align, out)


def interpolate_bytes(
    support: int,
    kernel: Callable[[Array], Array],
    antialias: bool,
    x: Array,
    size: Any,
    align: bool,
    *scales: Any,
    out: Array,
) -> None:
    """Resize x (N, C, H, W) in uint8 with integer weights; the result of each axis rounds to uint8, as in torch.

    Args:
        support: half the width of the kernel.
        kernel: weights at distances of 0 or more.
        antialias: if the kernel is stretched when the image shrinks.
        x, out: images.
        size, align, scales: the arguments of the operator.
    """
    for axis, scale in zip((-1, -2), reversed(_scales(2, scales)), strict=True):
        count = out.shape[axis]
        places, weights, bits = _integer_weights(support, kernel, antialias, x.shape[axis], count, scale, align)
        shape = (-1, *[1] * (-axis - 1))
        total = np.full((*x.shape[:axis], count, *x.shape[axis:][1:]), 1 << (bits - 1), np.int64)
        for sources, weight in zip(places.T, weights.T, strict=True):
            total += x.take(sources, axis=axis) * weight.reshape(shape)
        x = (total >> bits).clip(0, 255).astype(np.uint8)
    np.copyto(out, x)


def _integer_weights(
    support: int,
    kernel: Callable[[Array], Array],
    antialias: bool,
    size: int,
    count: int,
    scale: float | None,
    align_corners: bool,
) -> tuple[Array, Array, int]:
    """Return the places and integer weights (count, taps) along one axis, and the number of fraction bits.

    The greatest weight has 15 bits.
    """
    places, weights, _ = _windows(support, kernel, antialias, size, count, scale, align_corners)
    total = weights.sum(axis=1, keepdims=True)
    np.divide(weights, total, out=weights, where=total != 0)
    greatest = float(weights.max(initial=0))
    bits = next((b for b in range(_MAX_BITS) if int(0.5 + greatest * (1 << (b + 1))) >= 1 << 15), _MAX_BITS)
    integers = np.trunc(weights * (1 << bits) + np.copysign(0.5, weights)).astype(np.int64)
    return places.clip(0, size - 1), integers, bits


def _scales(rank: int, scales: Sequence[Any]) -> Sequence[float | None]:
    """Return scale factors per axis, from single numbers, or from the list or None of a `.vec` overload."""
    if rank == len(scales) and not isinstance(scales[0], Sequence):
        return scales
    return scales[0] or (None,) * rank


_NEAREST_OFFSETS = {"upsample_nearest": 0.0, "_upsample_nearest_exact": 0.5}
_INTERPOLATED: dict[str, tuple[int, Callable[..., Taps]]] = {
    "upsample_linear1d": (1, _linear),
    "upsample_bilinear2d": (2, _linear),
    "upsample_trilinear3d": (3, _linear),
    "upsample_bicubic2d": (2, _cubic),
    "_upsample_bilinear2d_aa": (2, partial(_antialiasing_taps, 1.0, _triangle)),
    "_upsample_bicubic2d_aa": (2, partial(_antialiasing_taps, 2.0, partial(_cubic_kernel, a=-0.5))),
}
_BYTES: dict[str, tuple[int, Callable[[Array], Array], bool]] = {
    "upsample_bilinear2d": (1, _triangle, False),
    "_upsample_bilinear2d_aa": (1, _triangle, True),
    "_upsample_bicubic2d_aa": (2, partial(_cubic_kernel, a=-0.5), True),
}
for _overload in ("default", "vec"):
    for _op, _how in _BYTES.items():
        TABLE.kernel(f"aten.{_op}.{_overload}", dtypes={DType.uint8}, whole=True)(partial(interpolate_bytes, *_how))
    for _op, _offset in _NEAREST_OFFSETS.items():
        for _rank in (1, 2, 3):
            TABLE.kernel(f"aten.{_op}{_rank}d.{_overload}", dtypes=ANY, whole=True)(partial(nearest, _rank, _offset))
    for _op, (_rank, _axis_taps) in _INTERPOLATED.items():
        TABLE.kernel(f"aten.{_op}.{_overload}", dtypes=_FLOAT, whole=True)(partial(interpolate, _axis_taps, _rank))


@TABLE.kernel("aten.grid_sampler_2d.default", "aten.grid_sampler_3d.default", dtypes=FLOAT - {DType.float16})
def grid_sampler(x: Array, grid: Array, interpolation: int, padding: int, align_corners: bool, *, out: Array) -> None:
    """Sample x (N, C, [D,] H, W) at the points of a grid -> (N, C, ...).

    grid (N, ..., 2 or 3) has (x, y[, z]), each from -1 to 1 over the image.
    interpolation: 0 bilinear, 1 nearest, 2 bicubic; padding: 0 zeros, 1 border, 2 reflection.
    """
    if out.size == 0:
        return
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
    if _FEW_PIXELS * index.shape[0] * points < math.prod(x.shape[2:]):
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

    x is (N, C, *size). The points of an image block form one long axis.
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
    return low + steps, _cubic_kernel(np.abs(share - steps), -0.75) + 0 * share
