"""Layers before a batch norm, which torchao folds into them, with computed weights, buffers or plain attributes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.export import export

import delegate
from delegate.edge.node import op_name
from delegate.quantization import quantize
from tests.support.placing import decibels
from tests.support.quantized import settings_of

parametrizations = nn.utils.parametrizations
DECODE = "quantized_decomposed.dequantize_per_channel.default"
IMAGE, ROWS = torch.linspace(-1, 1, 384).reshape(2, 3, 8, 8).sin(), torch.linspace(-3, 3, 64).reshape(8, 8).sin()


class Standardized(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return nn.functional.conv2d(x, weight / (weight.std((1, 2, 3), keepdim=True) + 1e-5), self.bias)


class Buffers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("w", torch.randn(4, 3, 3, 3))
        self.register_buffer("b", torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.conv2d(x, self.w, self.b)


class Scaled(nn.Linear):
    """A weight that is a product of parameters."""

    def __init__(self) -> None:
        super().__init__(8, 4)
        self.scale = nn.Parameter(torch.rand(4, 1))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight * self.scale, self.bias)


class Attribute(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = torch.randn(4, 3, 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.conv2d(x, self.w)


LAYERS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "weight norm": (lambda: parametrizations.weight_norm(nn.Conv2d(3, 4, 3)), IMAGE),
    "spectral norm": (lambda: parametrizations.spectral_norm(nn.Conv2d(3, 4, 3)), IMAGE),
    "standardized": (lambda: Standardized(3, 4, 3), IMAGE),
    "weight norm of a linear layer": (lambda: parametrizations.weight_norm(nn.Linear(8, 4)), ROWS),
    "a product": (Scaled, ROWS),
    "buffers": (Buffers, IMAGE),
    "an attribute": (Attribute, IMAGE),
}


@pytest.mark.parametrize("scheme", ["static_int8", "dynamic_int8", "weight_only_int8"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_weight(name: str, scheme: str) -> None:
    torch.manual_seed(0)
    layer, x = LAYERS[name]
    norm = nn.BatchNorm1d(4) if x is ROWS else nn.BatchNorm2d(4)
    model = nn.Sequential(layer(), norm, nn.ReLU())
    model.train()(x)
    model.eval()
    quantized = quantize(export(model, (x,)), settings_of("xnnpack", scheme), [(x,)])
    layers = [n for n in quantized.graph.nodes if str(n.target) in ("aten.conv2d.default", "aten.linear.default")]
    assert [op_name(node.args[1]) for node in layers] == [DECODE]
    program = delegate.to_backend(quantized, ["xnnpack"])
    assert any(node.backend == "xnnpack" for node in program.report.nodes)
    assert decibels(torch.as_tensor(program(x)), model(x).detach()) > 25
