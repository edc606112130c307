"""Sliding windows over the last axes of arrays, rearrangements into columns and channels, and padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

from delegate.kernels.copies import CONVERTIBLE
from delegate.kernels.half_precision import Array
from delegate.kernels.table import ANY, BOOL, COMPLEX, FLOAT, TABLE
from delegate.program.dtypes import DType
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


def _positions(
    size: Sequence[int], kernel: Sequence[int], dilation: Sequence[int], padding: Sequence[int], stride: Sequence[int]
) -> tuple[int, ...]:
    """Return the number of kernel positions on each axis."""
    axes = zip(size, kernel, dilation, padding, stride, strict=True)
    return tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, d, p, s in axes)


@TABLE.kernel("aten.col2im.default", dtypes=(FLOAT | COMPLEX | BOOL) - {DType.float16})
def col2im(
    x: Array,
    size: Sequence[int],
    kernel: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
    *,
    out: Array,
) -> None:
    """Sum columns x ([N,] C * kernel, positions) into an image ([N,] C, H, W), where windows overlap."""
    kernel, dilation, padding, stride = (spread(v, 2) for v in (kernel, dilation, padding, stride))
    count = _positions(size, kernel, dilation, padding, stride)
    shape = (*out.shape[:-2], *(n + 2 * p for n, p in zip(size, padding, strict=True)))
    check_room(shape, out.dtype, x, out)
    whole = np.zeros(shape, out.dtype)
    columns = x.reshape(*out.shape[:-2], *kernel, *count)
    for position, places in taps(kernel, stride, dilation, count):
        whole[places] += columns[last(*position, slice(None), slice(None))]
    out[...] = whole[last(*(slice(p, p + n) for p, n in zip(padding, size, strict=True)))]


@TABLE.kernel("aten.pixel_shuffle.default", dtypes=ANY)
def pixel_shuffle(x: Array, factor: int, *, out: Array) -> None:
    """Rearrange x (..., C * factor ** 2, H, W) -> (..., C, H * factor, W * factor)."""
    *batch, channels, height, width = x.shape
    blocks = x.reshape(*batch, channels // factor**2, factor, factor, height, width)
    images = out.reshape(*blocks.shape[:-4], height, factor, width, factor, copy=False)
    _exchange(blocks, np.moveaxis(images, (-4, -2), (-2, -1)))


@TABLE.kernel("aten.pixel_unshuffle.default", dtypes=ANY)
def pixel_unshuffle(x: Array, factor: int, *, out: Array) -> None:
    """Rearrange x (..., C, H * factor, W * factor) -> (..., C * factor ** 2, H, W)."""
    *batch, height, width = x.shape
    blocks = np.moveaxis(x.reshape(*batch, height // factor, factor, width // factor, factor), (-3, -1), (-4, -3))
    _exchange(blocks, out.reshape(blocks.shape, copy=False))


def _exchange(values: Array, out: Array) -> None:
    """Copy (..., factor, factor, H, W) by factors: NumPy would iterate over the factors innermost, in short rows."""
    factor, width = values.shape[-3], values.shape[-1]
    if width < factor:
        out[...] = values
        return
    for place in np.ndindex(factor, factor):
        at = (..., *place, slice(None), slice(None))
        out[at] = values[at]


def _fill(out: Array, values: Array) -> None:
    out.reshape(values.shape, copy=False)[...] = values


# A list of padding is (before, after) of the last dimension, then of the one before it, ...; negative pads crop.


@TABLE.kernel("aten.constant_pad_nd.default", dtypes=CONVERTIBLE)
def constant_pad(x: Array, pad: Sequence[int], value: Any, *, out: Array) -> None:
    inner, source = [slice(None)] * x.ndim, [slice(None)] * x.ndim
    for axis, before, after in _by_axis(x.ndim, pad):
        inner[axis] = slice(max(before, 0), out.shape[axis] - max(after, 0))
        source[axis] = slice(max(-before, 0), x.shape[axis] - max(-after, 0))
    if any(p > 0 for p in pad):
        np.copyto(out, np.asarray(value), casting="unsafe")
    out[tuple(inner)] = x[tuple(source)]


def _by_axis(ndim: int, pad: Sequence[int]) -> list[tuple[int, int, int]]:
    return [(ndim - 1 - i // 2, pad[i], pad[i + 1]) for i in range(0, len(pad), 2)]


@TABLE.kernel(
    "aten.reflection_pad1d.default", "aten.reflection_pad2d.default", "aten.reflection_pad3d.default", dtypes=ANY
)
def reflection_pad(x: Array, pad: Sequence[int], *, out: Array) -> None:
    """Mirror at the edge, without a repetition of the edge."""
    _gather_axes(x, pad, "reflect", out)


@TABLE.kernel("aten.replication_pad2d.default", "aten.replication_pad3d.default", dtypes=ANY)
def replication_pad(x: Array, pad: Sequence[int], *, out: Array) -> None:
    """Repeat the edge."""
    _gather_axes(x, pad, "replicate", out)


def _gather_axes(x: Array, pad: Sequence[int], mode: str, out: Array) -> None:
    for axis, before, after in _by_axis(x.ndim, pad):
        if before or after:
            check_room((x.shape[axis] + max(before, 0) + max(after, 0),), np.dtype(np.int64), x, out)
            x = x.take(_sources(x.shape[axis], before, after, mode), axis=axis)
    np.copyto(out, x)


def _sources(size: int, before: int, after: int, mode: str) -> Array:
    """Return the source position of each element of a padded axis."""
    index = np.arange(-before, size + after)
    if mode == "replicate":
        return index.clip(0, size - 1)
    index = np.abs(index)
    return np.where(index >= size, 2 * (size - 1) - index, index)
