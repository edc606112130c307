"""Convolutions in 1 to 3 dimensions, as matrix products over gathered windows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from delegate.kernels.half_precision import Array
from delegate.kernels.table import COMPLEX, FLOAT, INT, TABLE
from delegate.kernels.windows import last, pad_axes, spread, taps
from delegate.program.dtypes import DType
from delegate.program.raw import check_room, windows

_DTYPES = (FLOAT | INT | COMPLEX) - {DType.float16}
_SCRATCH = 1 << 18  # elements of gathered windows per block: they about fit the cache of a core
_WIDE = 2  # channels per output column from which a depthwise convolution is faster over channels than over columns


@TABLE.kernel("aten.convolution.default", dtypes=_DTYPES)
def convolution(
    x: Array,
    weight: Array,
    bias: Array | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    *,
    out: Array,
) -> None:
    """Convolve x ([N,] C, *spatial) with weight (O, C / groups, *kernel), or (C, O / groups, *kernel) if transposed."""
    rank = weight.ndim - 2
    if x.ndim == rank + 1:
        x, out = x[None], out[None]
    if out.size == 0:
        return
    stride, padding, dilation = spread(stride, rank), spread(padding, rank), spread(dilation, rank)
    if transposed:
        _convolve_transposed(x, weight, stride, padding, dilation, groups, out)
    else:
        _convolve(pad_axes(x, padding, padding), weight, stride, dilation, groups, out)
    if bias is not None:
        np.add(out, bias.reshape(-1, *[1] * rank), out=out)


def _convolve(x: Array, weight: Array, stride: Sequence[int], dilation: Sequence[int], groups: int, out: Array) -> None:
    kernel, count = weight.shape[2:], out.shape[2:]
    if math.prod(kernel) == 1:
        x = x[last(*(slice(0, s * (n - 1) + 1, s) for s, n in zip(stride, count, strict=True)))]
        np.matmul(_group_weights(weight, groups), _split(x, groups), out=_split(out, groups))
    elif (step := _images_per_block(x, weight, out)) > count[-1]:
        _convolve_images(x, weight, stride, dilation, groups, step, out)
    elif groups == x.shape[1] == out.shape[1] > _WIDE * count[-1]:
        _convolve_depthwise(x, weight, stride, dilation, out)
    else:
        _convolve_gathered(x, weight, stride, dilation, groups, out)


def _split(x: Array, groups: int) -> Array:
    """Reshape (N, C, *spatial) -> (N, groups, C / groups, pixels)."""
    return x.reshape(x.shape[0], groups, x.shape[1] // groups, math.prod(x.shape[2:]))


def _group_weights(weight: Array, groups: int) -> Array:
    """Reshape (O, C / groups, *kernel) -> (groups, O / groups, C / groups * taps)."""
    return weight.reshape(groups, weight.shape[0] // groups, math.prod(weight.shape[1:]))


def _images_per_block(x: Array, weight: Array, out: Array) -> int:
    """Return the number of images whose columns fill a block."""
    columns: int = x.shape[1] * math.prod(weight.shape[2:]) * math.prod(out.shape[2:])
    return min(len(x), _SCRATCH // max(columns, 1))


def _convolve_images(
    x: Array, weight: Array, stride: Sequence[int], dilation: Sequence[int], groups: int, step: int, out: Array
) -> None:
    """Convolve many small images like `_convolve_gathered`: several at a time, which are innermost in the columns."""
    matrix, pixels = _group_weights(weight, groups), math.prod(out.shape[2:])
    outputs = out.reshape(len(x), groups, matrix.shape[1], pixels, copy=False)
    inputs = x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    for n in range(0, len(x), step):
        some, result = inputs[n : n + step], outputs[n : n + step]
        view = np.moveaxis(windows(some, weight.shape[2:], stride, dilation, out.shape[2:]), 0, -1)
        product = np.matmul(matrix, view.reshape(groups, matrix.shape[2], pixels * len(some)))
        np.copyto(result, np.moveaxis(product.reshape(*result.shape[1:], len(some)), -1, 0))


def _convolve_gathered(
    x: Array, weight: Array, stride: Sequence[int], dilation: Sequence[int], groups: int, out: Array
) -> None:
    """Gather the windows of some output rows into columns (im2col), multiply by the weights, then the next rows."""
    channels, kernel, count = x.shape[1] // groups, weight.shape[2:], out.shape[2:]
    matrix = _group_weights(weight, groups)
    inputs = x.reshape(x.shape[0], groups, channels, *x.shape[2:])
    outputs = out.reshape(x.shape[0], groups, -1, *count)
    line = math.prod(count[1:])
    step = max(1, min(groups, _SCRATCH // (matrix.shape[2] * line)))  # groups per block
    rows = max(1, min(count[0], _SCRATCH // (matrix.shape[2] * line * step)))
    for n in range(x.shape[0]):
        for g in range(0, groups, step):
            view = windows(inputs[n, g : g + step], kernel, stride, dilation, count)
            by_row = np.moveaxis(view, 2 + len(kernel), 0)
            for r in range(0, count[0], rows):
                columns = np.moveaxis(by_row[r : r + rows], 0, 2 + len(kernel))
                some = min(rows, count[0] - r)
                result = outputs[n, g : g + step, :, r : r + some]
                np.matmul(
                    matrix[g : g + step],
                    columns.reshape(len(columns), matrix.shape[2], some * line),
                    out=result.reshape(*result.shape[:2], some * line, copy=False),
                )


def _convolve_depthwise(x: Array, weight: Array, stride: Sequence[int], dilation: Sequence[int], out: Array) -> None:
    """Convolve with one kernel per channel, with the channels last in memory: the innermost loop runs over them.

    x (N, C, *spatial), weight (C, 1, *kernel).
    """
    rank = weight.ndim - 2
    channel, kernel, pixel = 0, list(range(1, rank + 1)), list(range(rank + 1, 2 * rank + 1))
    by_channel = np.asfortranarray(weight[:, 0])
    total = np.moveaxis(np.empty((*out.shape[2:], out.shape[1]), out.dtype), -1, 0)
    for image, result in zip(x, out, strict=True):
        pixels = np.moveaxis(np.ascontiguousarray(np.moveaxis(image, 0, -1)), -1, 0)
        view = windows(pixels, weight.shape[2:], stride, dilation, out.shape[2:])
        np.einsum(view, [channel, *kernel, *pixel], by_channel, [channel, *kernel], [channel, *pixel], out=total)
        np.copyto(result, total)


def _convolve_transposed(
    x: Array,
    weight: Array,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    out: Array,
) -> None:
    """Add the product of every tap with the whole input to the places of the output that the tap reaches."""
    kernel, count = weight.shape[2:], x.shape[2:]
    reach = [
        max((n - 1) * s + (k - 1) * d + 1, o + 2 * p)
        for n, s, k, d, p, o in zip(count, stride, kernel, dilation, padding, out.shape[2:], strict=True)
    ]
    check_room((*out.shape[:2], *reach), out.dtype, x, weight, out)
    whole = np.zeros((*out.shape[:2], *reach), out.dtype)
    pixels = _split(x, groups)
    by_group = weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], *kernel)
    product = np.empty((x.shape[0], groups, weight.shape[1], pixels.shape[3]), out.dtype)
    for position, places in taps(kernel, stride, dilation, count):
        np.matmul(by_group[last(*position)].swapaxes(1, 2), pixels, out=product)
        whole[places] += product.reshape(*out.shape[:2], *count)
    out[...] = whole[last(*(slice(p, p + n) for p, n in zip(padding, out.shape[2:], strict=True)))]
