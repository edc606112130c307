"""Numbers that are read as booleans: as in eager, over all dtypes."""

from __future__ import annotations

import pytest
import torch

from tests.support.cases.truths import VALUES, compare


@pytest.mark.parametrize("dtype", VALUES, ids=str)
def test_on_kernels(dtype: torch.dtype) -> None:
    assert compare(dtype, {"backends": []}) == frozenset()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", VALUES, ids=str)
def test_on_cuda(dtype: torch.dtype) -> None:
    assert "aten.any.dim" in compare(dtype, {"backends": [{"name": "cuda", "options": {"arch": "llvm"}}]})
