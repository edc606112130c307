"""Operators that move or select elements, and the outputs of a region, against eager in any order in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import delegate
from delegate.backends.xnnpack.aot.lowerings.gather_scatter import evenly_repeated, runs
from delegate.testing import assert_same
from tests.backends.xnnpack.harness import AfterConv, assert_as_eager, lower, run
from tests.support.functions import Function

torch.manual_seed(0)
X = torch.linspace(-4, 4, 120).reshape(2, 3, 4, 5)
Y = torch.randn(2, 6, 4, 9)
Y[0, 0, 0, 0], Y[1, 2, 3, 4] = torch.inf, -torch.inf
MASK, C, ROW = torch.rand(4, 9) > 0.5, torch.randn(2, 1, 4, 9), torch.randn(6, 4, 9)
Move = Callable[[Tensor], Any]

# Functions of X, or of another input: views, permutes, aliases, expand and repeat.
VIEWS: dict[str, tuple[Move, Tensor]] = {
    "views": (lambda x: (x.view(6, 20), x.view(2, -1, 2), x.flatten(1), x.reshape(-1)), X),
    "unsqueeze": (lambda x: (x.unsqueeze(-1) + 1, x.unsqueeze(0) * 2), X),
    "squeeze": (lambda x: (x.squeeze() + 1, x.squeeze(-3) + 1), X[:, :1]),
    "squeeze of more": (lambda x: x.squeeze(1) + 1, X),
    "squeeze of two": (lambda x: x.squeeze((1, 2)) + 1, X[:, :1, :1]),
    "permutes": (lambda x: (x.permute(3, 0, -2, 1), x.transpose(-1, 1)), X),
    "permute twice": (lambda x: x.permute(1, 2, 3, 0).permute(2, 0, 3, 1) + 1, X),
    "t": (lambda x: x.t(), X[0, 0]),
    "permute, view": (lambda x: x.permute(0, 2, 1, 3).reshape(2, 4, 15), X),
    "transpose, view": (lambda x: x.transpose(0, 1).reshape(3, 2, 20), X),
    "copies": (lambda x: (x.transpose(1, 2).clone() + 1, x.transpose(1, 2).contiguous().view(2, -1)), X),
    "the input": (lambda x: x.view(2, 3, 4, 5), X),
    "expand": (lambda x: x.expand(7, 5).neg(), torch.linspace(-1, 1, 5)),
    "expand the middle": (lambda x: x[:, :1].expand(2, 3, 4, 5).exp(), X),
    "expand two": (lambda x: x[:1, :, :1].expand(2, -1, 4, 5).exp(), X),
    "expand, permuted": (lambda x: x[:, :1].permute(0, 2, 3, 1).expand(-1, -1, -1, 6).exp(), X),
    "expand into a sum": (lambda x: x[:, :1].expand(2, 3, 4, 5) + x, X),
    "expand into both": (lambda x: x[:, :1].expand(2, 3, 4, 5) + x[:, 1:2].expand(2, 3, 4, 5), X),
    "expand that is an output": (lambda x: (x[:, :1].expand(2, 3, 4, 5),), X),
    "repeat": (lambda x: (x.repeat(1, 2, 1, 3), x.tile(3)), X),
    "repeat of new dimensions": (lambda x: x.repeat(2, 1, 3), X[0, 0]),
    "repeat of one": (lambda x: x.repeat(1, 4, 1, 1), X[:, :1]),
    "repeat, permuted": (lambda x: x.permute(0, 2, 3, 1).repeat(1, 1, 2, 2), X),
}
# Functions of Y whose results are equal to eager's, infinities included.
PARTS: dict[str, Move] = {
    "slice": lambda x: x[:, 1:4],
    "slices from the end": lambda x: (x[..., -3:-1], x[:, 2:100]),
    "step 2": lambda x: (x[..., ::2], x[..., 1::2], x[:, ::2], x[:, 1::2]),
    "step 3": lambda x: (x[..., 1::3], x[..., 2:8:3], x[:, ::3], x[..., ::5], x[..., -7::4]),
    "select": lambda x: (x[0], x[:, -1], x.select(-1, 3)),
    "split": lambda x: x.split(2, 1),
    "split unevenly": lambda x: x.split(4, -1),
    "split by sizes": lambda x: x.split([1, 2, 3], 1)[1:],
    "chunks": lambda x: (*x.chunk(2, 1), *x.chunk(6, 1), x.unbind(2)[2]),
    "cat": lambda x: torch.cat([x, x.neg()], 1),
    "cat of many": lambda x: torch.cat([x * (i + 1) for i in range(13)], -1),
    "cat of constants": lambda x: torch.cat([C, x, C], 1),
    "cat of one": lambda x: torch.cat([x.neg()]),
    "cat of orders": lambda x: torch.cat([x, x.permute(0, 1, 3, 2).neg().permute(0, 1, 3, 2)], 2),
    "stack": lambda x: torch.stack([x, x.neg()], 2),
    "index": lambda x: (x[:, [2, 0, 1]], x[..., [0, 3, -1]]),
    "index_select": lambda x: x.index_select(1, torch.tensor([5, 4, 4, 4, 0, 1])),
    "index by a matrix": lambda x: x[:, torch.tensor([[0, 1], [2, 3], [4, 5]])],
    "repeat_interleave": lambda x: x[:, torch.arange(6).repeat_interleave(2)],
    "flip": lambda x: x.flip(1, -1),
    "roll": lambda x: x.roll((1, -2), (1, 3)),
    "roll, flat": lambda x: x.roll(5),
    "slice_scatter": lambda x: x.slice_scatter(x[:, 3:5], 1, 1, 3),
    "slice_scatter from the end": lambda x: x.slice_scatter(x[:, :2].neg(), 1, -2),
    "slice_scatter of all": lambda x: x.slice_scatter(x.neg(), 1),
    "slice_scatter beyond": lambda x: x.slice_scatter(x[..., 2:].neg(), -1, 2, 100),
    "slice_scatter by steps": lambda x: x.slice_scatter(x[..., :5].neg(), 3, step=2).slice_scatter(C, 1, 1, None, 5),
    "select_scatter": lambda x: (x.select_scatter(x[:, 0].neg(), 1, -2), x.select_scatter(ROW, 0, 1).neg()),
    "masked_fill": lambda x: (x.masked_fill(MASK, -torch.inf), x.masked_fill(MASK, 2.5)),
    "where constant": lambda x: torch.where(MASK, C[:, :, :1], x),
    "where two": lambda x: torch.where(MASK, x, x.roll(1, 1)),
}
IN_NHWC = ("slice", "step 2", "select", "slice_scatter", "select_scatter", "split", "split by sizes", "cat",
           "cat of constants", "index", "roll", "masked_fill")  # fmt: skip
# Functions of a map in NHWC, and the transposes beside the one of the convolution's input.
AFTER: dict[str, tuple[Move, int]] = {
    "flatten(2)": (lambda x: x.flatten(2).transpose(1, 2), 0),
    "to tokens and back": (
        lambda x: x.flatten(2).transpose(1, 2).add(1).transpose(1, 2).reshape(2, 6, 4, 5).relu().permute(0, 2, 3, 1),
        0,
    ),
    "flatten(1)": (lambda x: x.flatten(1), 1),
    "split of channels": (lambda x: x.view(2, 2, 3, 4, 5).permute(0, 3, 4, 1, 2), 0),
    "squeeze": (lambda x: x.mean((2, 3), keepdim=True).squeeze(-1).squeeze(-1), 0),
    "channels last": (lambda x: x.permute(0, 2, 3, 1) * 2, 0),
    "repeat": (lambda x: x.repeat(1, 2, 2, 1).permute(0, 2, 3, 1), 0),
    "expand": (lambda x: x.mean(1, keepdim=True).expand(-1, 6, -1, -1).exp(), 1),
    "unsqueeze": (lambda x: x.unsqueeze(2).permute(0, 2, 3, 4, 1), 0),
    "permuted results": (lambda x: (x.permute(0, 2, 3, 1), x.flatten(2).transpose(1, 2)), 0),
    "readers of one order": (lambda x: (x.flatten(1), x, x.reshape(12, 20)), 1),
    "a value that is an output twice": (lambda x: (x, x.permute(0, 2, 3, 1), x.permute(0, 2, 3, 1)), 1),
    "dimensions of size 1": (lambda x: torch.flatten(nn.functional.adaptive_avg_pool2d(x, 1), 1), 0),
    **{name: (PARTS[name], 4) for name in IN_NHWC},
}


@pytest.mark.parametrize("name", VIEWS)
def test_views(name: str) -> None:
    function, x = VIEWS[name]
    run(Function(function), (x,))


@pytest.mark.parametrize("name", PARTS)
def test_parts(name: str) -> None:
    run(Function(PARTS[name]), (Y,), 0, 0)


@pytest.mark.parametrize("name", AFTER)
def test_after_a_convolution(name: str) -> None:
    """Check that NHWC needs transposes of the input and of outputs only."""
    function, transposes = AFTER[name]
    lowered = run(AfterConv(function), (torch.randn(2, 3, 4, 9) if name in IN_NHWC else X,), 1e-4, 1e-5)
    assert lowered.transposes <= 1 + min(transposes, len(lowered.region.outputs))


class Tokens(nn.Module):
    """A class token before a sequence, as vision transformers have it."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.linspace(0, 1, 5).reshape(1, 1, 5))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)


