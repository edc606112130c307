"""Differences from torch that this backend keeps are as its rows of deviations describe them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import delegate
from delegate.testing import relative_error
from tests.support.cases.kept_differences import INF, NAN, check
from tests.support.functions import Function

F = nn.functional
# At the edges of float32: the operator, inputs whose results are torch's, and inputs whose results are not.
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


EXPECTED: dict[str, tuple[list[float], list[float]]] = {
    "gelu": ([INF, 2e38, 0.8413447], [NAN, INF, 0.8413447]),
    "var_mean": ([NAN, INF], [NAN, NAN]),
    "add, alpha": ([INF, 3.0], [1.9999997e37, 3.0]),
    "quantized": ([127, 2], [0, 2]),
    "long product": ([1513080.625, 816177.625, 816177.625, 1513087.625], [1514794.0, 815479.5, 815479.5, 1514801.0]),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_difference(name: str) -> None:
    check(name, "xnnpack", *EXPECTED[name])
