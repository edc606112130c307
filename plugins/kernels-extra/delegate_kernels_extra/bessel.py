"""Bessel functions and modified ones of both kinds, and Airy's function, in float64.

Coefficients are from Cephes (S. Moshier, "Methods and Programs for Mathematical Functions", 1989), as in torch.
Polynomials have the lowest power first; `_UNDER` is the denominator in a quotient of two.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.polynomial.chebyshev import chebval

from delegate.kernels.erf import in_float64, quotient
from delegate.kernels.half_precision import Array
from delegate.kernels.operands import WIDE, by_blocks
from delegate.kernels.table import BOOL, INT
from delegate_kernels_extra.table import TABLE

_NODES = 32  # of the trapezoidal rule for modified functions, which is exact to the last digit below _FAR
_FAR = 20.0

_COSINE_0 = (
    1.0, 5.303240382353949, 8.74716500199817, 5.447250030587687, 1.239533716464143, 0.08283523921074408,
    0.0007969367292973471,
)  # fmt: skip
_COSINE_UNDER_0 = (
    1.0, 5.306052882353947, 8.761908832370695, 5.470977403304171, 1.2535274390105895, 0.08562884743544745,
    0.0009244088105588637,
)  # fmt: skip
_SINE_0 = (
    -6.050143506007285, -51.41053267665993, -147.07750515495118, -177.68116798048806, -93.20601521237683,
    -19.553954425773597, -1.2825271867050931, -0.011366383889846916,
)  # fmt: skip
_SINE_UNDER_0 = (
    242.0057402402914, 2062.0933166032783, 5930.727011873169, 7240.467741956525, 3882.4018360540163, 856.4300259769806,
    64.3178256118178,
)  # fmt: skip
_J0 = (
    9708622510473064.0, -249248344360967.72, 1956174919465.5657, -4794432209.782018,
)  # fmt: skip
_J0_UNDER = (
    1.7108629408104315e+18, 3.1812195594320496e+16, 310518229857422.56, 2112775201154.892, 11185553704.535683,
    48440965.83399621, 173785.4016763747, 499.563147152651,
)  # fmt: skip
_Y0 = (
    -1.8495080043698668e+16, 4.4273326857256984e+16, -3466283033847297.0, 87590639439536.7, -982136065717.9115,
    5435264770.518765, -14663929.59039716, 15592.436785523574,
)  # fmt: skip
_Y0_UNDER = (
    2.5059625617265306e+17, 3171577528429750.5, 20297961275010.555, 86400248710.3935, 268919633.39381415,
    626107.330137135, 1041.2835366425984,
)  # fmt: skip
_K0_SMALL = (
    -0.2676636966169514, 0.3442898999246285, 0.0359799365153615, 0.001264615411446926, 2.286212103119452e-05,
    2.5347910790261494e-07, 1.904516377220209e-09, 1.0349695257633842e-11, 4.25981614279661e-14, 1.374465435613523e-16,
)  # fmt: skip
_K0_LARGE = (
    1.2201515410329777, -0.0314481013119645, 0.0015698838857300533, -0.00012849549581627802, 1.39498137188765e-05,
    -1.8317555227191195e-06, 2.766813639445015e-07, -4.660489897687948e-08, 8.574034017414225e-09,
    -1.69753450938906e-09, 3.577397281400301e-10, -7.957489244477107e-11, 1.8559491149547177e-11,
    -4.514597883373944e-12, 1.140340588208475e-12, -2.9800969231727303e-13, 8.032890775363575e-14,
    -2.2275133269916698e-14, 6.3400764774050706e-15, -1.848593377343779e-15, 5.512055978524319e-16,
    -1.678231096805412e-16, 5.2103915050390274e-17, -1.6475804301524212e-17, 5.300433772686263e-18,
)  # fmt: skip
_COSINE_1 = (
    1.0, 5.214515986823615, 8.424045901417724, 5.112079511468076, 1.1271960812968493, 0.07313970569409176,
    0.0007621256162081731,
)  # fmt: skip
_COSINE_UNDER_1 = (
    1.0, 5.209828486823619, 8.399855543276042, 5.073863861286015, 1.105142326340617, 0.06884559087544954,
    0.0005713231280725487,
)  # fmt: skip
_SINE_1 = (
    25.207020585802372, 211.68875710057213, 597.4896124006136, 710.8563049989261, 366.7796093601508, 75.82382841325453,
    4.982138729512334, 0.05108625947501766,
)  # fmt: skip
_SINE_UNDER_1 = (
    336.0936078106983, 2826.1927851763908, 7997.041604473507, 9562.318924047562, 4986.410583376536, 1056.4488603826283,
    74.23732770356752,
)  # fmt: skip
_J1 = (
    3682957328638529.0, -72749424522181.83, 452228297998.19403, -899971225.7055594,
)  # fmt: skip
_J1_UNDER = (
    5.322786203326801e+18, 8.952223361846274e+16, 784369607876235.9, 4749141220799.914, 22151159547.97925,
    83514679.14319493, 256987.25675774884, 620.8364781180543,
)  # fmt: skip
_Y1 = (
    -7.788771962659501e+17, 2.024394757135949e+17, -8127702555013251.0, 114509511541823.73, -647355876379.1603,
    1263204747.9017804,
)  # fmt: skip
_Y1_UNDER = (
    3.9727060811656064e+18, 6.871410873553005e+16, 620557727146953.8, 3882312774962.3857, 18760131610.870617,
    73481194.44597217, 235564.09294306856, 594.3015923461282,
)  # fmt: skip
_K1_SMALL = (
    0.7626501136694739, -0.3531559607765449, -0.12261118082265715, -0.006975723859639864, -0.0001730288957513052,
    -2.4334061415659684e-06, -2.213387630734726e-08, -1.4114883926335278e-10, -6.666901694199329e-13,
    -2.427449850519366e-15, -7.023863479386288e-18,
)  # fmt: skip
_K1_LARGE = (
    1.3603130952422213, 0.10392373657681724, -0.002857816859622779, 0.00019521551847135162, -1.936197974166083e-05,
    2.406484947837217e-06, -3.5019606030878126e-07, 5.7410841254500495e-08, -1.0345762465678097e-08,
    2.015049755197033e-09, -4.1903547593418965e-10, 9.218315187605006e-11, -2.1299678384275683e-11,
    5.13963967348173e-12, -1.2891739609510289e-12, 3.3484196660784293e-13, -8.976705182324994e-14,
    2.4771544244813043e-14, -7.019837090418314e-15, 2.038703165624334e-15, -6.057047248373319e-16,
    1.838093544366639e-16, -5.689462558442859e-17, 1.7940508731475592e-17, -5.756744483665017e-18,
)  # fmt: skip
_AIRY_DECAY = (
    1.0, 14.026469116338967, 70.53609068404442, 159.75639135016442, 168.08922493463058, 76.27960536152345,
    12.007595273964581, 0.346538101525629,
)  # fmt: skip
_AIRY_DECAY_UNDER = (
    1.0, 14.095913560783403, 71.47784008255756, 164.2346928715297, 177.31808814540045, 84.51389701414746,
    14.75625625848472, 0.5675945326387702,
)  # fmt: skip
_AIRY_SINE = (
    -1.6778769848911465e-08, -2.776491081552329e-06, -0.0001592764962392621, -0.004062659235948854,
    -0.04919001326095003, -0.2797799815451191, -0.6931580360369335, -0.6264565444319123, -0.1316963234183318,
)  # fmt: skip
_AIRY_SINE_UNDER = (
    4.5185009297058035e-07, 7.547203482874142e-05, 0.004402916416152112, 0.11568717379518804, 1.4752914677166642,
    9.187074029072596, 26.736704094149957, 32.682503279522464, 13.356042070655324,
)  # fmt: skip
_AIRY_COSINE = (
    3.415517847659236e-10, 8.117892395543892e-08, 6.98793669997261e-06, 0.000282851600836737, 0.005858041130483885,
    0.06338889196289255, 0.35146565610554764, 0.9391692298166502, 1.0657989759959559, 0.39110302961568827,
    0.01973399320916857,
)  # fmt: skip
_AIRY_COSINE_UNDER = (
    4.9183457006293e-09, 1.1716673321441352e-06, 0.00010125908511650914, 0.004126565238242226, 0.08645808263523921,
    0.9542936116189619, 5.476860694229755, 15.564662893286462, 19.835292871831214, 9.30892908077442,
)  # fmt: skip

_SPLIT = 5.0  # below it quotients of polynomials, above it the asymptotic expansion
_SQUARED_ZEROS = ((5.78318596294678452118, 30.4712623436620863991), (14.6819706421238932572, 49.2184563216946036703))
_FIRST = ((_J0, _J0_UNDER), (_J1, _J1_UNDER))
_SECOND = ((_Y0, _Y0_UNDER), (_Y1, _Y1_UNDER))
_WAVES = (
    ((_COSINE_0, _COSINE_UNDER_0), (_SINE_0, _SINE_UNDER_0)),
    ((_COSINE_1, _COSINE_UNDER_1), (_SINE_1, _SINE_UNDER_1)),
)
_MODIFIED = ((_K0_SMALL, _K0_LARGE), (_K1_SMALL, _K1_LARGE))
_AIRY_SPLIT, _AIRY_ZERO = 2.09, 103.892  # where its series ends, and where float64 ends
_AIRY_AT_0, _AIRY_SLOPE = 0.355028053887817239260, 0.258819403792806798405
_AIRY_TERMS = 20  # the last one is below 1e-16 at 2.09


def _wave(order: int, first: bool, x: Array) -> Array:
    """Compute the asymptotic expansion for x > 5 of the first or second kind's function."""
    cosine, sine = (quotient(tables, 25 / (x * x)) for tables in _WAVES[order])
    sine = 5 / x * sine
    phase = x - (0.25 + 0.5 * order) * math.pi
    wave = cosine * np.cos(phase) - sine * np.sin(phase) if first else cosine * np.sin(phase) + sine * np.cos(phase)
    return np.asarray(wave * math.sqrt(2 / math.pi) / np.sqrt(x))


