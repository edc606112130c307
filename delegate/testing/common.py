"""Common modules of one or a few operators, on which `delegate check-backend` tests a backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from delegate.testing.cases import Case, floats


class _Function(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, y: Tensor) -> Any:
        return self.function(x, y)


def _one(module: nn.Module, *shape: int) -> Case:
    """Return the case of a module of one input, with the same weights on every machine."""
    with torch.no_grad():
        for i, weight in enumerate(module.parameters()):
            weight.copy_(torch.linspace(-0.5, 0.5 + i, weight.numel()).reshape(weight.shape))
    return Case(module.eval(), (floats(*shape),))


def _two(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Case:
    """Return the case of a function of two inputs."""
    first, second = (floats(*shape) for shape in shapes)
    return Case(_Function(function), (first, second.flip(0)))


SAME = (4, 6), (4, 6)
COMMON: Mapping[str, Case] = {
    "add": _two(lambda x, y: x + y, *SAME),
    "sub, mul": _two(lambda x, y: (x - y) * y, *SAME),
    "div": _two(lambda x, y: x / (y.abs() + 1), *SAME),
    "maximum, minimum": _two(lambda x, y: torch.maximum(x, y) + torch.minimum(x, -y), *SAME),
    "compare, where": _two(lambda x, y: torch.where(x > y, x, y * 2), *SAME),
    "relu": _one(nn.ReLU(), 4, 6),
    "gelu": _one(nn.GELU(), 4, 6),
    "silu, sigmoid": _one(nn.Sequential(nn.SiLU(), nn.Sigmoid()), 4, 6),
    "tanh": _one(nn.Tanh(), 4, 6),
    "hardswish": _one(nn.Hardswish(), 4, 6),
    "softmax": _one(nn.Softmax(-1), 4, 6),
    "linear": _one(nn.Linear(6, 3), 4, 6),
    "matmul": _two(lambda x, y: x @ y, (2, 4, 6), (2, 6, 3)),
    "conv2d": _one(nn.Conv2d(3, 4, 3, padding=1), 1, 3, 8, 8),
    "conv2d, depthwise": _one(nn.Conv2d(4, 4, 3, stride=2, groups=4), 1, 4, 9, 9),
    "conv2d, batch norm, relu": _one(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), 1, 3, 8, 8),
    "max pool": _one(nn.MaxPool2d(2), 1, 3, 8, 8),
    "average pool": _one(nn.AdaptiveAvgPool2d(1), 1, 3, 8, 8),
    "layer norm": _one(nn.LayerNorm(6), 4, 6),
    "mean, sum": _two(lambda x, y: x.mean(1) + y.sum(1), *SAME),
    "concatenate": _two(lambda x, y: torch.cat([x, y], 1) * 2, *SAME),
    "reshape, permute": _two(lambda x, y: x.reshape(2, 2, 6).permute(2, 0, 1) + y.reshape(6, 2, 2), *SAME),
    "attention": _two(lambda x, y: F.scaled_dot_product_attention(x, y, y), (1, 2, 4, 8), (1, 2, 4, 8)),
}
