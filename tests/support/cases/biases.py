"""Layers on int8 with biases that 32 bits do not hold: their operand was all but 0 in calibration."""

from __future__ import annotations

import torch
import torch.ao.quantization.fx._decomposed  # registers quantized_decomposed
from torch import nn

import delegate
from delegate.testing import assert_same

quantized = torch.ops.quantized_decomposed
STEP = 5 / 127  # of the result
SCALES = {"of an observer of zeros": (1.2e-7, 0.01), "tiny ones": (1e-6, 1e-5), "as usual": (0.02, 0.01)}


class Layer(nn.Module):
    """A layer on int8, with a bias in floats."""

    def __init__(self, kind: str, scale: float, of_weights: float, per_channel: bool) -> None:
        super().__init__()
        self.kind, self.scale, self.of_weights, self.per_channel = kind, scale, of_weights, per_channel
        weight = torch.randint(-127, 128, (6, 8), generator=torch.Generator().manual_seed(0)).to(torch.int8)
        self.register_buffer("weight", weight if kind == "linear" else weight[..., None])
        self.register_buffer("bias", torch.tensor([5.0, -5.0, 1.0, 0.5, 3.0, -2.0]))
        self.register_buffer("scales", torch.full((6,), of_weights))
        self.register_buffer("zeros", torch.zeros(6, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ends, small = (-128, 127, torch.int8), (-127, 127, torch.int8)
        code = quantized.quantize_per_tensor.default(x, self.scale, 0, *ends)
        x = quantized.dequantize_per_tensor.default(code, self.scale, 0, *ends)
        if self.per_channel:
            weight = quantized.dequantize_per_channel.default(self.weight, self.scales, self.zeros, 0, *small)
        else:
            weight = quantized.dequantize_per_tensor.default(self.weight, self.of_weights, 0, *ends)
        layer = nn.functional.linear if self.kind == "linear" else nn.functional.conv1d
        made = quantized.quantize_per_tensor.default(layer(x, weight, self.bias), STEP, 0, *ends)
        result: torch.Tensor = quantized.dequantize_per_tensor.default(made, STEP, 0, *ends)
        return result


def check(backend: str, name: str, kind: str, per_channel: bool, *, any_size: bool = False) -> None:
    """The layer is as in eager, and runs on the backend if 32 bits are enough, or with biases of `any_size`."""
    scale, of_weights = SCALES[name]
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(1)) * scale * 50
    x = x if kind == "linear" else x[..., None]
    module = Layer(kind, scale, of_weights, per_channel).eval()
    program = delegate.to_backend(torch.export.export(module, (x,)), backend)
    assert_same(program(x), module(x), 1.01 / 127)  # a step: the largest result has 127
    (place,) = {n.backend for n in program.report.nodes if kind in n.op}
    assert (place == backend) == (any_size or name == "as usual")
