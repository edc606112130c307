"""Special functions against torch, far out and at their poles."""

import math

import pytest
import torch

from tests.support.kernels import check, sample

aten = torch.ops.aten
POINTS = [0.0, -0.0, 1.0, 2.0, 0.5, -0.5, -1.5, 1e-8, -1e-8, 3.7, 9.9, 20.0, 20.1, 35.5, 171.3, 1e3, 1e6, math.nan]


@pytest.mark.parametrize("name", ["lgamma", "digamma"])
def test_on_the_line(name):
    op = getattr(aten, name).default
    check(op, torch.tensor([*POINTS, *(-p for p in POINTS[6:])], dtype=torch.float64), rtol=1e-9, atol=1e-9)
    for dtype in (torch.float32, torch.int32, torch.bool):
        check(op, sample(4, 5, dtype=dtype), rtol=1e-4)


@pytest.mark.parametrize("name", ["lgamma", "digamma"])
def test_gamma_in_bfloat16_at_its_poles_and_infinity(name):
    check(getattr(aten, name).default, sample(4, 5, dtype=torch.bfloat16))
    check(getattr(aten, name).default, torch.tensor([0.0, -1.0, -2.0, math.inf, -math.inf], dtype=torch.float64))


def test_erfinv():
    points = [0.0, 1e-12, 0.3, -0.3, 0.5, 0.51, 0.999, -0.9999999, 1.0, -1.0, 1.5, math.nan]
    x = torch.tensor(points, dtype=torch.float64)
    check(aten.erfinv.default, x, rtol=1e-9)
    check(aten.erfinv.default, torch.linspace(-1, 1, 101), rtol=1e-5)


def test_erfcx():
    x = torch.tensor([0.0, -0.0, 1e-300, 0.5, 5.0, 26.5, 1e3, -0.5, -7.0, -26.0, -30.0, math.nan, math.inf, -math.inf])
    check(aten.special_erfcx.default, x.double())
    check(aten.special_erfcx.default, sample(4, 5, dtype=torch.int32), rtol=1e-4, atol=1e-6)
