"""The test kit for other authors' backends, run on the backends of this project."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.export import Dim

from delegate.testing import BackendTests, Case

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5))

    def forward(self, image: torch.Tensor) -> dict[str, torch.Tensor]:
        scores = self.layers(image)
        return {"scores": scores, "shares": torch.softmax(scores, 1)}


class Sums(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.tanh(a + b) * 2


class TestXnnpack(BackendTests):
    backend = "xnnpack"
    options: ClassVar = {"threads": 1}
    examples = 5
    tolerance = 2e-6
    cases: ClassVar = {
        "net": Case(Net().eval(), (torch.randn(1, 3, 8, 8),)),
        "dynamic": Case(
            Sums(),
            (torch.randn(2, 3), torch.randn(2, 3)),
            {"a": {0: Dim("n", max=32)}, "b": {0: Dim("n", max=32)}},
            others=((torch.randn(7, 3), torch.randn(7, 3)),),
        ),
    }

    def another_version(self, blob: bytes) -> bytes:
        return blob.replace(b"TFL3", b"TFL9", 1)


NET = {"net": Case(Net().eval(), (torch.randn(1, 3, 8, 8),))}


@pytest.mark.slow
class TestWebgpu(BackendTests):
    backend = "webgpu"
    cases: ClassVar = NET
    tolerance = 1e-5  # 9e-7 is measured on SwiftShader; GPUs round functions otherwise


@pytest.mark.slow
class TestCuda(BackendTests):
    backend = "cuda"
    options: ClassVar = {"arch": "llvm"}
    cases: ClassVar = NET


@pytest.mark.slow
class TestDsp(BackendTests):
    backend = "dsp"
    cases: ClassVar = NET
    tolerance = 1e-2
    exceptions: ClassVar = {"infinities and NaN": "the HTP computes in float16, which saturates there"}
