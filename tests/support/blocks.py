"""Two blocks as networks have them, for the kit on backends that run whole networks."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from delegate.testing import Case


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(16), nn.MultiheadAttention(16, 4, batch_first=True)
        self.feed = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        result: torch.Tensor = x + self.feed(self.norm(x))
        return result


def conv() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Hardswish(), nn.MaxPool2d(2), nn.Flatten()
    )


BLOCKS: Mapping[str, Case] = {
    "conv": Case(conv().eval(), (torch.randn(1, 3, 8, 8),)),
    "transformer block": Case(Block().eval(), (torch.randn(2, 5, 16),)),
}
