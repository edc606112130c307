"""The tests that every backend has to pass, on modules that this one runs."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn
from torch.export import Dim

from delegate.testing import BackendTests, Case


class Layers(nn.Module):
    """Linear layers with and without a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 5), nn.Linear(5, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


ROWS = {0: Dim("n", min=1, max=64)}


class TestBlas(BackendTests):
    backend = "blas"
    cases: ClassVar = {
        "layers": Case(Layers(), (torch.randn(3, 6),)),
        "batches": Case(Layers(), (torch.randn(2, 3, 6),)),
        "dynamic": Case(Layers(), (torch.randn(4, 6),), {"x": ROWS}, others=((torch.randn(7, 6),),)),
    }

    def another_version(self, blob: bytes) -> bytes:
        """Return a blob of a version that does not exist."""
        return blob.replace(b'"version": 1', b'"version": 2')
