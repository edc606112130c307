"""Fractional pooling against torch."""

import math

import pytest
import torch

from tests.support.kernels import check, sample

aten = torch.ops.aten


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_fractional_max_pool(dtype: torch.dtype) -> None:
    """Check the windows, which depend on the rounding of each step. The last NaN wins, or the first maximum."""
    x = sample(4, 5, 37, 23, dtype=dtype).round()
    x[0, 0, 4:9, 3] = math.nan
    x[1] = -math.inf
    samples = torch.rand(4, 5, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(dtype)
    samples[2], samples[3] = 0, torch.tensor(0.99609375)
    check(aten.fractional_max_pool2d.default, x[:1], [2, 3], [17, 11], samples[:1, :, :2])
    check(aten.fractional_max_pool2d.default, x[2:], [3, 2], [1, 20], samples[2:, :, :2])
    check(aten.fractional_max_pool2d.default, x[0], [2, 2], [36, 22], samples[:1, :, :2])
    volume = x[2:].reshape(2, 5, 1, 37, 23).repeat(1, 1, 6, 1, 1)
    check(aten.fractional_max_pool3d.default, volume, [2, 2, 3], [4, 17, 9], samples[2:])
