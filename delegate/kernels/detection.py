"""Operators of torchvision: non-maximum suppression, regions of interest, deformable convolution."""

from __future__ import annotations

import math
from itertools import product

import numpy as np

from delegate.errors import KernelError
from delegate.kernels.half_precision import Array
from delegate.kernels.operands import WIDE
from delegate.kernels.table import TABLE
from delegate.program.dtypes import DType


@TABLE.allocating("torchvision.nms.default", dtypes=WIDE | {DType.int64})
def nms(boxes: Array, scores: Array, threshold: float) -> Array:
    """Return the indices (int64) of the boxes that remain, the best first. boxes (n, 4): x1, y1, x2, y2; scores (n).

    A box is dropped if its overlap with a better remaining box exceeds the threshold.
    """
    left = np.argsort(-scores, kind="stable")
    x1, y1, x2, y2 = (np.ascontiguousarray(c) for c in boxes[left].T)
    areas = (x2 - x1) * (y2 - y1)
    selected = []
    while len(left):
        selected.append(left[0])
        width = np.minimum(x2[0], x2[1:]) - np.maximum(x1[0], x1[1:])
        height = np.minimum(y2[0], y2[1:]) - np.maximum(y1[0], y1[1:])
        common = np.maximum(width, 0) * np.maximum(height, 0)
        stays = ~(common / (areas[0] + areas[1:] - common) > threshold)
        left, x1, y1, x2, y2, areas = (a[1:][stays] for a in (left, x1, y1, x2, y2, areas))
    return np.array(selected, np.int64)


def _image(rois: Array, images: int) -> Array:
    """Return the image of each region; raise KernelError if an image does not exist."""
    numbers: Array = rois[:, 0].astype(np.int64)
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < images:
        raise KernelError(
            f"regions of interest refer to images {numbers.min()} to {numbers.max()}, but there are {images} images",
            remedy="check the first column of the regions, which is the index of the image",
        )
    return numbers


def _samples(start: float, bin_: float, bins: int, ratio: int, size: int) -> tuple[Array, Array, Array, Array, int]:
    """Return the sample points of all bins on one axis: lower and upper pixels, shares, inside mask, count per bin."""
    count = max(ratio if ratio > 0 else math.ceil(bin_), 0)
    points = start + np.arange(bins, dtype=np.float32)[:, None] * np.float32(bin_)
    points = (
        points + (np.arange(count, dtype=np.float32) + np.float32(0.5)) * np.float32(bin_ / max(count, 1))
    ).ravel()
    inside = (points >= -1) & (points <= size)
    points = np.where(inside, np.maximum(points, 0), 0)
    low = np.minimum(points.astype(np.int64), size - 1)
    high = np.minimum(low + 1, size - 1)
    return low, high, np.where(low < size - 1, points - low, 0).astype(np.float32), inside, count


