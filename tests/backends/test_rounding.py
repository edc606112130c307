"""Results of 16-bit floats, where a wider dtype or a step shows them."""

from __future__ import annotations

import pytest
import torch

from tests.support.availability import require
from tests.support.cases.rounding import check_kept, check_shown, check_steps
from tests.support.sampling import every

BACKENDS = ["xnnpack", "cuda"]
DTYPES = [torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", every(2, DTYPES), ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_wider_dtypes_show_rounded_results(backend, dtype):
    """They were numbers of float32: 70000.0 in place of infinity."""
    require(backend)
    check_shown(backend, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_steps_show_rounded_results(dtype):
    """TVM drops casts to bfloat16 within a function."""
    require("cuda")
    check_steps("cuda", dtype)


@pytest.mark.parametrize("backend", BACKENDS)
def test_other_casts_stay(backend):
    require(backend)
    check_kept(backend)
