"""Casts and signs as eager has them; float64 and one cast are left to others."""

from __future__ import annotations

import pytest
import torch

from tests.support.cases.casts import DTYPES, SIGNS, check_signs, taken
from tests.support.sampling import every


@pytest.mark.parametrize("dtype", every(2, DTYPES), ids=str)
def test_casts(dtype: torch.dtype) -> None:
    refused = {dtype, torch.float64, *([torch.bool] if dtype is torch.bfloat16 else [])}
    assert taken("onnxruntime", dtype) == (set() if dtype is torch.float64 else set(DTYPES) - refused)


@pytest.mark.parametrize("name", [*SIGNS, "all"])
def test_signs(name: str) -> None:
    check_signs("onnxruntime", name)
