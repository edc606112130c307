"""Zero points that the type of the integers does not hold: ONNX has them in it, and its exporter cuts them off."""

from __future__ import annotations

import pytest
import torch

import delegate
from delegate.testing import assert_same
from tests.support.integer_layers import Decoded


@pytest.mark.parametrize(
    ("zero", "dtype", "held"),
    [(2.5, torch.float32, False), (200, torch.int64, False), (3.0, torch.float32, True), (-128, torch.int64, True)],
    ids=str,
)
def test_zero_points(zero: float, dtype: torch.dtype, held: bool) -> None:
    """As in eager, and there where int8 holds the zero points."""
    module, x = Decoded(zero, dtype).eval(), torch.ones(3, 8)
    program = delegate.to_backend(torch.export.export(module, (x,)), "onnxruntime")
    assert_same(program(x), module(x))
    (place,) = {n.backend for n in program.report.nodes if "dequantize" in n.op}
    assert (place == "onnxruntime") == held