def test_class_token_of_a_dynamic_batch() -> None:
    lowered = lower(Tokens(), (torch.randn(2, 4, 5),), {"x": {0: Dim("n", min=2, max=64)}})
    for n in (2, 6):
        x = torch.randn(n, 4, 5)
        x[0, 0, 0] = torch.inf
        assert_as_eager(Tokens(), (x,), lowered, 0, 0)


def assigned(key: Any, value: Any) -> Move:
    """`y[key] = value` of a new y, as models write it."""

    def function(x: Tensor) -> Tensor:
        y = x * 2
        y[key] = value(x) if callable(value) else value
        return y + 1

    return function


ALL = slice(None)
ASSIGNED: dict[str, Move] = {
    "slice": assigned((ALL, slice(1, 3)), lambda x: x[:, 3:5].neg()),
    "repeated": assigned((ALL, slice(-2, None)), lambda x: x[:, :1].neg()),
    "all": assigned(ALL, lambda x: x.neg()),
    "number": assigned((..., slice(2, 100)), 1.5),
    "every second": assigned((..., slice(None, None, 2)), lambda x: x[..., :5].neg()),
    "row": assigned((ALL, -2), lambda x: x[:, 0].neg()),
    "element": assigned((0, 1, 2), lambda x: x[1, 1, 1].neg()),
    "as it came": assigned((ALL, 1), lambda x: x[:, 2]),
}


