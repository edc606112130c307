"""Special functions: the gamma family, Bessel functions of imaginary argument, the inverse of erf.

All are computed in float64, for every dtype of the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from delegate.kernels.erf import erfcx
from delegate.kernels.half_precision import Array
from delegate.kernels.operands import WIDE, Operand, blocked
from delegate.kernels.polynomial import polynomial
from delegate.kernels.portable_table import TABLE
from delegate.kernels.quantile import upper_quantile
from delegate.kernels.table import BOOL, INT

_DTYPES = WIDE | INT | BOOL
_SHIFT = 10  # asymptotic series start here; smaller arguments are moved up by recurrence
# The series in 1 / x**2 of Stirling's formula and of its derivative: Bernoulli numbers over 2k (2k - 1) and over 2k.
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360)
_DIGAMMA = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
# Bernoulli numbers over (2k)! for the Euler-Maclaurin formula.
_EULER_MACLAURIN = (1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000)
_PRODUCTS = 8  # powers below it are products
_BESSEL_NODES = 32  # of the trapezoidal rule, which is exact to the last digit below _BESSEL_FAR
_BESSEL_FAR = 20.0


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
    "aten.special_zeta.default", "aten.special_zeta.other_scalar", "aten.special_zeta.self_scalar", dtypes=_DTYPES
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


def erfinv(x: Array) -> Array:
    """Compute the inverse of erf in float64; infinite at -1 and 1, NaN beyond."""
    size = np.abs(x)
    return np.asarray(np.copysign(np.where(size <= 1, upper_quantile(size, 1 - size), np.nan) / math.sqrt(2), x))


def ndtri(p: Array) -> Array:
    """Compute the quantile of the standard normal distribution in float64; infinite at 0 and 1, NaN beyond."""
    rest = 2 * np.minimum(p, 1 - p)
    result = upper_quantile(1 - rest, rest)
    return np.asarray(np.where((p >= 0) & (p <= 1), np.where(p < 0.5, -result, result), np.nan))


def bessel(order: int, scaled: bool, x: Array) -> Array:
    """Compute the modified Bessel function of the first kind of order 0 or 1 in float64.

    With `scaled` it is multiplied by exp(-|x|). Near 0 it is the mean of exp(|x| (cos t - 1)) cos(order t) over a
    period, farther out its asymptotic series.
    """
    size = np.abs(x)
    small, total = np.minimum(size, _BESSEL_FAR), np.zeros_like(size)
    for k in range(_BESSEL_NODES + 1):
        cosine = math.cos(math.pi * k / _BESSEL_NODES)
        weight = (0.5 if k in (0, _BESSEL_NODES) else 1.0) * (cosine if order else 1.0)
        total = total + weight * np.exp(small * (cosine - 1))
    large, term, series = np.maximum(size, _BESSEL_FAR), np.ones_like(size), np.ones_like(size)
    for k in range(1, 21):
        term = term * ((2 * k - 1) ** 2 - 4 * order * order) / (8 * k * large)
        series = series + term
    result = np.where(size <= _BESSEL_FAR, total / _BESSEL_NODES, series / np.sqrt(2 * np.pi * large))
    result = result if scaled else result * np.exp(size)
    return np.asarray(np.copysign(result, x) if order else result)


def spherical_bessel_j0(x: Array) -> Array:
    """Compute sin(x) / x in float64; 1 at 0 and 0 at infinity."""
    safe = np.where((x == 0) | np.isinf(x), 1, x)
    return np.asarray(np.where(x == 0, 1, np.where(np.isinf(x), 0, np.sin(safe) / safe)))


_UNARY: dict[str, Callable[[Array], Array]] = {
    "lgamma": lgamma, "special_gammaln": lgamma, "digamma": digamma, "special_digamma": digamma, "special_psi": digamma,
    "erfinv": erfinv, "special_erfinv": erfinv, "special_ndtri": ndtri,
    "i0": partial(bessel, 0, False), "special_i0": partial(bessel, 0, False),
    "special_i0e": partial(bessel, 0, True), "special_i1": partial(bessel, 1, False),
    "special_i1e": partial(bessel, 1, True), "special_modified_bessel_i0": partial(bessel, 0, False),
    "special_modified_bessel_i1": partial(bessel, 1, False), "special_spherical_bessel_j0": spherical_bessel_j0,
    "special_erfcx": erfcx,
}  # fmt: skip
for _name, _function in _UNARY.items():
    TABLE.kernel(f"aten.{_name}.default", dtypes=_DTYPES)(blocked(partial(in_float64, _function)))
