"""Models with parts for several backends, and an input of them."""

from __future__ import annotations

import torch
from torch import nn


class Residual(nn.Module):
    """A convolution whose result passes by a node that is pinned elsewhere, and that takes it too, or another one."""

    def __init__(self, shared: bool) -> None:
        super().__init__()
        self.shared = shared
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.pinned = nn.Conv2d(8, 8, 1)
        self.last = nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = self.first(x)
        return self.last(self.pinned(kept if self.shared else torch.relu(kept)) + kept)


class TwoReaders(nn.Module):
    """Two partitions, with a node between them that is pinned elsewhere, take the input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.pinned = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.pinned(self.first(x)) + x)


PINNED = {"aten.convolution.default": 1}


def image(seed: int = 0, batch: int = 1) -> torch.Tensor:
    """Return float32[batch, 3, 16, 16] of seeded numbers."""
    return torch.randn(batch, 3, 16, 16, generator=torch.Generator().manual_seed(seed))


class Stages(nn.Module):
    """A part for each backend."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(8, 8, 1), nn.Sigmoid())
        self.third = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.third(self.second(self.first(x)).mean((2, 3))).logcumsumexp(1)
