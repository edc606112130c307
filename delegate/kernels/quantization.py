"""Quantization and dequantization: torch's `quantized_decomposed` operators, per tensor, channel, token and group.

Lowering makes operators of `joined` from several of them, see `delegate.emit.qdq_fusion`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from delegate.kernels.half_precision import Array
from delegate.kernels.indexing import check_indices
from delegate.kernels.operands import BLOCK, along, blocks, level
from delegate.kernels.table import INT, TABLE, F
from delegate.program.dtypes import DType, unpack_pairs

_DTYPES = INT | {DType.float32, DType.float64, DType.uint16}
_EPSILON = float(np.finfo(np.float32).eps)
Parameter = Any  # a number or an array of one element


def _kernel(name: str, *overloads: str) -> Callable[[F], F]:
    return TABLE.kernel(*(f"quantized_decomposed.{name}.{o}" for o in overloads or ("default",)), dtypes=_DTYPES)


def _number(value: Parameter) -> Any:
    return value.item() if isinstance(value, np.ndarray) else value


def _decode(x: Array, zeros: Array | None, scales: Array, out: Array) -> None:
    """Compute (x - zeros) * scales in the dtype of the scales, as torch does, then convert to the dtype of `out`."""
    if zeros is not None and zeros.any():
        x = x.astype(np.int64 if zeros.dtype.kind in "iu" else zeros.dtype) - zeros
    np.multiply(x, scales, out=out, casting="unsafe", dtype=scales.dtype)


def _replace_nan(values: Array, number: Parameter) -> None:
    """Replace NaN, if there is any, by a number."""
    if np.isnan(np.minimum.reduce(values, axis=None, initial=0)):
        np.copyto(values, number, where=np.isnan(values))


@_kernel("quantize_per_tensor", "default", "tensor", "tensor2")
def quantize_per_tensor(
    x: Array, scale: Parameter, zero_point: Parameter, low: Parameter, high: Parameter, _dtype: DType, *, out: Array
) -> None:
    """Compute round(x / scale) + zero_point, clipped to low and high; NaN is the integer 0, as in torch."""
    factor, zero = np.float32(1.0 / _number(scale)), np.float32(_number(zero_point))
    for source, target in blocks(x, out):
        values = np.multiply(source, factor)
        np.rint(values, out=values)
        if zero:
            np.add(values, zero, out=values)
        np.maximum(values, level(_number(low), values), out=values)
        np.minimum(values, level(_number(high), values), out=values)
        _replace_nan(values, 0)
        np.copyto(target, values, casting="unsafe")


@_kernel("dequantize_per_tensor", "default", "tensor", "tensor2")
def dequantize_per_tensor(
    x: Array, scale: Parameter, zero_point: Parameter, low: Any, high: Any, *_dtypes: DType | None, out: Array
) -> None:
    """Compute (x - zero_point) * scale."""
    zero, factor = _number(zero_point), _number(scale)
    for source, target in blocks(x, out):
        np.subtract(source, zero, out=target, casting="unsafe", dtype=out.dtype)
        np.multiply(target, factor, out=target)


@_kernel("quantize_per_channel")
def quantize_per_channel(
    x: Array, scales: Array, zero_points: Array, axis: int, low: int, high: int, _dtype: DType, *, out: Array
) -> None:
    """Quantize with scales and zero_points (channels) along an axis of x."""
    scale, zero_point = along(scales, x.ndim, axis), along(zero_points, x.ndim, axis)
    values = np.rint(x * (1.0 / scale).astype(scales.dtype)) + zero_point
    np.copyto(out, values.clip(low, high), casting="unsafe")


@_kernel("dequantize_per_channel")
def dequantize_per_channel(
    x: Array,
    scales: Array,
    zero_points: Array | None,
    axis: int,
    low: int,
    high: int,
    *_dtypes: DType | None,
    out: Array,
) -> None:
    """Dequantize with scales and zero_points (channels) along an axis of x; None means zeros."""
    zeros = None if zero_points is None else along(zero_points, x.ndim, axis)
    _decode(x, zeros, along(scales, x.ndim, axis), out)


@_kernel("quantize_per_token")
def quantize_per_token(
    x: Array, scales: Array, zero_points: Array, low: int, high: int, _dtype: DType, *, out: Array
) -> None:
    """Quantize x (..., n) with scales, zero_points (..., 1)."""
    values = x * np.reciprocal(scales) + zero_points
    np.copyto(out, np.rint(values.astype(np.result_type(x, scales))).clip(low, high), casting="unsafe")


@_kernel("dequantize_per_token")
def dequantize_per_token(
    x: Array, scales: Array, zero_points: Array, low: int, high: int, *_dtypes: DType, out: Array
) -> None:
    """Dequantize x (..., n) with scales, zero_points (..., 1)."""
    np.copyto(out, (x - zero_points) * scales, casting="unsafe")


@_kernel("quantize_per_channel_group")
def quantize_per_channel_group(
    x: Array, scales: Array, zero_points: Array, low: int, high: int, _dtype: DType, group: int, *, out: Array
) -> None:
    """Quantize x (rows, n) with scales, zero_points (rows, n / group)."""
    values = np.rint(x.reshape(-1, group) * (1 / scales.reshape(-1, 1)) + zero_points.reshape(-1, 1))
    np.copyto(out, values.clip(low, high).reshape(out.shape), casting="unsafe")


@_kernel("dequantize_per_channel_group")
def dequantize_per_channel_group(
    x: Array, scales: Array, zero_points: Array | None, low: int, high: int, _dtype: DType, group: int, _to: DType, *,
    out: Array,
) -> None:  # fmt: skip
    """Dequantize x (rows, n) with scales, zero_points (rows, n / group)."""
    group = min(group, x.shape[-1])
    zeros = None if zero_points is None else zero_points.reshape(-1, 1)
    _decode(x.reshape(-1, group), zeros, scales.reshape(-1, 1), out.reshape(-1, group))


@TABLE.kernel("joined.round_per_tensor.default", dtypes=_DTYPES)
def round_per_tensor(x: Array, scale: Parameter, zero_point: Parameter, low: int, high: int, *, out: Array) -> None:
    """Quantize and dequantize: the multiple of scale nearest to x, from low - zero_point to high - zero_point of it."""
    inverse, least, greatest, factor = _grid(_number(scale), _number(zero_point), low, high)
    for source, target in blocks(x, out) if out.size > BLOCK else ((x, out),):
        np.multiply(source, inverse, out=target)
        np.rint(target, out=target)
        target.clip(least, greatest, out=target)
        _replace_nan(target, -_number(zero_point))
        np.add(target, _ZERO, out=target)  # integers have one zero
        np.multiply(target, factor, out=target)


_ZERO = np.zeros((), np.float32)


@lru_cache(maxsize=1024)
def _grid(scale: float, zero: int, low: int, high: int) -> tuple[Array, ...]:
    """Return 1 / scale, the bounds of its multiples, and scale, as 0-d arrays, which are the fastest operands."""
    return tuple(np.array(value, np.float32) for value in (1.0 / scale, low - zero, high - zero, scale))


@TABLE.kernel("joined.round_per_token.default", dtypes=_DTYPES)
def round_per_token(x: Array, scales: Array, zero_points: Array, low: int, high: int, *, out: Array) -> None:
    """Quantize and dequantize x (..., n) with scales, zero_points (..., 1)."""
    values = x * np.reciprocal(scales) + zero_points
    np.rint(values.astype(np.result_type(x, scales), copy=False), out=out, casting="unsafe")
    np.maximum(out, low, out=out)
    np.minimum(out, high, out=out)
    np.subtract(out, zero_points, out=out, casting="unsafe")
    np.multiply(out, scales, out=out, casting="unsafe")


@TABLE.kernel("joined.embedding.default", dtypes=_DTYPES)
def embedding(weight: Array, scales: Array, zero_points: Array | None, indices: Array, *, out: Array) -> None:
    """Dequantize rows of weight (rows, width) with scales, zero_points (rows), by indices (...) -> (..., width)."""
    rows = check_indices(indices, len(weight))
    zeros = None if zero_points is None else zero_points[rows][..., None]
    _decode(weight[rows], zeros, scales[rows][..., None], out)


@TABLE.kernel("joined.unpack.default", dtypes={DType.uint8, DType.int8})
def unpack(pairs: Array, *, out: Array) -> None:
    """Unpack 4-bit integers, two per byte, to int8 of any shape."""
    np.copyto(out, unpack_pairs(pairs).reshape(out.shape))


@_kernel("choose_qparams", "tensor")
def choose_qparams(x: Array, low: int, high: int, eps: float, _dtype: DType, *, out: tuple[Array, Array]) -> None:
    """Compute the scale and the zero point that map the range of x, with 0, to low to high.

    Here and below, the range of no elements is 0: torch raises an error, but a batch may be empty. With NaN or infinity
    the scale is not finite, so that all of the range decodes to NaN, as in torch.
    """
    least, greatest = x.min(initial=0), x.max(initial=0)
    scale = np.maximum((greatest - least) / np.float32(high - low), np.float32(eps))
    out[0][...] = scale
    out[1][...] = np.nan_to_num(np.clip(low - np.rint(least / scale), low, high))


@_kernel("choose_qparams_symmetric", "tensor")
def choose_qparams_symmetric(
    x: Array, low: int, high: int, eps: float, dtype: DType, *, out: tuple[Array, Array]
) -> None:
    """Compute the scale that maps the greatest size in x to half the range; the zero point is the middle."""
    greatest = np.maximum(-x.min(initial=0), x.max(initial=0))
    out[0][...] = np.maximum(greatest / np.float32((high - low) / 2), np.float32(eps))
    out[1].fill(128 if dtype is DType.uint8 else 0)


@_kernel("choose_qparams_per_token")
def choose_qparams_per_token(x: Array, dtype: DType, *, out: tuple[Array, Array]) -> None:
    """Compute symmetric 8-bit scales and zero points (..., 1) for x (..., n)."""
    np.copyto(out[0], np.abs(x).max(axis=-1, keepdims=True, initial=0).clip(1e-5) / 127, casting="same_kind")
    out[1].fill(0)


@_kernel("choose_qparams_per_token_asymmetric")
def choose_qparams_per_token_asymmetric(x: Array, dtype: DType, *, out: tuple[Array, Array]) -> None:
    """Compute scales and zero points (..., 1) for x (..., n) and integers from -128 to 127."""
    least = x.min(axis=-1, keepdims=True, initial=0)
    greatest = x.max(axis=-1, keepdims=True, initial=0)
    scale = ((greatest - least) / 255).clip(_EPSILON)
    low, high = least / scale, greatest / scale
    zero_point = np.where((-128 + low) + (127 + high) > 0, -128 - low, 127 - high)
    np.copyto(out[0], scale)
    np.copyto(out[1], np.rint(zero_point.clip(-128, 127)), casting="unsafe")
