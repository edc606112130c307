"""Models to quantize, with norms that have seen data, and batches."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


class Residual(nn.Module):
    """Convolutions with batch norms, a residual, moves, pools, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.depthwise = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.BatchNorm2d(8), nn.ReLU6())
        self.left, self.right = nn.Conv2d(4, 8, 1), nn.Conv2d(4, 8, 1)
        self.pool, self.head = nn.MaxPool2d(3, 2, 1), nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = x + self.depthwise(x)
        a, b = x.chunk(2, 1)
        x = self.pool(torch.cat([self.left(a), self.right(b)], 1))
        return self.head(torch.nn.functional.dropout(x.mean((2, 3)), 0.1, self.training))


class Encoder(nn.Module):
    """A layer of a transformer."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norms[0](x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))


def build_with_batches(build: Callable[[], nn.Module], *shape: int) -> tuple[nn.Module, list[tuple[torch.Tensor, ...]]]:
    """A module with norms that have seen data, and batches."""
    torch.manual_seed(0)
    module, batches = build(), [(torch.randn(shape),) for _ in range(6)]
    with torch.no_grad():
        for _ in range(20):
            module.train()(torch.randn(8, *shape[1:]))
    return module.eval(), batches
