"""Results at the edges of float32 are as the rows of XNNPACK's deviations describe them, and torch's next to them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import delegate
from delegate.testing import relative_error
from tests.support.functions import Function

F = nn.functional
INF = float("inf")

# The operator, inputs whose results are torch's, and inputs whose results are not.
EDGES: dict[str, tuple[Callable[[Tensor], Tensor], list[float], list[float]]] = {
    "exp": (torch.exp, [-87.0, 88.37], [88.4, 88.7]),
    "sigmoid": (torch.sigmoid, [-INF, -3.4e38, -87.0, 1e9, 4e26, 3e38, INF], [-1e30, 1e30, 1e38]),
    "silu": (F.silu, [-87.0, -1.0, 4e26], [-88.0, 1e30]),
    "softplus": (F.softplus, [-86.0, -20.0, 1e38], [-87.0]),
    "logsigmoid": (F.logsigmoid, [86.0, 20.0, -1e38], [87.0]),
    "log": (torch.log, [2e-38, 0.5, 2e38], [2.5e38, 3.4e38]),
    "sqrt": (torch.sqrt, [2e-38, 8e37, INF], [9e37, 3.4e38]),
    "rsqrt": (torch.rsqrt, [2e-38, 8e37, INF], [9e37, 3.4e38]),
    "sin": (torch.sin, [-1.0, 2.0], [3.1415925]),
    "hardswish": (F.hardswish, [-2.9, 1.0, 4.0], [-2.99999]),
}


@pytest.mark.parametrize("name", EDGES)
def test_edges(name: str) -> None:
    function, inside, outside = EDGES[name]
    x = torch.tensor(inside + outside)
    program = delegate.to_backend(torch.export.export(Function(function), (x,)), ["xnnpack"])
    assert {n.backend for n in program.report.nodes} == {"xnnpack"}
    results, exact = program(x).double(), function(x.double()).double()
    assert relative_error(results[: len(inside)], exact[: len(inside)], each=True) < 1e-5
    for result, expected in zip(results[len(inside) :], exact[len(inside) :], strict=True):
        with pytest.raises(AssertionError):
            assert relative_error(result, expected, each=True) < 1e-5
