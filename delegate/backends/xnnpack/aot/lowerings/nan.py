"""Propagation of NaN. XNNPACK's maxima, minima, pools, exp and log return numbers for NaN.

With option `nan: exact`, their result is added to a term that is 0 for numbers and infinities, and NaN for NaN. The
term is a clamp to -1 and 1, which propagates NaN, times 0. With `nan: fast`, nothing is added. Sine and cosine of
numbers that are too large for XNNPACK are NaN as well, instead of a wrong number.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from delegate.backends.xnnpack.aot.builder import RegionBuilder
from delegate.backends.xnnpack.aot.layout import NHWC
from delegate.backends.xnnpack.aot.operand import Operand


def propagate_nan(builder: RegionBuilder, y: Operand, x: Operand) -> Operand:
    """Return y, which has the shape and order of x, with NaN where x has NaN."""
    if not builder.keeps_nan():
        return y
    return _add(builder, y, _zeros_or_nan(builder, _clamp(builder, x)))


def propagate_nan_of_log(builder: RegionBuilder, y: Operand, x: Operand) -> Operand:
    """Return y, the logarithm of x, with infinity and NaN from x. Without AVX-512, XNNPACK's result is about 88."""
    if not builder.keeps_nan():
        return y
    small = builder.emit("MUL", [x, builder.scalar(1.2e-38)], x.shape, x.order, "MulOptions")  # at most 4.1
    below = builder.emit("SUB", [small, builder.scalar(5.0)], x.shape, x.order, "SubOptions")
    builder.nan_guards += 1
    return _add(builder, y, builder.emit("RELU", [below], x.shape, x.order))


def without_large_angles(builder: RegionBuilder, x: Operand) -> Operand:
    """Return x with infinity instead of 2^27 and more.

    XNNPACK's sine and cosine of infinity are NaN. Those of large numbers are numbers in the hundreds.
    """
    if not builder.keeps_nan():
        return x
    builder.nan_guards += 1
    large = builder.emit("MUL", [x, builder.scalar(2.0**101)], x.shape, x.order, "MulOptions")
    return builder.emit("MUL", [large, builder.scalar(2.0**-101)], x.shape, x.order, "MulOptions")


def propagate_nan_along(builder: RegionBuilder, y: Operand, x: Operand, dims: Sequence[int], keepdim: bool) -> Operand:
    """Return y, a reduction of x along dimensions, with NaN where x has NaN along them."""
    if not dims or not builder.keeps_nan():
        return y
    axes = builder.numbers(sorted(x.axis(d) for d in dims))
    clamped = _clamp(builder, x)
    total = builder.emit("SUM", [clamped, axes], y.shape, y.order, "ReducerOptions", keepDims=keepdim)
    return _add(builder, y, _zeros_or_nan(builder, total))


def propagate_nan_of_operand(builder: RegionBuilder, y: Operand, x: Operand) -> Operand:
    """Return y, a maximum or minimum of x and another operand, with NaN where x has NaN.

    x broadcasts to y. On x86, XNNPACK propagates NaN of one operand only.
    """
    if not builder.keeps_nan():
        return y
    zeros = _zeros_or_nan(builder, _clamp(builder, x))
    return builder.emit("ADD", [y, zeros], y.shape, y.order, "AddOptions")


def _clamp(builder: RegionBuilder, x: Operand) -> Operand:
    return builder.emit("RELU_N1_TO_1", [x], x.shape, x.order)


def _zeros_or_nan(builder: RegionBuilder, x: Operand) -> Operand:
    builder.nan_guards += 1
    return builder.emit("MUL", [x, builder.scalar(0.0)], x.shape, x.order, "MulOptions")


def _add(builder: RegionBuilder, y: Operand, zeros: Operand) -> Operand:
    return builder.emit("ADD", [y, zeros], y.shape, y.order, "AddOptions")


def ones(channels: int, kernel: Sequence[int], value: float = 1.0) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Return a depthwise kernel [1, H, W, C] of one value."""
    return np.full((1, *kernel, channels), value, np.float32)


def clamped_windows(builder: RegionBuilder, x: Operand) -> Operand:
    """Return x clamped to -1 and 1 in NHWC: its sums over windows are finite, or NaN if a window has NaN."""
    return builder.reorder(_clamp(builder, x), NHWC)


def propagate_nan_of_windows(builder: RegionBuilder, y: Operand, sums: Operand) -> Operand:
    """Return y, a pool, with NaN where the sum of the clamped elements of a window is NaN."""
    return _add(builder, y, _zeros_or_nan(builder, sums))
