"""Activation functions, computed in place in the result, block by block, in few passes."""

from __future__ import annotations

import math

import numpy as np

from delegate.kernels.erf import erf
from delegate.kernels.half_precision import Array, from_bfloat16, to_bfloat16
from delegate.kernels.operands import WIDE, WIDE_COMPLEX, axis_of, blocks, by_blocks, level, put
from delegate.kernels.table import BOOL, COMPLEX, FLOAT, INT, TABLE, UNSIGNED
from delegate.program.dtypes import DType

_FLOATS = WIDE | INT | BOOL  # results of integers and bools are floats


@TABLE.kernel("aten.relu.default", in_place=True)
@by_blocks
def relu(x: Array, *, out: Array) -> None:
    np.maximum(x, level(0, out), out=out)


@TABLE.kernel("aten.hardtanh.default", in_place=True)
@by_blocks
def hardtanh(x: Array, low: float, high: float, *, out: Array) -> None:
    np.minimum(np.maximum(x, level(low, out), out=out), level(high, out), out=out)


@TABLE.kernel("aten.sigmoid.default", dtypes=_FLOATS | COMPLEX | UNSIGNED)
@by_blocks
def sigmoid(x: Array, *, out: Array) -> None:
    """Compute 1 / (1 + exp(-x))."""
    np.negative(x, out=out)
    np.exp(out, out=out)
    np.add(out, 1, out=out)
    np.reciprocal(out, out=out)


@TABLE.kernel("aten.silu.default", dtypes=WIDE | COMPLEX, whole=True)
@by_blocks
def silu(x: Array, *, out: Array) -> None:
    """Compute x / (1 + exp(-x))."""
    np.negative(x, out=out)
    np.exp(out, out=out)
    np.add(out, 1, out=out)
    np.divide(x, out, out=out)


@TABLE.kernel("aten.gelu.default", dtypes=WIDE)
def gelu(x: Array, approximate: str, *, out: Array) -> None:
    (_gelu_tanh if approximate == "tanh" else _gelu_erf)(x, out=out)


# log(1 / P - 1) / x where P = (1 + erf(x / sqrt(2))) / 2, as a + b * s + c / (s + d + e / (s + f)) with s = x**2:
# fitted to 3e-7 over |x| <= 6; beyond, it only grows.
_A, _B, _C, _D, _E, _F = -2.31281593, -0.0370993509, 3.79292026, -38.1556904, 2558.93165, 58.9000352


def _gelu_erf(x: Array, *, out: Array) -> None:
    """Compute x / 2 * (1 + erf(x / sqrt(2)))."""
    (_gelu_single if out.dtype == np.float32 else _gelu_double)(x, out=out)


@by_blocks
def _gelu_single(x: Array, *, out: Array) -> None:
    """Compute x * P as x / (1 + exp(log(1 / P - 1)))."""
    square = x * x
    np.add(square, _F, out=out)
    np.divide(_E, out, out=out)
    np.add(out, square, out=out)
    np.add(out, _D, out=out)
    np.divide(_C, out, out=out)
    np.multiply(square, _B, out=square)
    np.add(out, square, out=out)
    np.add(out, _A, out=out)
    np.multiply(out, x, out=out)
    np.exp(out, out=out)
    np.add(out, 1, out=out)
    np.divide(x, out, out=out)


@by_blocks
def _gelu_double(x: Array, *, out: Array) -> None:
    half = x * 0.5
    erf(x * math.sqrt(0.5), out=out)
    np.add(out, 1, out=out)
    np.multiply(out, half, out=out)


@by_blocks
def _gelu_tanh(x: Array, *, out: Array) -> None:
    """Compute x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))."""
    np.square(x, out=out)
    np.multiply(out, 0.044715 * math.sqrt(2 / math.pi), out=out)
    np.add(out, math.sqrt(2 / math.pi), out=out)
    np.multiply(out, x, out=out)
    np.tanh(out, out=out)
    np.add(out, 1, out=out)
    np.multiply(out, 0.5, out=out)  # before x, which may be more than half of the largest number
    np.multiply(out, x, out=out)