@pytest.mark.parametrize("name", ASSIGNED)
def test_assignment_is_one_partition(name: str) -> None:
    function = Function(ASSIGNED[name])
    program = delegate.to_backend(torch.export.export(function, (Y,)), "xnnpack")
    assert len(program.report.partitions) == 1
    assert "aten.copy.default" not in [n.op for n in program.report.nodes]
    assert_same(program(Y), function(Y), tolerance=0)


@pytest.mark.parametrize(
    ("indices", "expected", "times"),
    [
        ([0, 1, 2], [(0, 3, 1)], 1),
        ([2, 1, 0], [(2, 1, 1), (1, 1, 1), (0, 1, 1)], 1),
        ([0, 2, 4, 1], [(0, 3, 2), (1, 1, 1)], 1),
        ([3, 3], [(3, 2, 0)], 2),
        ([0, 0, 1, 1], [(0, 2, 0), (1, 2, 0)], 2),
    ],
)
def test_runs_of_indices(indices: list[int], expected: list[tuple[int, int, int]], times: int) -> None:
    assert runs(indices) == expected
    assert [start + i * step for start, count, step in expected for i in range(count)] == indices
    assert evenly_repeated(indices) == times


class Table(nn.Module):
    """A sum of which both operands have fewer dimensions than the next operator counts on; and a constant result."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(1, 2, 32))

    def forward(self, x: Tensor) -> Any:
        return *torch.split(self.table + x.squeeze(0), 8, 2), self.table * 2, x, x + 1


def test_inputs_and_constants_among_outputs() -> None:
    run(Table(), (torch.randn(1, 2, 32),))


@pytest.mark.filterwarnings("ignore:The tensor attribute:UserWarning")  # of torch, on its own weights
@pytest.mark.parametrize("recurrent", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers(recurrent: type[nn.Module]) -> None:
    run(recurrent(4, 8, num_layers=2, bidirectional=True), (torch.randn(5, 2, 4),))
