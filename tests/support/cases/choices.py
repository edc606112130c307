"""The debugger and operators with several right answers that run inside a partition."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from delegate_devtools import debug
from torch.fx import Node

from delegate.backend.aot import Region
from tests.support.functions import Function
from tests.support.planting import planted

TIES = torch.randint(0, 4, (6, 40), generator=torch.Generator().manual_seed(0)).float()
MODELS: Mapping[str, Callable[[torch.Tensor], object]] = {
    "topk": lambda x: (x + 1).topk(5),
    "indices alone": lambda x: (x + 1).topk(5)[1] + 1,
    "what is read at indices": lambda x: x.cumsum(0).gather(1, (x * 2).topk(5)[1]) + 1,
}


def least(region: Region, node: Node) -> Region:
    """Let topk choose the least elements."""
    node.args = (*node.args[:2], -1, False)
    return region


def check_choices(name: str, backend: str) -> None:
    """Assert that another right choice of a backend is no fault, and that a wrong one is."""
    model = torch.export.export(Function(MODELS[name]), (TIES,))
    diagnosis = debug(model, backend, cache=False)
    assert diagnosis.faults == (), str(diagnosis)
    assert any(row.place == backend for row in diagnosis.errors)
    with planted(backend, "topk", least):
        faults = debug(model, backend, cache=False).faults
    assert "aten.topk.default" in [node.operator for fault in faults for node in fault.nodes]
