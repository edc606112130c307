"""Powers on the DSP, whose results beyond float16 wrapped around: 65504**10 was 0, and 1e-6**10 was -65504."""

from __future__ import annotations

import pytest
import torch

from delegate.testing import assert_same
from tests.backends.casts import lowered, ran
from tests.backends.test_casts import require

LARGEST = torch.finfo(torch.float16).max
X = (
    torch.tensor([0.0, 6e-8, 1e-6, 1e-4, 0.01, 0.5, 0.9, 1.0, 1.1, 2.0, 3.0, 10.0, 100.0, 30000.0, 65504.0])
    .half()
    .float()
)
KEPT = (-1, 0.3, 0.5, 1.5, 2, 2.5, 3, 3.5, 4, 5)
REFUSED = (-30.5, -30, -10, -4, -2.5, -2, -1.5, -0.5, 7.5, 8, 10, 30, 30.5)


def _same(function, x, is_kept):
    program = lowered(function, x, "dsp")
    assert ran(program) == ({"dsp"} if is_kept else {"portable"})
    result, expected = (y.clamp(-LARGEST, LARGEST) for y in (program(x), function(x)))
    assert_same(result, expected, 4e-3)


@pytest.mark.parametrize("exponent", [*KEPT, *REFUSED])
def test_constant_exponents(exponent):
    require("dsp")
    x = torch.cat([X, -X]) if exponent == int(exponent) else X
    _same(lambda v: v**exponent, x, exponent in KEPT)
