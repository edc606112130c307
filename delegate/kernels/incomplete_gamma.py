"""The regularized incomplete gamma functions, computed in float64.

P(a, x) is a power series for x < a + 1; elsewhere Q(a, x) = 1 - P(a, x) is a continued fraction (Numerical Recipes,
6.2). Both take about sqrt(a) steps, so large a use Temme's uniform expansion (SIAM J. Math. Anal. 10, 1979).
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from delegate.kernels.erf import erfc
from delegate.kernels.half_precision import Array
from delegate.kernels.operands import WIDE
from delegate.kernels.polynomial import polynomial
from delegate.kernels.portable_table import TABLE
from delegate.kernels.special import lgamma, stirling

_LARGE = 1e5  # from which the first two terms of Temme's expansion are exact to 1e-13
_STIRLING_FROM = 10.0
_STEPS = 5000  # enough for all a below _LARGE
_PRECISE = 1e-16
_SMALLEST = 1e-300  # replaces 0 in a denominator of the continued fraction
_C0 = (-1 / 3, 1 / 12, -2 / 135, 1 / 864, 1 / 2835, -139 / 777600)
_C1 = (-1 / 540, -1 / 288, 1 / 378)


def incomplete_gamma(a: Array, x: Array) -> tuple[Array, Array]:
    """Return P(a, x) and Q(a, x) of float64 arrays of one shape; NaN if one is negative, or both are 0 or infinite."""
    lower, upper = np.full(x.shape, np.nan), np.full(x.shape, np.nan)
    inner = (a > 0) & (x > 0) & np.isfinite(a) & np.isfinite(x)
    for region, method in (
        (inner & (a < _LARGE) & (x < a + 1), _series),
        (inner & (a < _LARGE) & (x >= a + 1), _fraction),
        (inner & (a >= _LARGE), _uniform),
    ):
        if region.any():
            lower[region], upper[region] = method(a[region], x[region])
    allowed = ~((a < 0) | (x < 0))  # torch has these limits also if the other argument is NaN
    none = allowed & (((x == 0) & (a != 0)) | (np.isinf(a) & ~np.isinf(x)))
    all_ = allowed & (((a == 0) & (x > 0)) | (np.isinf(x) & ~np.isinf(a)))
    for region, share in ((none, 0.0), (all_, 1.0)):
        lower[region], upper[region] = share, 1 - share
    return lower, upper


def _density(a: Array, x: Array) -> Array:
    """Compute x ** a * exp(-x) / gamma(a); for large a without differences of large numbers."""
    large = np.maximum(a, _STIRLING_FROM)
    excess = (x - large) / large
    exponent = large * (np.log1p(excess) - excess) - stirling(large)
    by_stirling = np.sqrt(large / (2 * math.pi)) * np.exp(exponent)
    return np.where(a < _STIRLING_FROM, np.exp(a * np.log(x) - x - lgamma(a)), by_stirling)


def _series(a: Array, x: Array) -> tuple[Array, Array]:
    term = total = np.ones_like(x)
    for k in range(1, _STEPS):
        term = term * x / (a + k)
        total = total + term
        if (term <= _PRECISE * total).all():
            break
    lower = np.minimum(total * _density(a, x) / a, 1)
    return lower, 1 - lower


def _fraction(a: Array, x: Array) -> tuple[Array, Array]:
    """Compute the continued fraction by Lentz's method."""
    under = x + 1 - a
    above, below = np.full_like(x, 1 / _SMALLEST), 1 / under
    total = below
    for k in range(1, _STEPS):
        numerator = -k * (k - a)
        under = under + 2
        below, above = _nonzero(numerator * below + under), _nonzero(under + numerator / above)
        below = 1 / below
        total = total * above * below
        if (np.abs(above * below - 1) <= _PRECISE).all():
            break
    upper = np.minimum(total * _density(a, x), 1)
    return 1 - upper, upper


def _nonzero(x: Array) -> Array:
    return np.where(np.abs(x) < _SMALLEST, _SMALLEST, x)


def _uniform(a: Array, x: Array) -> tuple[Array, Array]:
    """Compute Temme's expansion: half of erfc at a distance that grows with x - a, and a small correction."""
    excess = (x - a) / a
    distance = np.copysign(np.sqrt(np.maximum(2 * (excess - np.log1p(excess)), 0)), excess)
    bounded = np.clip(distance, -1, 1)  # beyond, the correction is 0
    correction = np.exp(-a * distance * distance / 2) / np.sqrt(2 * math.pi * a)
    correction = correction * (polynomial(_C0, bounded) + polynomial(_C1, bounded) / a)
    tails = []
    for sign in (-1, 1):
        tail = np.empty_like(x)
        erfc(sign * distance * np.sqrt(a / 2), out=tail)
        tails.append(tail / 2 + sign * correction)
    return tails[0], tails[1]


def _incomplete(which: int, a: Array, x: Array, *, out: Array) -> None:
    wide = np.broadcast_arrays(np.asarray(a, np.float64), np.asarray(x, np.float64))
    np.copyto(out, incomplete_gamma(*wide)[which], casting="same_kind")


for _which, _name in enumerate(("igamma", "igammac")):
    TABLE.kernel(f"aten.{_name}.default", dtypes=WIDE)(partial(_incomplete, _which))
