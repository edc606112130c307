"""Biases that 32 bits do not hold."""

from __future__ import annotations

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers quantized_decomposed

import delegate
from tests.support.cases.biases import SCALES, check
from tests.support.functions import NamedFunction
from tests.support.lowering import assert_same, refused
from tests.support.sampling import every

quantized = torch.ops.quantized_decomposed


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("kind", ["linear", "convolution"])
@pytest.mark.parametrize("name", every(3, SCALES))
def test_a_bias_is_not_cut_off(name: str, kind: str, per_channel: bool) -> None:
    check("onnxruntime", name, kind, per_channel)


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
