"""Infinities that XNNPACK's averages and resizing turn to NaN: the partition has a note, and others equal eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from tests.support.functions import Function
from tests.support.lowering import assert_runs, assert_same, compiled

INF = torch.inf
IMAGE = torch.arange(36.0).reshape(1, 1, 6, 6) - 10
IMAGE[0, 0, 1, 1], IMAGE[0, 0, 4, 4] = -INF, INF

CASES: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {  # -> the operator of the note
    "average of 4": (lambda x: F.avg_pool2d(x, 2), ""),
    "average of 9": (lambda x: F.avg_pool2d(x, 3), ""),
    "average of 2": (lambda x: F.avg_pool2d(x, (1, 2)), "avg_pool2d"),
    "average of 6": (lambda x: F.avg_pool2d(x, (2, 3)), "avg_pool2d"),
    "one average": (lambda x: F.adaptive_avg_pool2d(x, 1), ""),
    "average in one dimension": (lambda x: F.avg_pool1d(x[0], 2), "avg_pool2d"),
    "bilinear": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), "upsample_bilinear2d"),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2, mode="nearest"), ""),
}


@pytest.mark.parametrize(("function", "operator"), CASES.values(), ids=CASES)
def test_infinities(function: Callable[[torch.Tensor], torch.Tensor], operator: str) -> None:
    program = compiled(Function(function), (IMAGE,), backends="xnnpack")
    assert_runs(program, "xnnpack")
    (partition,) = program.report.partitions
    notes = [note for note in partition.notes if "infinities" in note]
    assert notes == ([f"infinities may become NaN in {operator}"] if operator else [])
    result, expected = program(IMAGE), function(IMAGE)
    if operator:
        finite = result.isfinite()  # a wrong result is NaN, and no number
        assert_same(result[finite], expected[finite])
    else:
        assert_same(result, expected)
