"""The debugger and operators with several right answers that run inside a partition."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.fx import Node

import delegate
from delegate.backends.aot import Region
from tests.support.planting import planted

TIES = torch.randint(0, 4, (6, 40), generator=torch.Generator().manual_seed(0)).float()
MODELS: dict[str, Callable[[torch.Tensor], object]] = {
    "topk": lambda x: (x + 1).topk(5),
    "indices alone": lambda x: (x + 1).topk(5)[1] + 1,
    "what is read at indices": lambda x: x.cumsum(0).gather(1, (x * 2).topk(5)[1]) + 1,
}


def exported(function: Callable[[torch.Tensor], object]) -> torch.export.ExportedProgram:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> object:
            return function(x)

    return torch.export.export(Model(), (TIES,))


def least(region: Region, node: Node) -> Region:
    """Let topk choose the least elements."""
    node.args = (*node.args[:2], -1, False)
    return region


@pytest.mark.parametrize("function", MODELS.values(), ids=MODELS)
def test_a_wrong_choice_is_a_fault_and_another_right_one_is_none(function: Callable[[torch.Tensor], object]) -> None:
    model = exported(function)
    diagnosis = delegate.debug(model, "openvino", cache=False)
    assert diagnosis.faults == (), str(diagnosis)
    assert any(row.place == "openvino" for row in diagnosis.errors)
    with planted("openvino", "topk", least):
        faults = delegate.debug(model, "openvino", cache=False).faults
    assert "aten.topk.default" in [node.operator for fault in faults for node in fault.nodes]