def bessel_j(order: int, x: Array) -> Array:
    """Compute the Bessel function of the first kind of order 0 or 1; NaN at infinity, as in torch."""
    size = np.abs(x)
    square = np.minimum(size, _SPLIT) ** 2
    low, high = _SQUARED_ZEROS[order]
    small = quotient(_FIRST[order], square) * (square - low) * (square - high)
    small = small * np.minimum(size, _SPLIT) if order else small
    result = np.where(size <= _SPLIT, small, _wave(order, True, np.maximum(size, _SPLIT)))
    return np.asarray(np.where(x < 0, -result, result) if order else result)


def bessel_y(order: int, x: Array) -> Array:
    """Compute the Bessel function of the second kind of order 0 or 1; NaN below 0, minus infinity at 0."""
    small = np.clip(x, 0, _SPLIT)
    logarithm = bessel_j(order, small) * np.log(small)
    if order:
        logarithm = logarithm - 1 / small
    rest = quotient(_SECOND[order], small * small)
    result = (small * rest if order else rest) + 2 / math.pi * logarithm
    result = np.where(x <= _SPLIT, result, _wave(order, False, np.maximum(x, _SPLIT)))
    return np.asarray(np.where(x < 0, np.nan, np.where(x == 0, -np.inf, result)))


def bessel_k(order: int, scaled: bool, x: Array) -> Array:
    """Compute the modified function of the second kind of order 0 or 1, times exp(x) if scaled; NaN below 0."""
    lower, upper = _MODIFIED[order]
    small, large = np.clip(x, 0, 2), np.maximum(x, 2)
    growing = np.log(small / 2) * bessel(order, False, small)
    series = chebval((small * small - 2) / 2, lower)
    result = growing + series / small if order else series - growing
    result = result * np.exp(small) if scaled else result
    tail = chebval((8 / large - 2) / 2, upper) / np.sqrt(large)
    result = np.where(x <= 2, result, tail if scaled else tail * np.exp(-large))
    return np.asarray(np.where(x < 0, np.nan, np.where(x == 0, np.inf, result)))


