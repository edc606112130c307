"""Casts and signs as eager has them; one cast is left to others."""

from __future__ import annotations

import pytest
import torch

from tests.support.cases.casts import DTYPES, SIGNS, check_signs, taken
from tests.support.sampling import every


@pytest.mark.parametrize("dtype", every(2, DTYPES), ids=str)
def test_casts(dtype: torch.dtype) -> None:
    refused = {torch.bool} if dtype is torch.bfloat16 else set()
    assert taken("onnxruntime", dtype) == set(DTYPES) - {dtype} - refused


@pytest.mark.parametrize("name", [*SIGNS, "all"])
def test_signs(name: str) -> None:
    check_signs("onnxruntime", name)
