"""The tests that every backend has to pass, on modules that this one runs."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn
from torch.export import Dim

from delegate.testing import BackendTests, Case


class Scale(nn.Module):
    """Arithmetic with a constant and numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 3))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.relu(x * self.weight - y) + torch.maximum(x, 2 * y)


ROWS = {0: Dim("n", min=1, max=64)}


class TestAcme(BackendTests):
    backend = "acme"
    cases: ClassVar = {
        "scale": Case(Scale(), (torch.randn(2, 3), torch.randn(2, 3))),
        "dynamic": Case(
            Scale(),
            (torch.randn(4, 3), torch.randn(4, 3)),
            {"x": ROWS, "y": ROWS},
            others=((torch.randn(7, 3), torch.randn(7, 3)),),
        ),
    }