@TABLE.kernel("aten.hardsigmoid.default", dtypes=WIDE, whole=True)
@by_blocks
def hardsigmoid(x: Array, *, out: Array) -> None:
    """Compute min(max(x + 3, 0), 6) / 6."""
    np.add(x, 3, out=out)
    hardtanh(out, 0, 6, out=out)
    np.divide(out, 6, out=out)


@TABLE.kernel("aten.hardswish.default", dtypes=WIDE, whole=True)
@by_blocks
def hardswish(x: Array, *, out: Array) -> None:
    """Compute x * min(max(x + 3, 0), 6) / 6."""
    np.add(x, 3, out=out)
    hardtanh(out, 0, 6, out=out)
    np.multiply(out, x, out=out)
    np.divide(out, 6, out=out)


@TABLE.kernel("aten.softplus.default", dtypes=WIDE, whole=True)
@by_blocks
def softplus(x: Array, beta: float, threshold: float, *, out: Array) -> None:
    """Compute log(1 + exp(beta * x)) / beta, or x if beta * x is above the threshold."""
    np.multiply(x, beta, out=out)
    linear = out > threshold
    np.exp(out, out=out)
    np.log1p(out, out=out)
    np.divide(out, beta, out=out)
    np.copyto(out, x, where=linear)


@TABLE.kernel("aten.mish.default", dtypes=WIDE, whole=True)
@by_blocks
def mish(x: Array, *, out: Array) -> None:
    """Compute x * tanh(log(1 + exp(x))) as x * n / (n + 2) with n = exp(x) * (exp(x) + 2); above 40 it is x."""
    np.minimum(x, level(40, out), out=out)
    np.exp(out, out=out)
    np.multiply(out, out + 2, out=out)
    np.divide(out, out + 2, out=out)
    np.multiply(out, x, out=out)


@TABLE.kernel("aten.log_sigmoid.default", dtypes=WIDE, whole=True)
@by_blocks
def log_sigmoid(x: Array, *, out: Array) -> None:
    """Compute min(x, 0) - log(1 + exp(-|x|))."""
    np.abs(x, out=out)
    np.negative(out, out=out)
    np.exp(out, out=out)
    np.log1p(out, out=out)
    np.subtract(np.minimum(x, level(0, out)), out, out=out)


@TABLE.kernel("aten.elu.default", dtypes=WIDE)
@by_blocks
def elu(x: Array, alpha: float, scale: float, input_scale: float, *, out: Array) -> None:
    """Compute scale * alpha * (exp(input_scale * x) - 1) for negative x, else scale * x, as the sum of both parts."""
    with np.errstate(over="ignore"):
        slope, factor, inner = (np.asarray(f, out.dtype)[()] for f in (scale, alpha * scale, input_scale))
    if np.signbit(factor) or not np.isfinite([slope, factor, inner]).all():  # what the zero of the other part shows
        _elu_by_mask(x, factor, slope, inner, out)
        return
    positive = _positive(x, out)
    np.minimum(level(0, out), x, out=out)
    np.multiply(out, inner, out=out)
    np.expm1(out, out=out)
    np.multiply(out, factor, out=out)
    np.add(out, positive if scale == 1 else positive * slope, out=out)


def _elu_by_mask(x: Array, factor: Array, slope: Array, inner: Array, out: Array) -> None:
    below = x < 0
    negative = np.expm1(x[below] * inner) * factor
    np.multiply(x, slope, out=out)
    out[below] = negative


def _positive(x: Array, out: Array) -> Array:
    """Return the larger of x and -0.0; of zeros the second one, as processors do, so that x keeps its sign."""
    return np.maximum(level(-0.0, out), x)


@TABLE.kernel("aten.selu.default", dtypes=WIDE, whole=True)
def selu(x: Array, *, out: Array) -> None:
    elu(x, 1.6732632423543772, 1.0507009873554805, 1.0, out=out)


@TABLE.kernel("aten.celu.default", dtypes=WIDE, whole=True)
def celu(x: Array, alpha: float, *, out: Array) -> None:
    elu(x, alpha, 1.0, 1.0 / alpha, out=out)


