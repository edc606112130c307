"""Repeats of several dimensions whose numbers are sizes of the call."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.export import Dim, export

import delegate
from delegate.testing import assert_same
from tests.support.functions import Function

X = torch.linspace(-1, 1, 72).reshape(3, 2, 3, 4)

CASES: dict[str, Callable[[Tensor], Tensor]] = {
    "two dimensions": lambda x: x.repeat(x.shape[0], 1, 2, 1),
    "three of three": lambda x: x[:, 0].repeat(x.shape[0], 2, 2),
    "the last three": lambda x: x.repeat(1, x.shape[0], 2, 2),
    "all of four": lambda x: x.repeat(x.shape[0], 2, 2, 2),
    "by one number": lambda x: x.repeat(*[x.shape[0]] * 4),
    "the last by a size": lambda x: x.repeat(1, 2, 2, x.shape[0]),
    "more dimensions": lambda x: x.repeat(2, x.shape[0], 2, 3, 2),
    "five dimensions": lambda x: x[:, :, None].repeat(2, 2, x.shape[0], 2, 2),
    "tile": lambda x: torch.tile(x, (x.shape[0], 3, 2, 2)),
}


@pytest.mark.parametrize("name", CASES)
def test_numbers_of_the_call(name: str) -> None:
    def compute(x: Tensor) -> Tensor:
        return (CASES[name](x.relu()) * 2).exp()

    exported = export(Function(compute), (X,), dynamic_shapes=(({0: Dim("batch", min=2, max=16)},),))
    program = delegate.to_backend(exported, ["openvino"])
    assert any(n.op == "aten.repeat.default" and n.backend == "openvino" for n in program.report.nodes)
    for x in (X, X[:2], torch.cat([X, -X])):
        assert_same(program(x), compute(x), 1e-5)
