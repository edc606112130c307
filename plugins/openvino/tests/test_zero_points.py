"""Zero points that the type of the integers does not hold: the weights are stored in floats."""

from __future__ import annotations

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers quantized_decomposed
from torch import nn

import delegate
from tests.support.lowering import assert_runs, assert_same


class Decoded(nn.Module):
    """A linear layer of int8 weights with a zero point for each output."""

    def __init__(self, zero: float, dtype: torch.dtype) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        self.register_buffer("weight", torch.randint(-100, 100, (6, 8), generator=draw).to(torch.int8))
        self.register_buffer("scale", torch.full((6,), 0.01))
        self.register_buffer("zero", torch.full((6,), zero, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        decode = torch.ops.quantized_decomposed.dequantize_per_channel.default
        weight = decode(self.weight, self.scale, self.zero, 0, -128, 127, torch.int8)
        return nn.functional.linear(x, weight)


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
