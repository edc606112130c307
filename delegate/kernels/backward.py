"""Gradients that are core ATen operators. A result that `output_mask` excludes is None in `out`, or absent."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from delegate.kernels.convolution import convolution
from delegate.kernels.half_precision import Array
from delegate.kernels.indexing import check_indices
from delegate.kernels.operands import WIDE, WIDE_COMPLEX, along
from delegate.kernels.pooling import spans
from delegate.kernels.table import BOOL, INT, TABLE
from delegate.kernels.windows import last, pad_axes, spread, taps
from delegate.program.dtypes import DType
from delegate.program.raw import combine_at, occurrences

Maybe = Array | None


def _align_with_mask(out: Sequence[Maybe] | Array, mask: Sequence[bool]) -> Sequence[Maybe]:
    """Return a result or None for every entry of the mask, since programs have only the results that are present."""
    results = (out,) if isinstance(out, np.ndarray) else out
    if len(results) == len(mask):
        return results
    left = iter(results)
    return tuple(next(left) if is_present else None for is_present in mask)


@TABLE.kernel("aten.convolution_backward.default", dtypes=WIDE)
def convolution_backward(
    grad: Array,
    x: Array,
    weight: Array,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    mask: Sequence[bool],
    *,
    out: Sequence[Maybe] | Array,
) -> None:
    """Compute the gradients of x, weight and bias. grad (N, O, *spatial); x and weight as in `convolution`."""
    rank = weight.ndim - 2
    stride, padding, dilation = spread(stride, rank), spread(padding, rank), spread(dilation, rank)
    grad_x, grad_weight, grad_bias = _align_with_mask(out, mask)
    if grad_x is not None:
        convolution(grad, weight, None, stride, padding, dilation, not transposed, output_padding, groups, out=grad_x)
    if grad_weight is not None:
        wide, narrow = (grad, x) if transposed else (x, grad)
        _weight_gradient(pad_axes(wide, padding, padding), narrow, stride, dilation, groups, grad_weight)
    if grad_bias is not None:
        np.sum(grad, axis=(0, *range(2, grad.ndim)), out=grad_bias)


def _weight_gradient(
    wide: Array, narrow: Array, stride: Sequence[int], dilation: Sequence[int], groups: int, out: Array
) -> None:
    """Multiply, for each tap, the narrow side (N, A, *count) with the places of the wide side (N, B, ...) that it
    meets.

    out (A, B / groups, *kernel).
    """
    count, kernel = narrow.shape[2:], out.shape[2:]
    batch, pixels = narrow.shape[0], math.prod(count)
    left = narrow.reshape(batch, groups, out.shape[0] // groups, pixels)
    for position, places in taps(kernel, stride, dilation, count):
        right = wide[places].reshape(batch, groups, out.shape[1], pixels)
        out[last(*position)] = np.matmul(left, right.swapaxes(-1, -2)).sum(axis=0).reshape(out.shape[:2])


def _norm_gradient(grad: Array, normal: Array, rstd: Array, out: Array) -> None:
    """Compute the gradient of (x - mean) * rstd. Shapes are [rows, width], rstd [rows, 1]; `normal` is its result."""
    np.subtract(grad, grad.mean(axis=1, keepdims=True), out=out)
    np.subtract(out, normal * (grad * normal).mean(axis=1, keepdims=True), out=out)
    np.multiply(out, rstd, out=out)


@TABLE.kernel("aten.native_layer_norm_backward.default", dtypes=WIDE)
def native_layer_norm_backward(
    grad: Array,
    x: Array,
    shape: Sequence[int],
    mean: Array,
    rstd: Array,
    weight: Maybe,
    bias: Maybe,
    mask: Sequence[bool],
    *,
    out: Sequence[Maybe] | Array,
) -> None:
    """Compute the gradients of x, weight and bias. grad, x (..., *shape); mean, rstd: one element per row."""
    width = math.prod(shape)
    rows = x.size // width if width else 0
    each, scale = grad.reshape(rows, width), rstd.reshape(rows, 1)
    normal = (x.reshape(rows, width) - mean.reshape(rows, 1)) * scale
    grad_x, grad_weight, grad_bias = _align_with_mask(out, mask)
    if grad_x is not None:
        weighted = each if weight is None else each * weight.reshape(width)
        _norm_gradient(weighted, normal, scale, grad_x.reshape(rows, width))
    if grad_weight is not None:
        np.sum(each * normal, axis=0, out=grad_weight.reshape(width))
    if grad_bias is not None:
        np.sum(each, axis=0, out=grad_bias.reshape(width))


@TABLE.kernel("aten.native_group_norm_backward.default", dtypes=WIDE)
def native_group_norm_backward(
    grad: Array,
    x: Array,
    mean: Array,
    rstd: Array,
    weight: Maybe,
    batch: int,
    channels: int,
    pixels: int,
    groups: int,
    mask: Sequence[bool],
    *,
    out: Sequence[Maybe] | Array,
) -> None:
    """Compute the gradients of x, weight and bias. grad, x (N, C, ...); mean, rstd (N, groups)."""
    rows, by_channel = batch * groups, (batch, channels, pixels)
    scale = rstd.reshape(-1, 1)
    width = channels // groups * pixels
    normal = (x.reshape(rows, width) - mean.reshape(-1, 1)) * scale
    grad_x, grad_weight, grad_bias = _align_with_mask(out, mask)
    if grad_x is not None:
        weighted = grad if weight is None else grad * along(weight, grad.ndim, 1)
        _norm_gradient(weighted.reshape(rows, width), normal, scale, grad_x.reshape(rows, width))
    if grad_weight is not None:
        np.sum(grad.reshape(by_channel) * normal.reshape(by_channel), axis=(0, 2), out=grad_weight)
    if grad_bias is not None:
        np.sum(grad.reshape(by_channel), axis=(0, 2), out=grad_bias)


def _membership(windows: Sequence[slice], size: int, like: Array) -> Array:
    """Return a matrix (windows, size) with 1 where a window covers an element."""
    member = np.zeros((len(windows), size), like.dtype)
    for row, window in zip(member, windows, strict=True):
        row[window] = 1
    return member


@TABLE.kernel("aten._adaptive_avg_pool2d_backward.default", dtypes=WIDE)
def adaptive_avg_pool2d_backward(grad: Array, x: Array, *, out: Array) -> None:
    """Distribute grad ([N,] C, h, w) to the elements of x ([N,] C, H, W) that each window averages."""
    rows, columns = (_membership(spans(x.shape[a], grad.shape[a]), x.shape[a], grad) for a in (-2, -1))
    counts = rows.sum(axis=1)[:, None] * columns.sum(axis=1)
    np.matmul(rows.T @ (grad / counts), columns, out=out)


@TABLE.kernel("aten.avg_pool2d_backward.default", dtypes=WIDE | {DType.int64})
def avg_pool2d_backward(
    grad: Array,
    x: Array,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None,
    *,
    out: Array,
) -> None:
    """Compute the gradient of x ([N,] C, H, W). grad ([N,] C, h, w); other arguments as in avg_pool2d."""
    kernel, padding = spread(kernel, 2), spread(padding, 2)
    stride = spread(stride, 2, kernel)
    members, counts = [], []
    for axis in (-2, -1):
        size, pad = x.shape[axis], padding[axis]
        starts = [stride[axis] * j - pad for j in range(grad.shape[axis])]
        ends = [min(s + kernel[axis], size + pad) for s in starts]
        inside = [slice(max(s, 0), min(e, size)) for s, e in zip(starts, ends, strict=True)]
        members.append(_membership(inside, size, grad))
        counts.append(np.subtract(ends, starts) if count_include_pad else members[-1].sum(axis=1))
    rows, columns = members
    shares = grad / (np.multiply.outer(*counts) if divisor is None else divisor)
    np.matmul(rows.T @ shares.astype(grad.dtype, copy=False), columns, out=out)


@TABLE.kernel("aten.max_pool2d_with_indices_backward.default", dtypes=WIDE | INT)
def max_pool2d_with_indices_backward(
    grad: Array,
    x: Array,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: Array,
    *,
    out: Array,
) -> None:
    """Add each gradient to the place of its maximum. grad, indices ([N,] C, h, w)."""
    pixels = math.prod(out.shape[-2:])
    planes = out.size // pixels if pixels else 0
    out.fill(0)
    places = (np.arange(planes)[:, None], check_indices(indices.reshape(planes, -1), pixels))
    combine_at(np.add, out.reshape(planes, pixels), places, grad.reshape(planes, -1))


@TABLE.kernel("aten.embedding_dense_backward.default", dtypes=WIDE_COMPLEX | INT | BOOL)
def embedding_dense_backward(
    grad: Array, indices: Array, rows: int, padding_idx: int, scale_grad_by_freq: bool, *, out: Array
) -> None:
    """Sum or average the gradients (..., width) per row of the weight, by indices (...) -> (rows, width)."""
    used = check_indices(indices.reshape(-1), rows)
    each = grad.reshape(used.size, -1)
    counted = used != padding_idx
    out.fill(0)
    combine_at(np.add, out, (used[counted],), each[counted])
    if scale_grad_by_freq:
        np.divide(out, np.maximum(occurrences(used, None, rows), 1)[:, None], out=out, casting="unsafe")
