"""Special functions that models use: the logarithm of gamma and its derivative, the inverse of erf, and scaled erfc.

All are computed in float64, for every dtype of the result. The kernel library delegate-kernels-extra has the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from delegate.kernels.erf import erfcx, polynomial, upper_quantile
from delegate.kernels.half_precision import Array
from delegate.kernels.operands import WIDE, by_blocks
from delegate.kernels.table import BOOL, INT, TABLE

_SHIFT = 10  # asymptotic series start here; smaller arguments are moved up by recurrence
# The series in 1 / x**2 of Stirling's formula and of its derivative: Bernoulli numbers over 2k (2k - 1) and over 2k.
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360)
_DIGAMMA = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)


def in_float64(function: Callable[[Array], Array], x: Array, *, out: Array) -> None:
    """Write a function of the array in float64 to `out`."""
    np.copyto(out, function(np.asarray(x, np.float64)), casting="same_kind")


def _sin_pi(x: Array) -> Array:
    """Compute sin(pi x) up to the sign, exactly 0 at whole numbers."""
    return np.asarray(np.sin(np.pi * (x - np.rint(x))))


def stirling(x: Array) -> Array:
    """Compute the logarithm of gamma(x) minus Stirling's formula, for x of 10 or more."""
    return np.asarray(polynomial(_STIRLING, 1 / (x * x)) / x)


def lgamma(x: Array) -> Array:
    """Compute the logarithm of |gamma(x)| in float64; infinite at whole numbers up to 0."""
    positive = np.where(x < 0.5, 1 - x, x)
    shifted = np.where(positive < _SHIFT, positive + _SHIFT, positive)
    small = np.minimum(positive, _SHIFT)
    rising = small.copy()
    for k in range(1, _SHIFT):
        rising *= small + k
    rising = np.where(positive < _SHIFT, rising, 1)
    result = (
        (shifted - 0.5) * np.log(shifted) - shifted + 0.5 * math.log(2 * math.pi) + stirling(shifted) - np.log(rising)
    )
    result = np.where(x < 0.5, np.log(np.pi / np.abs(_sin_pi(x))) - result, result)
    return np.asarray(np.where(np.isinf(x), np.inf, result))


def digamma(x: Array) -> Array:
    """Compute the derivative of lgamma in float64; NaN at negative whole numbers, infinite at 0."""
    positive = np.where(x < 0.5, 1 - x, x)
    shifted = np.where(positive < _SHIFT, positive + _SHIFT, positive)
    result = np.log(shifted) - 0.5 / shifted - polynomial(_DIGAMMA, 1 / (shifted * shifted)) / (shifted * shifted)
    fallen: Array = np.asarray(sum(1 / (positive + k) for k in range(_SHIFT)))
    result = np.where(positive < _SHIFT, result - fallen, result)
    fraction = x - np.rint(x)
    result = np.where(x < 0.5, result - np.pi / np.tan(np.pi * fraction), result)
    result = np.where((x < 0) & (fraction == 0), np.nan, result)
    return np.asarray(np.where(x == 0, -np.copysign(np.inf, x), result))


def erfinv(x: Array) -> Array:
    """Compute the inverse of erf in float64; infinite at -1 and 1, NaN beyond."""
    size = np.abs(x)
    return np.asarray(np.copysign(np.where(size <= 1, upper_quantile(size, 1 - size), np.nan) / math.sqrt(2), x))


_UNARY: dict[str, Callable[[Array], Array]] = {
    "lgamma": lgamma,
    "digamma": digamma,
    "erfinv": erfinv,
    "special_erfcx": erfcx,
}
for _name, _function in _UNARY.items():
    TABLE.kernel(f"aten.{_name}.default", dtypes=WIDE | INT | BOOL)(by_blocks(partial(in_float64, _function)))