def airy(x: Array) -> Array:
    """Compute Airy's function Ai; NaN at both infinities, as in torch."""
    small = np.clip(x, -_AIRY_SPLIT, _AIRY_SPLIT)
    first_term, second_term, cube = np.ones_like(small), small.copy(), small**3
    first, second = first_term.copy(), second_term.copy()
    for k in range(1, 3 * _AIRY_TERMS, 3):
        first_term = first_term * cube / ((k + 1) * (k + 2))
        second_term = second_term * cube / ((k + 2) * (k + 3))
        first, second = first + first_term, second + second_term
    result = _AIRY_AT_0 * first - _AIRY_SLOPE * second
    large = np.maximum(np.abs(x), _AIRY_SPLIT)
    zeta, root = 2 / 3 * large * np.sqrt(large), np.sqrt(np.sqrt(large))
    decay = quotient((_AIRY_DECAY, _AIRY_DECAY_UNDER), 1 / zeta) / (2 * root * np.exp(zeta))
    sine = 1 + quotient((_AIRY_SINE, _AIRY_SINE_UNDER), 1 / zeta**2) / zeta**2
    cosine = quotient((_AIRY_COSINE, _AIRY_COSINE_UNDER), 1 / zeta**2) / zeta
    wave = (np.sin(zeta + math.pi / 4) * sine - np.cos(zeta + math.pi / 4) * cosine) / root
    result = np.where(x >= _AIRY_SPLIT, decay / math.sqrt(math.pi), result)
    result = np.where(x < -_AIRY_SPLIT, wave / math.sqrt(math.pi), np.where(x > _AIRY_ZERO, 0, result))
    return np.asarray(np.where(np.isinf(x), np.nan, result))


