"""The quantile of the standard normal distribution in float64, to 16 digits: three quotients of polynomials.

M. J. Wichura, Algorithm AS 241: The Percentage Points of the Normal Distribution, Applied Statistics 37 (1988), PPND16.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from delegate.kernels.half_precision import Array
from delegate.kernels.polynomial import polynomial

_MIDDLE = 0.85  # central share of the distribution; in it the quantile is a quotient in the square of the share
_FAR = 5.0  # root of the logarithm of a tail, from which the tail has another quotient

Quotient = tuple[Sequence[float], Sequence[float]]  # coefficients above and below, lowest first

_OF_MIDDLE: Quotient = (
    (
        3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3, 1.3731693765509461125e4,
        4.5921953931549871457e4, 6.7265770927008700853e4, 3.3430575583588128105e4, 2.5090809287301226727e3,
    ),
    (
        1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3,
        2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4, 5.2264952788528545610e3,
    ),
)  # fmt: skip
_OF_TAIL: Quotient = (
    (
        1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0, 3.64784832476320460504e0,
        1.27045825245236838258e0, 2.41780725177450611770e-1, 2.27238449892691845833e-2, 7.74545014278341407640e-4,
    ),
    (
        1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1,
        1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4, 1.05075007164441684324e-9,
    ),
)  # fmt: skip
_OF_FAR_TAIL: Quotient = (
    (
        6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0, 2.96560571828504891230e-1,
        2.65321895265761230930e-2, 1.24266094738807843860e-3, 2.71155556874348757815e-5, 2.01033439929228813265e-7,
    ),
    (
        1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2,
        7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7, 2.04426310338993978564e-15,
    ),
)  # fmt: skip


def upper_quantile(inside: Array, outside: Array) -> Array:
    """Return z >= 0 such that a share `inside` is between -z and z; `outside` is 1 - inside exactly.

    Both arrays have one shape. z is infinite where `outside` is 0; NaN stays NaN.
    """
    result = np.asarray(inside * (0.5 * _quotient(_OF_MIDDLE, 0.180625 - 0.25 * inside * inside)))
    beyond = inside > _MIDDLE
    if beyond.any():
        result[beyond] = _of_tails(outside[beyond])
    return result


def _of_tails(outside: Array) -> Array:
    depth = np.sqrt(np.log(2.0) - np.log(outside))
    result = _quotient(_OF_TAIL, depth - 1.6)
    far = depth > _FAR
    if far.any():
        result[far] = _quotient(_OF_FAR_TAIL, depth[far] - _FAR)
    return np.where(outside == 0, np.inf, result)


def _quotient(coefficients: Quotient, x: Array) -> Array:
    above, below = (polynomial(c, x) for c in coefficients)
    return np.divide(above, below, out=above)
