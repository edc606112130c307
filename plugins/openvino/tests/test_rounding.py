"""Results of 16-bit floats on OpenVINO, where a wider dtype shows them."""

from __future__ import annotations

import pytest
import torch

from tests.support.cases.rounding import check_kept, check_shown
from tests.support.sampling import every


@pytest.mark.parametrize("dtype", every(2, [torch.float16, torch.bfloat16]), ids=str)
def test_wider_dtypes_show_rounded_results(dtype: torch.dtype) -> None:
    """They were numbers of float32: 70000.0 in place of infinity."""
    check_shown("openvino", dtype)


def test_other_casts_stay() -> None:
    check_kept("openvino")
