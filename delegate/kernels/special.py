"""Special functions: the gamma family, modified Bessel functions, the inverse of erf, orthogonal polynomials.

All except the polynomials are computed in float64, for every dtype of the result.

Incomplete gamma functions: P(a, x) is a power series for x < a + 1. Elsewhere Q(a, x) = 1 - P(a, x) is a continued
fraction (Numerical Recipes, 6.2). Both take about sqrt(a) steps, so large a use Temme's uniform expansion (SIAM J.
Math. Anal. 10, 1979).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from delegate.errors import KernelError
from delegate.kernels.erf import erfc, erfcx, polynomial, upper_quantile
from delegate.kernels.half_precision import Array
from delegate.kernels.operands import WIDE, Operand, blocked, cast
from delegate.kernels.table import BOOL, INT, TABLE

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


def _stirling(x: Array) -> Array:
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
        (shifted - 0.5) * np.log(shifted) - shifted + 0.5 * math.log(2 * math.pi) + _stirling(shifted) - np.log(rising)
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
    exponent = large * (np.log1p(excess) - excess) - _stirling(large)
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


_CLOSED = 6  # above this degree the closed form is used, if there is one
_MAX_STEPS = 1 << 16  # of a recurrence; torch takes as many as the degree, which is for hours if it is not a real one
_HERMITE = {np.dtype(np.float32): 128, np.dtype(np.float64): 512}  # above this degree torch returns NaN


class _Family(NamedTuple):
    """A family of polynomials P(0) = 1, P(1), P(k), ..., each computed from the two before.

    Attributes:
        first: P(1) of x.
        step: P(k + 1) of k, x, P(k) and P(k - 1).
        closed: P(n) of n and acos(x), for |x| < 1.
        limited: if degrees above a limit give NaN.
    """

    first: Callable[[Array], Array]
    step: Callable[[int, Array, Array, Array], Array]
    closed: Callable[[Array, Array], Array] | None = None
    limited: bool = False


def _chebyshev(offset: int, factor: int, closed: Callable[[Array, Array], Array]) -> _Family:
    return _Family(lambda x: factor * x + offset, lambda k, x, q, p: 2 * x * q - p, closed)


_CHEBYSHEV = {
    "t": _chebyshev(0, 1, lambda n, angle: np.cos(n * angle)),
    "u": _chebyshev(0, 2, lambda n, angle: np.sin((n + 1) * angle) / np.sin(angle)),
    "v": _chebyshev(-1, 2, lambda n, angle: np.cos((n + 0.5) * angle) / np.cos(angle / 2)),
    "w": _chebyshev(1, 2, lambda n, angle: np.sin((n + 0.5) * angle) / np.sin(angle / 2)),
}
_OTHERS = {
    "hermite_polynomial_h": _Family(lambda x: 2 * x, lambda k, x, q, p: 2 * x * q - 2 * k * p, limited=True),
    "hermite_polynomial_he": _Family(lambda x: x, lambda k, x, q, p: x * q - k * p, limited=True),
    "laguerre_polynomial_l": _Family(lambda x: 1 - x, lambda k, x, q, p: ((2 * k + 1 - x) * q - k * p) / (k + 1)),
    "legendre_polynomial_p": _Family(lambda x: x, lambda k, x, q, p: ((2 * k + 1) * x * q - k * p) / (k + 1)),
}


def _evaluate(family: _Family, shifted: bool, x: Operand, n: Operand, *, out: Array) -> None:
    """Evaluate the polynomial of degree n at x, or at 2 x - 1; 0 for negative degrees.

    x and n broadcast; n is truncated to an integer.

    Raises:
        KernelError: a degree needs too many steps.
    """
    at, degree = np.broadcast_arrays(cast(x, out.dtype), np.asarray(n).astype(np.int64))
    at = 2 * at - 1 if shifted else at
    before, now = np.ones_like(at), np.asarray(family.first(at))
    np.copyto(out, np.where(degree < 0, 0, np.where(degree == 0, before, now)))
    left = degree > 1
    if family.limited:
        np.copyto(out, np.nan, where=degree > _HERMITE[out.dtype])
        left &= degree <= _HERMITE[out.dtype]
    if family.closed is not None:
        inside = left & (degree > _CLOSED) & (np.abs(at) < 1)
        angle = np.arccos(np.where(inside, at, 0).astype(np.float64))
        np.copyto(out, family.closed(degree, angle), where=inside, casting="same_kind")
        left &= ~inside
        ends = left & (np.abs(at) == 1)  # all degrees at once: the quotient may be 0 / 0 there
        np.copyto(out, _at_ends(family, degree, at), where=ends, casting="same_kind")
        left &= ~ends
    k = 1
    while left.any():
        if k == _MAX_STEPS:
            raise KernelError(f"a polynomial of the degree {degree[left].max()} takes too many steps")
        before, now = now, np.asarray(family.step(k, at, now, before), out.dtype)
        k += 1
        np.copyto(out, now, where=left & ((degree == k) | np.isnan(now)))
        left &= (degree > k) & ~np.isnan(now)


def _at_ends(family: _Family, degree: Array, x: Array) -> Array:
    """Evaluate P(n) at 1 and -1, where it is linear in n up to the sign of x ** n."""
    sign = np.where((x < 0) & (degree % 2 != 0), -1, 1)
    slope = np.abs(np.asarray(family.first(x))) - 1
    return np.asarray(sign * (1 + degree * slope))


_FAMILIES = {
    **{f"chebyshev_polynomial_{kind}": (family, False) for kind, family in _CHEBYSHEV.items()},
    **{f"shifted_chebyshev_polynomial_{kind}": (family, True) for kind, family in _CHEBYSHEV.items()},
    **{name: (family, False) for name, family in _OTHERS.items()},
}
for _name, (_family, _shifted) in _FAMILIES.items():
    _ops = [f"aten.special_{_name}.{form}" for form in ("default", "x_scalar", "n_scalar")]
    TABLE.kernel(*_ops, dtypes=WIDE | INT | BOOL)(partial(_evaluate, _family, _shifted))
