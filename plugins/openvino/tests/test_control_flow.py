"""Conditions and loops: OpenVINO runs the graphs in them, and the nodes around them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops import while_loop
from torch.export import Dim

import delegate
from tests.support.lowering import assert_same


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = torch.cond(
            x.sum() > 0, lambda x: self.first(x).sigmoid(), lambda x: self.second(x).tanh(), (x.exp(),)
        )
        return self.last(y)


class Loop(Branches):
    def forward(self, x: Tensor) -> Tensor:
        start = (torch.zeros((), dtype=torch.int64), self.first(x))
        y: Tensor = while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, self.second(x).tanh()), start)[1]
        return self.last(y)


@pytest.mark.parametrize("sizes", [None, ({0: Dim("rows", min=2, max=9)},)], ids=["static", "dynamic"])
@pytest.mark.parametrize("model", [Branches, Loop])
def test_graphs_of_control_flow(model: type[Branches], sizes: tuple[dict[int, Dim]] | None) -> None:
    torch.manual_seed(0)
    module, x = model().eval().requires_grad_(False), torch.rand(3, 8)
    program = delegate.to_backend(torch.export.export(module, (x,), dynamic_shapes=sizes), "openvino")
    linear = [n.backend for n in program.report.nodes if n.op == "aten.linear.default"]
    assert linear == ["openvino"] * 3
    for given in (x, -x, *(() if sizes is None else (torch.rand(7, 8),))):
        assert_same(program(given), module(given), 1e-5)
