"""Resizing by factors that leave a size as it is, and to a single element: OpenVINO differs from torch in both."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import delegate
from tests.support.functions import Function
from tests.support.lowering import assert_runs, assert_same
from tests.support.sampling import every

MODES = {"nearest": (1, 2, 3), "bilinear": (2,), "bicubic": (2,), "trilinear": (3,)}
CASES = [
    (mode, rank, factor) for mode, ranks in MODES.items() for rank in ranks for factor in (0.34, 0.5, 0.9, 1.3, 2.0)
]


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize(("mode", "rank", "factor"), every(2, CASES))
def test_right_at_any_size(mode: str, rank: int, factor: float, size: int) -> None:
    if int(size * factor) == 0:
        pytest.skip("torch resizes nothing to no elements")
    module, x = Function(F.interpolate, scale_factor=factor, mode=mode), torch.randn(1, 2, *([size] * rank))
    program = delegate.to_backend(torch.export.export(module, (x,)), "openvino")
    assert_same(program(x), module(x), 1e-5)
    if factor == 2:
        assert_runs(program, "openvino")
