"""Zero points that the type of the integers does not hold: the weights are stored in floats."""

from __future__ import annotations

import pytest
import torch

import delegate
from tests.support.integer_layers import Decoded
from tests.support.lowering import assert_runs, assert_same


@pytest.mark.parametrize(
    ("zero", "dtype"), [(2.5, torch.float32), (200, torch.int64), (3.0, torch.float32), (-128, torch.int64)], ids=str
)
def test_zero_points(zero: float, dtype: torch.dtype) -> None:
    module, x = Decoded(zero, dtype).eval(), torch.ones(3, 8)
    program = delegate.to_backend(torch.export.export(module, (x,)), "openvino")
    assert_runs(program, "openvino")
    assert_same(program(x), module(x))
    (partition,) = program.report.partitions
    assert any("stored in floats" in note for note in partition.notes) == (zero in (2.5, 200))
