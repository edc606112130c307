"""Extremes of int64 beyond 32 bits, of which ONNX Runtime's CPU kernels compare the lower half."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from delegate.testing import assert_same
from tests.support.cases.casts import lowered, ran

X = torch.tensor([0, 1, -1, 2**31 - 1, 2**31, -(2**31) - 1, 2**53 + 1, 2**63 - 1])
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "maximum": lambda x: torch.maximum(x, torch.tensor(2)),
    "minimum": lambda x: torch.minimum(x, x.flip(0)),
    "clamp": lambda x: x.clamp(-1, 16777217),
    "clamp_min": lambda x: x.clamp(min=2),
    "clamp_max": lambda x: x.clamp(max=2),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_extremes_of_int64(name: str) -> None:
    program = lowered(FUNCTIONS[name], X, "onnxruntime")
    assert {n.backend for n in program.report.nodes if n.op != "aten.flip.default"} == {"portable"}
    assert_same(program(X), FUNCTIONS[name](X))


@pytest.mark.parametrize("name", ["minimum", "clamp", "clamp_min", "clamp_max"])
def test_extremes_of_int32_run(name: str) -> None:
    x = X[:4].int()
    program = lowered(FUNCTIONS[name], x, "onnxruntime")
    assert ran(program) == {"onnxruntime"}
    assert_same(program(x), FUNCTIONS[name](x))
