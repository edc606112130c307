"""Arguments that are called like Python's own functions, such as "input", keep their place through all copies."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import delegate
from tests.support.lowering import assert_runs, assert_same


class Shadowing(nn.Module):
    def forward(self, input: torch.Tensor, max: torch.Tensor, input_1: torch.Tensor, id: int) -> torch.Tensor:
        return input * max - input_1 * id


@pytest.mark.parametrize("backends", [[], "xnnpack"], ids=["portable", "xnnpack"])
def test_shadowing_names(backends: str | list[str]) -> None:
    model, arguments = Shadowing(), (torch.full((2, 3), 5.0), torch.full((2, 3), 7.0), torch.ones(2, 3), 3)
    program = delegate.to_backend(torch.export.export(model, arguments), backends)
    if backends:
        assert_runs(program, "xnnpack")
    assert torch.equal(program(*arguments), model(*arguments))
    assert [i.name for i in program.program.methods[0].inputs] == ["input", "max", "input_1", "id"]


@pytest.mark.parametrize("backends", [[], "xnnpack"], ids=["portable", "xnnpack"])
def test_sequential(backends: str | list[str]) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 4), nn.ReLU()).eval(), torch.randn(2, 8)
    program = delegate.to_backend(torch.export.export(model, (x,)), backends)
    if backends:
        assert_runs(program, "xnnpack")
    assert_same(program(x), model(x))
