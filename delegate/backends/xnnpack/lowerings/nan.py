"""NaN where XNNPACK's operators lose it: its maxima and minima, pools, exp and log give numbers for NaN.

With option `nan: exact` what they give is added to something that is 0 for numbers and infinities, and NaN for NaN:
a clamp to -1 and 1, which carries NaN over, times 0. With `nan: fast` nothing is added. Sine and cosine of numbers that
are too large for XNNPACK are NaN too, which eager has right: better no number than a wrong one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from delegate.backends.xnnpack.builder import RegionBuilder
from delegate.backends.xnnpack.layout import NHWC
from delegate.backends.xnnpack.operand import Operand


def kept(builder: RegionBuilder, y: Operand, x: Operand) -> Operand:
    """y, of the shape and order of x, with NaN where x has NaN."""
    if not builder.keeps_nan():
        return y
    return _added(builder, y, _zeros(builder, _clamped(builder, x)))


def kept_log(builder: RegionBuilder, y: Operand, x: Operand) -> Operand:
    """y, the logarithm of x, with infinity and NaN where x has them: without AVX-512 it is 88 or so there."""
    if not builder.keeps_nan():
        return y
    small = builder.emit("MUL", [x, builder.scalar(1.2e-38)], x.shape, x.order, "MulOptions")  # at most 4.1
    below = builder.emit("SUB", [small, builder.scalar(5.0)], x.shape, x.order, "SubOptions")
    builder.nan_kept += 1
    return _added(builder, y, builder.emit("RELU", [below], x.shape, x.order))


def without_large_angles(builder: RegionBuilder, x: Operand) -> Operand:
    """x with infinity for 2^27 and more, of which XNNPACK's sine and cosine are NaN, not numbers in the hundreds."""
    if not builder.keeps_nan():
        return x
    builder.nan_kept += 1
    large = builder.emit("MUL", [x, builder.scalar(2.0**101)], x.shape, x.order, "MulOptions")
    return builder.emit("MUL", [large, builder.scalar(2.0**-101)], x.shape, x.order, "MulOptions")


def kept_along(builder: RegionBuilder, y: Operand, x: Operand, dims: Sequence[int], keepdim: bool) -> Operand:
    """y, a reduction of x along dimensions, with NaN where x has NaN along them."""
    if not dims or not builder.keeps_nan():
        return y
    axes = builder.numbers(sorted(x.axis(d) for d in dims))
    clamped = _clamped(builder, x)
    total = builder.emit("SUM", [clamped, axes], y.shape, y.order, "ReducerOptions", keepDims=keepdim)
    return _added(builder, y, _zeros(builder, total))


def kept_of_operand(builder: RegionBuilder, y: Operand, x: Operand) -> Operand:
    """y, a maximum or minimum of x, which broadcasts to it, and of another: x86 keeps NaN of one of them alone."""
    if not builder.keeps_nan():
        return y
    zeros = _zeros(builder, _clamped(builder, x))
    return builder.emit("ADD", [y, zeros], y.shape, y.order, "AddOptions")


def _clamped(builder: RegionBuilder, x: Operand) -> Operand:
    return builder.emit("RELU_N1_TO_1", [x], x.shape, x.order)


def _zeros(builder: RegionBuilder, x: Operand) -> Operand:
    builder.nan_kept += 1
    return builder.emit("MUL", [x, builder.scalar(0.0)], x.shape, x.order, "MulOptions")


def _added(builder: RegionBuilder, y: Operand, zeros: Operand) -> Operand:
    return builder.emit("ADD", [y, zeros], y.shape, y.order, "AddOptions")


def ones(channels: int, kernel: Sequence[int], value: float = 1.0) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """A depthwise kernel [1, H, W, C] of one value."""
    return np.full((1, *kernel, channels), value, np.float32)


def clamped_windows(builder: RegionBuilder, x: Operand) -> Operand:
    """What sums over windows to 0, once it is multiplied with 0, or to NaN."""
    return builder.reorder(_clamped(builder, x), NHWC)


def kept_of_windows(builder: RegionBuilder, y: Operand, sums: Operand) -> Operand:
    """y, a pool, with NaN where the sums of its windows of clamped elements are NaN."""
    return _added(builder, y, _zeros(builder, sums))
