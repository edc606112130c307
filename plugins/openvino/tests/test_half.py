"""Programs in 16 bits, as eager computes them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import delegate
from delegate.testing import assert_same
from tests.support.sampling import every


class Net(nn.Module):
    def __init__(self, forward: Callable[[Net, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.wide, self.narrow, self.norm = nn.Linear(16, 32), nn.Linear(32, 16), nn.LayerNorm(16)
        self._forward = forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._forward(self, x)


NETS: dict[str, Callable[[Net, torch.Tensor], torch.Tensor]] = {
    "two layers": lambda net, x: net.narrow(net.wide(x)),
    "residual": lambda net, x: net.narrow(net.wide(x)) + x,
    "feed forward": lambda net, x: net.narrow(F.gelu(net.wide(net.norm(x)))) + x,
    "gated": lambda net, x: net.narrow(net.wide(x)) * torch.sigmoid(x),
    "attention": lambda net, x: F.scaled_dot_product_attention(x[None], x[None] * 2, net.norm(x)[None])[0],
    "products": lambda net, x: x @ x.t() @ x + x,
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("rows", [1, 4, 64])
@pytest.mark.parametrize("name", every(2, NETS))
def test_nets(name: str, rows: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    net, x = Net(NETS[name]).to(dtype).eval(), torch.randn(rows, 16).to(dtype)
    program = delegate.to_backend(torch.export.export(net, (x,)), "openvino")
    assert {n.backend for n in program.report.nodes} == {"openvino"}
    with torch.no_grad():
        result, expected = program(x), net(x)
    assert_same(result, expected, 3 * torch.finfo(dtype).eps)