@TABLE.kernel("aten.leaky_relu.default", dtypes=WIDE)
@by_blocks
def leaky_relu(x: Array, negative_slope: float, *, out: Array) -> None:
    """Compute the larger of x and its multiple, or the smaller if the slope is steeper than 1."""
    if negative_slope == 0 or not math.isfinite(negative_slope):
        _choose_slope(x, negative_slope, out)
        return
    np.multiply(x, negative_slope, out=out)
    (np.maximum if negative_slope <= 1 else np.minimum)(x, out, out=out)


def _add_slopes(x: Array, slope: float | Array, out: Array) -> None:
    """Add the positive part of x and the slope times its negative part.

    A masked copy takes several times as long, and an infinite or NaN slope times the zero of the other part would be
    NaN, and a negative one -0.0.
    """
    if np.signbit(slope).any() or not np.isfinite(slope).all():
        _choose_slope(x, slope, out)
        return
    positive = _positive(x, out)
    np.minimum(level(0, out), x, out=out)
    np.multiply(out, slope, out=out)
    np.add(out, positive, out=out)


def _choose_slope(x: Array, slope: float | Array, out: Array) -> None:
    np.multiply(x, slope, out=out)
    np.copyto(out, x, where=x > 0)


@TABLE.kernel("aten.prelu.default", "aten._prelu_kernel.default", dtypes=WIDE, whole=True)
def prelu(x: Array, weight: Array, *, out: Array) -> None:
    """Compute `leaky_relu` with a weight that broadcasts or is a vector over dimension 1."""
    if weight.size == 1:
        leaky_relu(x, weight.item(), out=out)
        return
    if weight.ndim == 1 and x.ndim > 1:
        weight = weight.reshape((-1,) + (1,) * (x.ndim - 2))
    _add_slopes(x, weight, out)


def threshold(x: Array, level: float, value: float, *, out: Array) -> None:
    """Copy x where it is above the level or NaN, else write the value."""
    for source, target in blocks(x, out):
        np.copyto(target, source)
        put(target, value, source <= level)


@TABLE.kernel("aten.hardshrink.default", dtypes=FLOAT, whole=True)
def hardshrink(x: Array, lambd: float, *, out: Array) -> None:
    for source, target in blocks(x, out):
        np.copyto(target, source)
        put(target, 0, np.abs(source) <= source.dtype.type(lambd))


@TABLE.kernel("aten.hardshrink.default", dtypes={DType.bfloat16}, whole=True)
def hardshrink_bfloat16(bits: Array, lambd: float, *, out: Array) -> None:
    """Compute `hardshrink` with the limit rounded to bfloat16, as torch does."""
    limit = from_bfloat16(to_bfloat16(np.array(lambd, np.float32)))
    np.copyto(out, bits)
    put(out, 0, np.abs(from_bfloat16(bits)) <= limit)


@TABLE.kernel("aten.softshrink.default", dtypes=WIDE, whole=True)
@by_blocks
def softshrink(x: Array, lambd: float, *, out: Array) -> None:
    """Subtract from x its part within [-lambd, lambd]."""
    np.clip(x, -lambd, lambd, out=out)
    np.subtract(x, out, out=out)


@TABLE.kernel("aten.glu.default", dtypes=WIDE, whole=True)
def glu(x: Array, dim: int, *, out: Array) -> None:
    """Multiply the first half by the sigmoid of the second half."""
    first, second = np.split(x, 2, axis=axis_of(x, dim))
    sigmoid(second, out=out)
    np.multiply(out, first, out=out)


@TABLE.kernel("aten.native_dropout.default", dtypes=WIDE_COMPLEX | BOOL, random=True)
def native_dropout(x: Array, p: float, train: bool | None, *, out: tuple[Array, Array]) -> None:
    """Zero elements with probability p, scale others by 1 / (1 - p), write their mask; copy x in inference."""
    result, mask = out
    if train is False or p == 0:
        np.copyto(result, x)
        mask.fill(True)
        return
    np.greater_equal(TABLE.generator.random(x.shape), p, out=mask)
    np.multiply(x, mask, out=result)
    np.multiply(result, 0.0 if p == 1 else 1 / (1 - p), out=result)
