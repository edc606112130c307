"""Powers on the DSP, whose results beyond float16 wrapped around: 65504**10 was 0, and 3**-100 was -131008."""

from __future__ import annotations

import pytest
import torch

from delegate.testing import assert_same
from tests.support.availability import require
from tests.support.cases.casts import lowered, ran
from tests.support.lowering import refused

LARGEST = torch.finfo(torch.float16).max
X = (
    torch.tensor([0.0, 6e-8, 1e-6, 1e-4, 0.01, 0.5, 0.9, 1.0, 1.1, 2.0, 3.0, 10.0, 100.0, 30000.0, 65504.0])
    .half()
    .float()
)
KEPT = (-1, 0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5)
REFUSED = (-30.5, -30, -10, -4, -2.5, -2, -1.5, -0.5, 0, 0.3, 5.5, 7.5, 8, 10, 30, 30.5)


def _same(function, x, is_kept):
    program = lowered(function, x, "dsp")
    assert ran(program) == ({"dsp"} if is_kept else {"portable"})
    result, expected = (y.clamp(-LARGEST, LARGEST) for y in (program(x), function(x)))
    assert_same(result, expected, 4e-3)


@pytest.mark.parametrize("exponent", [*KEPT, *REFUSED])
def test_constant_exponents(exponent):
    """Of -0.0 too, of which the HTP's own power was 131008, or 16."""
    require("dsp")
    x = torch.cat([X, -X]) if exponent == int(exponent) else torch.cat([X, torch.tensor([-0.0])])
    x = x if exponent > 0 else x[x != 0]
    _same(lambda v: v**exponent, x, exponent in KEPT)


EXPONENTS = torch.tensor([-1000.0, -100, -20, -10, -3, -2.5, -1, -0.5, 0, 0.5, 1, 2, 2.5, 3, 5, 10, 16, 100, 1000, 3e4])
BASES = {0.001: True, 0.3: True, 1.0: True, 1.001: True, 1.1: True, 2.0: True, 2.5: True, 1000.0: True, 1e5: True,
         0.0: False, -0.5: False, -1.0: False, -2.0: False, float("inf"): False}  # fmt: skip


@pytest.mark.parametrize("base", BASES)
def test_constant_bases(base):
    """Each to the precision of its exponent in float16."""
    require("dsp")
    program = lowered(lambda v: torch.pow(base, v), EXPONENTS, "dsp")
    assert ran(program) == ({"dsp"} if BASES[base] else {"portable"})
    result, expected = (y.clamp(-LARGEST, LARGEST) for y in (program(EXPONENTS), torch.pow(base, EXPONENTS)))
    assert_same(result, expected, 1e-2, each=True, at_least=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_powers_of_tensors(dtype):
    """Large and negative exponents, negative bases, and 0**0 are left to others."""
    require("dsp")
    bases = torch.tensor([-100.0, -3, -0.5, -0.0, 0, 1e-4, 0.5, 1, 3, 100, 6e4]).to(dtype)
    exponents = torch.tensor([-100.0, -4, -2.5, -1, 0, 0.5, 1, 3, 100]).to(dtype)
    x, y = (t.flatten() for t in torch.meshgrid(bases, exponents, indexing="ij"))
    program = lowered(lambda v: torch.pow(v[0], v[1]) + 1, torch.stack([x, y]), "dsp")
    assert refused(program, "dsp")["aten.pow.Tensor_Tensor"] == 1
    finite = torch.pow(x, y).abs() < LARGEST / 2
    assert_same(program(torch.stack([x, y]))[finite], (torch.pow(x, y) + 1)[finite], 2e-3)


NORMS = {0: False, 1: True, 2: True, float("inf"): True, -float("inf"): True,
         0.5: False, 1.5: False, 3: False, 10: False, -1: False}  # fmt: skip


@pytest.mark.parametrize("order", NORMS)
def test_norms(order):
    """They are powers within: the norm of the exponent 3 was 51 for 464."""
    require("dsp")
    x = torch.tensor([[0.5, -2.0, 3.0, 1.0], [100.0, -20, 10, 40], [300.0, -200, 100, 400]])
    x = x if order != 2 else x[:2]
    program = lowered(lambda v: torch.linalg.vector_norm(v, order, -1), x, "dsp")
    assert refused(program, "dsp") == ({} if NORMS[order] else {"aten.linalg_vector_norm.default": 1})
    assert_same(program(x), torch.linalg.vector_norm(x, order, -1), 5e-3)
