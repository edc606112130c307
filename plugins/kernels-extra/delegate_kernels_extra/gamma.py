"""Gamma's logarithm and its derivatives, Hurwitz' zeta, incomplete gamma functions and the normal quantile, in float64.

Incomplete gamma functions: P(a, x) is a power series for x < a + 1. Elsewhere Q(a, x) = 1 - P(a, x) is a continued
fraction (Numerical Recipes, 6.2). Both take about sqrt(a) steps, so large a use Temme's uniform expansion (SIAM J.
Math. Anal. 10, 1979).
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from delegate.kernels.erf import erfc, in_float64, polynomial, upper_quantile
from delegate.kernels.half_precision import Array
from delegate.kernels.operands import WIDE, Operand, by_blocks
from delegate.kernels.table import BOOL, INT
from delegate_kernels_extra.table import TABLE

_DTYPES = WIDE | INT | BOOL
_SHIFT = 10  # asymptotic series start here; smaller arguments are moved up by recurrence
# The series in 1 / x**2 of Stirling's formula and of its derivative: Bernoulli numbers over 2k (2k - 1) and over 2k.
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360)
_DIGAMMA = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
# Bernoulli numbers over (2k)! for the Euler-Maclaurin formula.
_EULER_MACLAURIN = (1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000)
_PRODUCTS = 8  # powers below it are products


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


for _name, _function in (("lgamma", lgamma), ("digamma", digamma)):
    TABLE.kernel(f"aten.{_name}.default", f"prims.{_name}.default", dtypes=_DTYPES)(
        by_blocks(partial(in_float64, _function))
    )


def _inverse_power(x: Array, s: Array) -> Array:
    """Compute x ** -s; for a single small whole s by products, which are ten times as fast."""
    if s.ndim or s not in range(1, _PRODUCTS):
        return np.asarray(x**-s)
    return np.asarray(1 / math.prod([x] * int(s)))


def _zeta_positive(s: Array, q: Array) -> Array:
    """Compute Hurwitz' zeta for s > 1 and q > 0."""
    head: Array = np.asarray(sum(_inverse_power(q + k, s) for k in range(_SHIFT)))
    far = q + _SHIFT
    total = head + far ** (1 - s) / (s - 1) + 0.5 * far**-s
    term = s * far ** (-s - 1)
    for j, coefficient in enumerate(_EULER_MACLAURIN):
        total = total + coefficient * term
        term = term * (s + 2 * j + 1) * (s + 2 * j + 2) / (far * far)
    return np.asarray(total)


def zeta(s: Array, q: Array) -> Array:
    """Compute Hurwitz' zeta, the sum of (q + k) ** -s over k >= 0; for negative q only for whole s."""
    steps = np.where(q <= 0, np.floor(q), 0)
    rest = q - steps  # in [0, 1) where q is not positive
    result = _zeta_positive(s, rest)
    if np.any(q < 0):
        parity = np.where(s % 2 == 0, 1, -1)
        crossed = parity * (_zeta_positive(s, 1 - rest) - _zeta_positive(s, 1 - rest - steps))
        result = np.where(q < 0, np.where(s == np.floor(s), result + crossed, np.nan), result)
    result = np.where((q <= 0) & (rest == 0), np.inf, result)
    return np.asarray(np.where(s == 1, np.inf, np.where(s < 1, np.nan, result)))


@TABLE.kernel(
    "aten.special_zeta.default",
    "aten.special_zeta.other_scalar",
    "aten.special_zeta.self_scalar",
    "prims.zeta.default",
    dtypes=_DTYPES,
)
def special_zeta(s: Operand, q: Operand, *, out: Array) -> None:
    np.copyto(out, zeta(np.asarray(s, np.float64), np.asarray(q, np.float64)), casting="same_kind")


@TABLE.kernel("aten.polygamma.default", "aten.special_polygamma.default", dtypes=_DTYPES)
def polygamma(n: int, x: Array, *, out: Array) -> None:
    """Compute the n-th derivative of digamma."""
    wide = np.asarray(x, np.float64)
    if n == 0:
        result = digamma(wide)
    else:
        result = (-1) ** (n + 1) * math.exp(math.lgamma(n + 1)) * zeta(np.asarray(n + 1.0), wide)
    np.copyto(out, result, casting="same_kind")


def ndtri(p: Array) -> Array:
    """Compute the quantile of the standard normal distribution in float64; infinite at 0 and 1, NaN beyond."""
    rest = 2 * np.minimum(p, 1 - p)
    result = upper_quantile(1 - rest, rest)
    return np.asarray(np.where((p >= 0) & (p <= 1), np.where(p < 0.5, -result, result), np.nan))


for _op in ("aten.special_ndtri.default", "prims.ndtri.default"):
    TABLE.kernel(_op, dtypes=_DTYPES)(by_blocks(partial(in_float64, ndtri)))


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
