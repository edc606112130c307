"""Models whose runs are watched: two partitions around a kernel, and a loop."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.support.lowering import compiled

CUMSUM = {"aten.cumsum.default": 1}  # XNNPACK has none
X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        return self.last(torch.cumsum(self.first(a), 0))


class Loop(nn.Module):
    def forward(self, a: torch.Tensor) -> torch.Tensor:
        return torch.while_loop(lambda i, b: i < 5, lambda i, b: (i + 1, torch.sin(b)), (torch.tensor(0), a))[1]


def net() -> Any:
    torch.manual_seed(0)
    return compiled(Net().eval(), (X,), backends=["xnnpack"], portable=CUMSUM)
