"""Resizing by factors that leave a size as it is, and to a single element: OpenVINO differs from torch in both."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import delegate
from tests.support.functions import Function
from tests.support.lowering import assert_runs, assert_same, refused
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


# Mode, factor, least size that the export allows, and if OpenVINO runs it: no allowed size stays as it is or becomes 1,
# and the factor of nearest pixels is whole.
@pytest.mark.parametrize(
    ("mode", "factor", "least", "runs"),
    [
        ("bilinear", 0.5, 4, True),
        ("bilinear", 1.5, 3, True),
        ("nearest", 1.25, 4, False),
        ("nearest", 2.0, 4, True),
    ],
)
def test_dynamic_sizes_run_if_their_bounds_exclude_the_difference(
    mode: str, factor: float, least: int, runs: bool
) -> None:
    module, size = Function(F.interpolate, scale_factor=factor, mode=mode), torch.export.Dim("n", min=least, max=32)
    exported = torch.export.export(module, (torch.randn(1, 2, 8, 8),), dynamic_shapes=(({2: size},),))
    program = delegate.to_backend(exported, "openvino")
    for rows in (least, 7):
        x = torch.randn(1, 2, rows, 8)
        assert_same(program(x), module(x), 1e-5)
    if runs:
        assert_runs(program, "openvino")
    else:
        assert refused(program, "openvino") == {f"aten.upsample_{mode}2d.vec": 1}
