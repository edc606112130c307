"""How the backend cuda lays out weights: transposed once, when a program is compiled, where nothing else reads them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.support.lowering import compiled, relative_error
from tests.support.sampling import every

pytest.importorskip("tvm", reason="TVM is not installed: pip install delegate-cuda")

X = torch.linspace(-1, 1, 3 * 24).view(3, 24)


class Shared(nn.Module):
    """The weight has another use too."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(40, 24))

    def forward(self, x):
        return F.linear(x, self.weight), self.weight * x[0]


class Given(nn.Module):
    """The weight is an input of the partition."""

    def forward(self, x):
        return F.linear(x, x)


class Twice(nn.Module):
    """One square weight in two layers."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(24, 24)

    def forward(self, x):
        return self.layer(self.layer(x).relu())


@pytest.mark.parametrize(
    ("module", "transposed"),
    [
        (nn.Linear(24, 40), True),
        (nn.Linear(24, 40, bias=False), True),
        (Twice(), True),
        (Shared(), False),
        (Given(), False),
    ],
    ids=["bias", "no bias", "two layers", "shared", "given"],
)
@pytest.mark.parametrize("dtype", every(3, [torch.float32, torch.float16, torch.bfloat16]), ids=str)
def test_weights_of_linear_layers(module, transposed, dtype, monkeypatch):
    from delegate_cuda.aot import backend as aot

    programs = []
    monkeypatch.setattr(
        aot, "to_relax", lambda *given, convert=aot.to_relax: programs.append(convert(*given)) or programs[-1]
    )
    module, x = module.to(dtype), X.to(dtype)
    options = {"arch": "llvm"}
    program = compiled(module, (x,), config={"backends": [{"name": "cuda", "isolate": "none", "options": options}]})
    assert ["permute_dims" in str(p) for p in programs] == [not transposed]
    exact, found = module(x), program(x)
    pairs = zip(exact, found, strict=True) if isinstance(exact, tuple) else [(exact, found)]
    assert all(relative_error(f, e) <= 2 * torch.finfo(dtype).eps for e, f in pairs)
