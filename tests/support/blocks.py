"""Blocks as networks have them, and cases of two of them for the kit on backends that run whole networks."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from delegate.testing import Case
from tests.support.lowering import assert_runs, assert_same, compiled


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


class SqueezeExcite(nn.Module):
    """Weighs channels by their means, in convolutions of one pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.reduce, self.expand = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x).relu()
        weights: torch.Tensor = self.expand(self.reduce(x.mean((2, 3), keepdim=True)).relu()).sigmoid()
        return x * weights


class UNet(nn.Module):
    """Joins an image with the same image in half the size."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.smaller = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.larger, self.last = nn.ConvTranspose2d(16, 8, 2, stride=2), nn.Conv2d(16, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).relu()
        result: torch.Tensor = self.last(torch.cat([x, self.larger(self.smaller(x).relu())], 1))
        return result


IMAGES: Mapping[str, nn.Module] = {"squeeze and excite": SqueezeExcite(), "u-net": UNet()}


def check_batches(name: str, backend: str, tolerance: float) -> None:
    """Assert that a backend runs all of a module of `IMAGES`, with eager's results, in batches of any size."""
    module, batches = IMAGES[name], [torch.randn(size, 3, 8, 8) for size in (2, 1, 16, 20)]
    shapes = ({0: torch.export.Dim("batch", min=1, max=64)},)
    program = compiled(module, (batches[0],), backends=backend, dynamic_shapes=shapes)
    assert_runs(program, backend)
    with torch.no_grad():
        for batch in batches:
            assert_same(program(batch), module(batch), tolerance)


BLOCKS: Mapping[str, Case] = {
    "conv": Case(conv().eval(), (torch.randn(1, 3, 8, 8),)),
    "transformer block": Case(Block().eval(), (torch.randn(2, 5, 16),)),
}


class TokenBlock(nn.Module):
    """A block of a transformer over embeddings of tokens."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.table = nn.Embedding(50, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        query, key, value = self.qkv(self.norms[0](x)).chunk(3, -1)
        x = x + self.out((query @ key.transpose(1, 2) * 0.1).softmax(-1) @ value)
        return x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))
