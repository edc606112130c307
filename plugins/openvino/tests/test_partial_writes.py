"""Writes to parts of a tensor, one after the other, as unrolled recurrent layers have them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import delegate
from tests.support.functions import Function
from tests.support.lowering import assert_runs, assert_same, compiled


def _written(whole: Tensor, first: int | None, end: int | None) -> Tensor:
    """Write to a part of the columns."""
    return torch.slice_scatter(whole, whole[:, first:end].sigmoid(), 1, first, end)


def _with_step(whole: Tensor, part: Tensor, first: int) -> Tensor:
    """Write to every second column, which OpenVINO does not convert twice."""
    return torch.slice_scatter(whole, part, 1, first, 6, 2)


class Steps(nn.Module):
    """A recurrent layer, unrolled."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(6, 8)

    def forward(self, x: Tensor) -> Tensor:
        state = x @ x.new_ones(6, 8)
        for _ in range(3):
            state = self.cell(x, state)
        return state


CASES: dict[str, Callable[[Tensor], Tensor]] = {
    "the middle, then the end": lambda x: _written(_written(x * 2, 1, 3), 3, 6),
    "from the end": lambda x: _written(_written(x * 2, -2, None), -5, -3),
    "beyond the end": lambda x: _written(_written(x * 2, 4, 99), None, 2),
    "all": lambda x: _written(x * 2, None, None),
    "two dimensions": lambda x: torch.slice_scatter(_written(x * 2, 1, 3), x[:1].tanh(), 0, 1, 2),
    "rows": lambda x: torch.select_scatter(torch.select_scatter(x * 2, x[:, 1], 1, 3), x[:, 0].tanh(), 1, -1),
    "in place": lambda x: (y := x * 2, y[:, 1:3].sigmoid_(), y[:, 2:].tanh_(), y[:, 0].neg_())[0] + 1,
}
SHAPES = {"static": None, "dynamic": ({0: torch.export.Dim("batch", min=2, max=64)},)}


@pytest.mark.parametrize("sizes", SHAPES)
@pytest.mark.parametrize("case", [*CASES, "a recurrent layer"])
def test_as_in_eager(case: str, sizes: str) -> None:
    module = Steps() if case == "a recurrent layer" else Function(CASES[case])
    shapes = SHAPES[sizes] if case == "a recurrent layer" or not SHAPES[sizes] else (SHAPES[sizes],)
    program = compiled(module, (torch.randn(4, 6),), backends="openvino", dynamic_shapes=shapes)
    assert_runs(program, "openvino")
    with torch.no_grad():
        for rows in (4, 7) if sizes == "dynamic" else (4,):
            x = torch.randn(rows, 6)
            assert_same(program(x), module(x), 1e-6)


@pytest.mark.parametrize(("sizes", "why"), [("static", "SliceAssign unconverted"), ("dynamic", "not all inputs")])
def test_a_refusal_of_the_frontend_is_a_sentence(sizes: str, why: str) -> None:
    module = Function(lambda x: _with_step(_with_step(x, x[:, :3] * 2, 0), x[:, :3].sigmoid(), 1))
    shapes = SHAPES[sizes] and (SHAPES[sizes],)
    exported = torch.export.export(module, (torch.randn(4, 6),), dynamic_shapes=shapes)
    program = delegate.to_backend(exported, "openvino")
    messages = {n.verdicts["openvino"].message for n in program.report.nodes if n.backend != "openvino"}
    assert messages
    for message in messages:
        assert message.startswith("OpenVINO does not convert it: ")
        assert why in message
        assert "src/" not in message
        assert "::" not in message
