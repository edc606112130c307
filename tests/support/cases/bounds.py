"""Bounds after bounds, whose ranges overlap or do not."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.export import export

import delegate
from delegate.testing import assert_same
from tests.support.functions import Function

X = torch.tensor([-4.0, -1.0, 0.2, 0.7, 1.5, 4.0])

CASES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "overlapping": lambda x: x.clamp(0, 1).clamp(0.5, 2),
    "above": lambda x: x.clamp(0, 1).clamp(2, 3),
    "below": lambda x: x.clamp(2, 3).clamp(0, 1),
    "a minimum above": lambda x: x.clamp(0, 1).clamp(min=2),
    "a maximum below a minimum": lambda x: x.clamp(min=1).clamp(max=0.5),
    "a minimum above a maximum": lambda x: x.clamp(max=0.5).clamp(min=1),
    "relu of negatives": lambda x: x.clamp(-3, -1).relu(),
    "negatives of relu": lambda x: x.relu().clamp(-3, -1),
    "relu6 below": lambda x: nn.functional.relu6(x).clamp(max=-1),
    "below relu6": lambda x: nn.functional.relu6(x.clamp(max=-1)),
    "hardtanh above": lambda x: nn.functional.hardtanh(x, 2, 3).clamp(4, 5),
    "maximum and minimum": lambda x: torch.minimum(torch.maximum(x, torch.tensor(1.0)), torch.tensor(0.5)),
    "three": lambda x: x.clamp(-2, -1).clamp(0, 1).clamp(2, 3),
    "a minimum above its maximum": lambda x: x.clamp(3, 1),
}


def compare(name: str, backends: list[str]) -> frozenset[str]:
    """Compare a case with eager; return the operators that ran on backends."""
    function = CASES[name]
    program = delegate.to_backend(export(Function(function), (X,)), backends)
    assert_same(program(X), function(X), 0)
    return frozenset(n.op for n in program.report.nodes if n.backend != "portable")