@TABLE.kernel("torchvision.roi_align.default", dtypes=WIDE)
def roi_align(
    x: Array, rois: Array, scale: float, height: int, width: int, ratio: int, aligned: bool, *, out: Array
) -> None:
    """Pool regions: x (N, C, H, W), rois (K, 5) of image, x1, y1, x2, y2 -> (K, C, height, width).

    Every bin is the mean of `ratio` x `ratio` points between pixels, or of one point per pixel if `ratio` is not
    positive.
    """
    images = _image(rois, len(x))
    for roi, image, result in zip(rois[:, 1:], images, out, strict=True):
        pooled = x[image]
        x1, y1, x2, y2 = (roi * x.dtype.type(scale) - x.dtype.type(0.5 if aligned else 0)).tolist()
        spans = [(y1, y2 - y1), (x1, x2 - x1)]
        axes = [
            _samples(start, (span if aligned else max(span, 1.0)) / bins, bins, ratio, size)
            for (start, span), bins, size in zip(spans, (height, width), x.shape[2:], strict=True)
        ]
        if not all(count for *_, count in axes):
            result.fill(0)
            continue
        for axis, (low, high, share, inside, count) in zip((1, 2), axes, strict=True):
            weight = share.astype(x.dtype).reshape((-1, 1) if axis == 1 else (-1,))
            pooled = pooled.take(low, axis) * (1 - weight) + pooled.take(high, axis) * weight
            pooled[(slice(None),) * axis + (~inside,)] = 0
            shape = (*pooled.shape[:axis], len(low) // count, count, *pooled.shape[axis + 1 :])
            pooled = pooled.reshape(shape).sum(axis=axis + 1) / x.dtype.type(count)
        np.copyto(result, pooled)


@TABLE.kernel("torchvision.roi_pool.default", dtypes=WIDE | {DType.int32})
def roi_pool(x: Array, rois: Array, scale: float, height: int, width: int, *, out: tuple[Array, Array]) -> None:
    """Find the greatest pixels of every bin: x (N, C, H, W), rois (K, 5) -> (K, C, height, width), and their places."""
    images = _image(rois, len(x))
    rows, columns = x.shape[2:]
    for k, (roi, image) in enumerate(zip(rois[:, 1:], images, strict=True)):
        scaled = roi * x.dtype.type(scale)
        x1, y1, x2, y2 = (np.sign(scaled) * np.floor(np.abs(scaled) + x.dtype.type(0.5))).astype(np.int64).tolist()
        ys = _bins(y1, max(y2 - y1 + 1, 1), height, rows)
        xs = _bins(x1, max(x2 - x1 + 1, 1), width, columns)
        for (i, (top, bottom)), (j, (left, right)) in product(enumerate(ys), enumerate(xs)):
            if top >= bottom or left >= right:
                out[0][k, :, i, j], out[1][k, :, i, j] = 0, -1
                continue
            part = x[image, :, top:bottom, left:right].reshape(x.shape[1], -1)
            best = part.argmax(axis=1)
            out[0][k, :, i, j] = part[np.arange(len(part)), best]
            out[1][k, :, i, j] = (best // (right - left) + top) * columns + best % (right - left) + left


def _bins(start: int, span: int, count: int, size: int) -> list[tuple[int, int]]:
    """Return the starts and ends of a region's bins, clipped to the image."""
    step = np.float32(span) / np.float32(count)
    begins = (math.floor(np.float32(i) * step) + start for i in range(count))
    ends = (math.ceil(np.float32(i + 1) * step) + start for i in range(count))
    return [(min(max(b, 0), size), min(max(e, 0), size)) for b, e in zip(begins, ends, strict=True)]


@TABLE.kernel("torchvision.deform_conv2d.default", dtypes=WIDE)
def deform_conv2d(
    x: Array,
    weight: Array,
    offset: Array,
    mask: Array,
    bias: Array,
    stride_h: int,
    stride_w: int,
    pad_h: int,
    pad_w: int,
    dilation_h: int,
    dilation_w: int,
    groups: int,
    offset_groups: int,
    use_mask: bool,
    *,
    out: Array,
) -> None:
    """Compute a convolution whose taps are moved by offsets -> (N, O, oh, ow).

    x (N, C, H, W), weight (O, C / groups, kh, kw), bias (O), mask (N, offset_groups * kh * kw, oh, ow).
    offset (N, offset_groups * kh * kw * 2, oh, ow), of rows and columns.
    """
    kernel, pixels = weight.shape[2:], out.shape[2:]
    taps = math.prod(kernel)
    channels = x.shape[1] // offset_groups
    starts = [
        np.arange(k)[:, None] * d + np.arange(n) * s - p
        for k, d, n, s, p in zip(
            kernel, (dilation_h, dilation_w), pixels, (stride_h, stride_w), (pad_h, pad_w), strict=True
        )
    ]
    rows = starts[0][:, None, :, None].astype(x.dtype)  # (kh, 1, oh, 1)
    columns = starts[1][None, :, None, :].astype(x.dtype)  # (1, kw, 1, ow)
    matrices = weight.reshape(groups, -1, weight.shape[1] * taps)
    for n, image in enumerate(x):
        moved = offset[n].reshape(offset_groups, *kernel, 2, *pixels)
        sampled = np.empty((offset_groups, channels, taps * math.prod(pixels)), x.dtype)
        for group in range(offset_groups):
            y, z = rows + moved[group, :, :, 0], columns + moved[group, :, :, 1]
            part = image[group * channels : (group + 1) * channels]
            sampled[group] = _interpolate(part, y.ravel(), z.ravel())
        if use_mask:
            sampled *= mask[n].reshape(offset_groups, 1, -1)
        gathered = sampled.reshape(groups, -1, math.prod(pixels))
        np.matmul(matrices, gathered, out=out[n].reshape(groups, matrices.shape[1], -1, copy=False))
    np.add(out, bias.reshape(-1, 1, 1), out=out)


def _interpolate(image: Array, y: Array, x: Array) -> Array:
    """Interpolate the image (C, H, W) at points between its pixels (n) -> (C, n); pixels outside are 0."""
    height, width = image.shape[1:]
    inside = (y > -1) & (y < height) & (x > -1) & (x < width)
    y, x = np.where(inside, y, 0), np.where(inside, x, 0)
    top, left = np.floor(y), np.floor(x)
    flat = image.reshape(len(image), -1)
    total = np.zeros((len(image), len(y)), image.dtype)
    for row, row_weight in ((top, 1 - (y - top)), (top + 1, y - top)):
        for column, column_weight in ((left, 1 - (x - left)), (left + 1, x - left)):
            there = inside & (row >= 0) & (row < height) & (column >= 0) & (column < width)
            place = np.where(there, row * width + column, 0).astype(np.int64)
            total += np.where(there, flat.take(place, axis=1) * (row_weight * column_weight), 0)
    return total
