"""Special functions against torch, far out and at their poles."""

import math

import pytest
import torch

from tests.kernels.compare import check, sample

aten = torch.ops.aten
POINTS = [0.0, -0.0, 1.0, 2.0, 0.5, -0.5, -1.5, 1e-8, -1e-8, 3.7, 9.9, 20.0, 20.1, 35.5, 171.3, 1e3, 1e6, math.nan]
ANYWHERE = ["lgamma", "digamma", "special_i0e", "special_i1e", "special_spherical_bessel_j0"]


@pytest.mark.parametrize("name", ANYWHERE)
def test_on_the_line(name):
    op = getattr(aten, name).default
    check(op, torch.tensor([*POINTS, *(-p for p in POINTS[6:])], dtype=torch.float64), rtol=1e-9, atol=1e-9)
    for dtype in (torch.float32, torch.int32, torch.bool):
        check(op, sample(4, 5, dtype=dtype), rtol=1e-4)


@pytest.mark.parametrize("name", ["i0", "special_i1"])
def test_bessel(name):
    x = torch.linspace(-300, 300, 301, dtype=torch.float64)
    check(getattr(aten, name).default, x, rtol=1e-10)
    check(getattr(aten, name).default, sample(4, 5, dtype=torch.float16), rtol=1e-2)


@pytest.mark.parametrize("name", ["lgamma", "digamma"])
def test_gamma_in_bfloat16_at_its_poles_and_infinity(name):
    check(getattr(aten, name).default, sample(4, 5, dtype=torch.bfloat16))
    check(getattr(aten, name).default, torch.tensor([0.0, -1.0, -2.0, math.inf, -math.inf], dtype=torch.float64))


def test_erfinv():
    points = [0.0, 1e-12, 0.3, -0.3, 0.5, 0.51, 0.999, -0.9999999, 1.0, -1.0, 1.5, math.nan]
    x = torch.tensor(points, dtype=torch.float64)
    check(aten.erfinv.default, x, rtol=1e-9)
    check(aten.erfinv.default, torch.linspace(-1, 1, 101), rtol=1e-5)


def test_ndtri():
    x = torch.tensor([0.0, 1e-300, 1e-12, 0.1, 0.5, 0.9, 1 - 1e-12, 1.0, -0.1, 1.1, math.nan], dtype=torch.float64)
    check(aten.special_ndtri.default, x, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_polygamma(n):
    x = torch.tensor([0.1, 0.5, 1.0, 3.3, 10.0, 50.0, 1e4], dtype=torch.float64)
    check(aten.polygamma.default, n, x, rtol=1e-9)
    check(aten.polygamma.default, n, x.float(), rtol=1e-4)


def test_zeta():
    s = torch.tensor([1.0, 0.5, 1.1, 2.0, 3.0, 10.0], dtype=torch.float64)[:, None]
    q = torch.tensor([0.1, 1.0, 7.5, 1e3, 0.0, -1.0, -0.5, -3.25], dtype=torch.float64)
    check(aten.special_zeta.default, s, q, rtol=1e-9)
    check(aten.special_zeta.other_scalar, s, 2.5, rtol=1e-9)
    check(aten.special_zeta.self_scalar, 2.5, q[:4], rtol=1e-9)
