"""Biases and zero points that the types of ONNX do not hold."""

from __future__ import annotations

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers quantized_decomposed

import delegate
from tests.support.availability import require
from tests.support.cases.biases import SCALES, check
from tests.support.functions import NamedFunction
from tests.support.integer_layers import Decoded
from tests.support.lowering import assert_same, refused
from tests.support.sampling import every

quantized = torch.ops.quantized_decomposed


@pytest.mark.parametrize(("name", "kind", "per_channel"), every(3, SCALES, ["linear", "convolution"], [False, True]))
def test_a_bias_on_the_dsp(name: str, kind: str, per_channel: bool) -> None:
    require("dsp")
    check("dsp", name, kind, per_channel)


@pytest.mark.parametrize(
    ("zero", "dtype", "held"),
    [(2.5, torch.float32, False), (200, torch.int64, False), (3.0, torch.float32, True), (-128, torch.int64, True)],
    ids=str,
)
def test_zero_points(zero: float, dtype: torch.dtype, held: bool) -> None:
    """The exporter cuts zero points off to the type of the integers, so other ones are left to kernels."""
    module, x = Decoded(zero, dtype).eval(), torch.ones(3, 8)
    program = delegate.to_backend(torch.export.export(module, (x,)), "onnxruntime")
    assert_same(program(x), module(x))
    (place,) = {n.backend for n in program.report.nodes if "dequantize" in n.op}
    assert (place == "onnxruntime") == held


@pytest.mark.parametrize("zero_point", [0, 100, -(2**31)])
def test_zero_points_of_int32(zero_point: int) -> None:
    """ONNX Runtime subtracts them in 32 bits."""
    ends = (-(2**31), 2**31 - 1, torch.int32)
    module = NamedFunction(lambda x: quantized.dequantize_per_tensor.default(x, 0.5, zero_point, *ends) + 1).eval()
    x = torch.tensor([0, 1, -(2**31), 2**30, -5], dtype=torch.int32)
    program = delegate.to_backend(torch.export.export(module, (x,)), "onnxruntime")
    left = {"quantized_decomposed.dequantize_per_tensor.default": 1} if zero_point else {}
    assert refused(program, "onnxruntime") == left
    assert_same(program(x), module(x))