def bessel(order: int, scaled: bool, x: Array) -> Array:
    """Compute the modified Bessel function of the first kind of order 0 or 1 in float64.

    With `scaled` it is multiplied by exp(-|x|), so near 0 it is the mean of exp(|x| (cos t - 1)) cos(order t) over a
    period, farther out its asymptotic series.
    """
    size = np.abs(x)
    small, total = np.minimum(size, _FAR), np.zeros_like(size)
    for k in range(_NODES + 1):
        cosine = math.cos(math.pi * k / _NODES)
        weight = (0.5 if k in (0, _NODES) else 1.0) * (cosine if order else 1.0)
        total = total + weight * np.exp(small * (cosine - 1))
    large, term, series = np.maximum(size, _FAR), np.ones_like(size), np.ones_like(size)
    for k in range(1, 21):
        term = term * ((2 * k - 1) ** 2 - 4 * order * order) / (8 * k * large)
        series = series + term
    result = np.where(size <= _FAR, total / _NODES, series / np.sqrt(2 * np.pi * large))
    result = result if scaled else result * np.exp(size)
    return np.asarray(np.copysign(result, x) if order else result)


def spherical_bessel_j0(x: Array) -> Array:
    """Compute sin(x) / x in float64; 1 at 0 and 0 at infinity."""
    safe = np.where((x == 0) | np.isinf(x), 1, x)
    return np.asarray(np.where(x == 0, 1, np.where(np.isinf(x), 0, np.sin(safe) / safe)))


_UNARY: dict[str, Callable[[Array], Array]] = {
    "aten.i0": partial(bessel, 0, False), "aten.special_i0": partial(bessel, 0, False),
    "aten.special_i0e": partial(bessel, 0, True), "aten.special_i1": partial(bessel, 1, False),
    "aten.special_i1e": partial(bessel, 1, True), "aten.special_modified_bessel_i0": partial(bessel, 0, False),
    "aten.special_modified_bessel_i1": partial(bessel, 1, False),
    **{f"aten.special_bessel_j{order}": partial(bessel_j, order) for order in (0, 1)},
    **{f"aten.special_bessel_y{order}": partial(bessel_y, order) for order in (0, 1)},
    **{f"aten.special_modified_bessel_k{order}": partial(bessel_k, order, False) for order in (0, 1)},
    **{f"aten.special_scaled_modified_bessel_k{order}": partial(bessel_k, order, True) for order in (0, 1)},
    "aten.special_spherical_bessel_j0": spherical_bessel_j0, "aten.special_airy_ai": airy,
    "prims.bessel_i0": partial(bessel, 0, False), "prims.bessel_i0e": partial(bessel, 0, True),
    "prims.bessel_i1": partial(bessel, 1, False), "prims.bessel_i1e": partial(bessel, 1, True),
    "prims.spherical_bessel_j0": spherical_bessel_j0,
}  # fmt: skip
for _name, _function in _UNARY.items():
    TABLE.kernel(f"{_name}.default", dtypes=WIDE | INT | BOOL)(by_blocks(partial(in_float64, _function)))
