"""Special functions against torch, far out and at their poles."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from delegate_kernels_extra.library import TABLE

from delegate.errors import KernelError
from tests.support.kernels import check, sample

aten = torch.ops.aten
POINTS = [0.0, -0.0, 1.0, 2.0, 0.5, -0.5, -1.5, 1e-8, -1e-8, 3.7, 9.9, 20.0, 20.1, 35.5, 171.3, 1e3, 1e6, math.nan]


@pytest.mark.parametrize("name", ["special_i0e", "special_i1e", "special_spherical_bessel_j0", "lgamma", "digamma"])
def test_on_the_line(name: str) -> None:
    op = getattr(aten, name).default
    check(op, torch.tensor([*POINTS, *(-p for p in POINTS[6:])], dtype=torch.float64), rtol=1e-9, atol=1e-9)
    for dtype in (torch.float32, torch.int32, torch.bool):
        check(op, sample(4, 5, dtype=dtype), rtol=1e-4)


@pytest.mark.parametrize("name", ["lgamma", "digamma"])
def test_gamma_in_bfloat16_at_its_poles_and_infinity(name: str) -> None:
    check(getattr(aten, name).default, sample(4, 5, dtype=torch.bfloat16))
    check(getattr(aten, name).default, torch.tensor([0.0, -1.0, -2.0, math.inf, -math.inf], dtype=torch.float64))
    check(getattr(torch.ops.prims, name).default, sample(4, 5).abs())


@pytest.mark.parametrize("name", ["i0", "special_i1"])
def test_bessel(name: str) -> None:
    x = torch.linspace(-300, 300, 301, dtype=torch.float64)
    check(getattr(aten, name).default, x, rtol=1e-10)
    check(getattr(aten, name).default, sample(4, 5, dtype=torch.float16), rtol=1e-2)


def test_ndtri() -> None:
    x = torch.tensor([0.0, 1e-300, 1e-12, 0.1, 0.5, 0.9, 1 - 1e-12, 1.0, -0.1, 1.1, math.nan], dtype=torch.float64)
    check(aten.special_ndtri.default, x, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_polygamma(n: int) -> None:
    x = torch.tensor([0.1, 0.5, 1.0, 3.3, 10.0, 50.0, 1e4], dtype=torch.float64)
    check(aten.polygamma.default, n, x, rtol=1e-9)
    check(aten.polygamma.default, n, x.float(), rtol=1e-4)


def test_zeta() -> None:
    s = torch.tensor([1.0, 0.5, 1.1, 2.0, 3.0, 10.0], dtype=torch.float64)[:, None]
    q = torch.tensor([0.1, 1.0, 7.5, 1e3, 0.0, -1.0, -0.5, -3.25], dtype=torch.float64)
    check(aten.special_zeta.default, s, q, rtol=1e-9)
    check(aten.special_zeta.other_scalar, s, 2.5, rtol=1e-9)
    check(aten.special_zeta.self_scalar, 2.5, q[:4], rtol=1e-9)


BESSEL = [
    *(f"bessel_{kind}{order}" for kind in "jy" for order in (0, 1)),
    *(f"{form}modified_bessel_k{order}" for form in ("", "scaled_") for order in (0, 1)),
    "airy_ai",
]  # fmt: skip
# Where each of their pieces begins and ends, far out, at zeros, and where there is no result.
BORDERS = [
    0.0, -0.0, 1e-300, 1e-10, 1e-5, 0.5, 1.999, 2.0, 2.001, 2.09, -2.09, 3.8, 4.999, 5.0, 5.001, 8.32, 8.33, 26.5, 50.0,
    103.8, 104.0, 1e3, 1e6, -0.5, -3.0, -7.0, -26.0, -30.0, -1e3, math.nan, math.inf, -math.inf,
]  # fmt: skip


@pytest.mark.parametrize("name", BESSEL)
def test_bessel_of_both_kinds_and_airy(name: str) -> None:
    op = getattr(aten, f"special_{name}").default
    check(op, torch.tensor(BORDERS, dtype=torch.float64))
    check(op, torch.linspace(-12, 30, 500, dtype=torch.float64))
    # Torch has the phase of a wave in float32.
    check(op, torch.tensor([x for x in BORDERS if not 1e3 <= abs(x) < math.inf]), rtol=1e-4, atol=1e-5)
    for dtype in (torch.int32, torch.int8, torch.bool):
        check(op, sample(4, 5, dtype=dtype), rtol=1e-4, atol=1e-6)


POLYNOMIALS = [
    *(f"{form}chebyshev_polynomial_{kind}" for form in ("", "shifted_") for kind in "tuvw"),
    "hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p",
]  # fmt: skip


@pytest.mark.parametrize("name", POLYNOMIALS)
def test_orthogonal_polynomials(name: str) -> None:
    ops = getattr(aten, f"special_{name}")
    x = torch.tensor([-3.0, -1.0, -0.7, -0.0, 0.0, 0.2, 0.5, 0.99, 1.0, 1.5, 40.0], dtype=torch.float64)[:, None]
    degrees = torch.tensor([-2, 0, 1, 2, 3.7, 6, 7, 9, 30, 200, 600], dtype=torch.float64)
    check(ops.default, x, degrees, rtol=1e-8, atol=1e-8)
    check(ops.default, x[2:8].float(), degrees[:8].float(), rtol=1e-3, atol=1e-4)
    check(ops.default, sample(4, 5, dtype=torch.int32), sample(5, dtype=torch.int64).abs(), rtol=1e-4)
    check(ops.n_scalar, x, 4)
    check(ops.x_scalar, 0.3, degrees[:8], rtol=1e-8)
    check(ops.default, torch.tensor([math.inf, -math.inf, 1e30]), torch.tensor([1.0, 1.0, 12.0]))


SHAPES = [
    0.0,
    1e-10,
    1e-3,
    0.3,
    1.0,
    1.5,
    9.9,
    10.0,
    99.0,
    200.0,
    1e3,
    9e4,
    1e5,
    3e5,
    1e7,
    1e12,
    math.inf,
    math.nan,
    -1,
]


@pytest.mark.parametrize("op", [aten.igamma.default, aten.igammac.default], ids=str)
def test_incomplete_gamma(op: Any) -> None:
    """Test all pairs, and x close to a, where both functions are about half."""
    a = torch.tensor(SHAPES, dtype=torch.float64)[:, None]
    ratios = torch.tensor([0, 1e-3, 0.3, 0.9, 0.99, 0.999, 0.99999, 1, 1.00001, 1.001, 1.01, 1.1, 2, 10])
    for x in (a.T, a * ratios):
        check(op, a, x, rtol=1e-7, atol=1e-11)
        check(op, a.float(), x.float(), rtol=1e-3, atol=1e-5)
    for dtype in (torch.float16, torch.bfloat16):
        check(op, a[3:11].to(dtype), a[3:11].T.to(dtype))


X = torch.tensor([[0.5, 2.0, -3.0], [1.5, 0.75, 2.0]])


@pytest.mark.parametrize("name", [*(f"bessel_{n}" for n in ("i0", "i0e", "i1", "i1e")), "spherical_bessel_j0"])
def test_prims(name: str) -> None:
    check(getattr(torch.ops.prims, name).default, X)


def test_prims_of_a_share_and_of_two_arguments() -> None:
    check(torch.ops.prims.ndtri.default, X.abs() / 4)
    check(torch.ops.prims.zeta.default, X.abs() + 1.25, X.abs())


@pytest.mark.parametrize("name", ["laguerre_polynomial_l", "legendre_polynomial_p"])
def test_degrees_that_take_hours_are_refused(name: str) -> None:
    x, out = np.full(3, 0.5, np.float32), np.empty(3, np.float32)
    with pytest.raises(KernelError, match=f"a polynomial of the degree {2**62} takes too many steps"):
        TABLE.rows(f"aten.special_{name}.n_scalar")[0].function(x, 2**62, out=out)
