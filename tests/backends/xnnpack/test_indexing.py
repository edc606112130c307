"""Slices, splits, concatenation, constant indices and masks against eager, in any order in memory."""

import pytest
import torch

import delegate
from delegate.backends.xnnpack.aot.lowerings.gather_scatter import evenly_repeated, runs
from delegate.testing import assert_same
from tests.backends.xnnpack.harness import AfterConv, run
from tests.support.functions import Function

torch.manual_seed(0)
X = torch.randn(2, 6, 4, 9)
X[0, 0, 0, 0], X[1, 2, 3, 4] = torch.inf, -torch.inf
MASK = torch.rand(4, 9) > 0.5
C = torch.randn(2, 1, 4, 9)
ROW = torch.randn(6, 4, 9)


# All of these move elements: the results are equal to eager's, infinities included.
SAME = {
    "slice": lambda x: x[:, 1:4],
    "slice_negative": lambda x: x[..., -3:-1],
    "slice_beyond": lambda x: x[:, 2:100],
    "step_2": lambda x: (x[..., ::2], x[..., 1::2], x[:, ::2], x[:, 1::2]),
    "step_3": lambda x: (x[..., 1::3], x[..., 2:8:3], x[:, ::3], x[..., ::5], x[..., -7::4]),
    "select": lambda x: (x[0], x[:, -1], x.select(-1, 3)),
    "split_even": lambda x: x.split(2, 1),
    "split_uneven": lambda x: x.split(4, -1),
    "split_sizes": lambda x: x.split([1, 2, 3], 1)[1:],
    "chunk": lambda x: x.chunk(2, 1),
    "chunk_many": lambda x: x.chunk(6, 1),
    "unbind": lambda x: x.unbind(2)[2],
    "cat": lambda x: torch.cat([x, x.neg()], 1),
    "cat_many": lambda x: torch.cat([x * (i + 1) for i in range(13)], -1),
    "cat_constant": lambda x: torch.cat([C, x, C], 1),
    "cat_one": lambda x: torch.cat([x.neg()]),
    "cat_of_orders": lambda x: torch.cat([x, x.permute(0, 1, 3, 2).neg().permute(0, 1, 3, 2)], 2),
    "stack": lambda x: torch.stack([x, x.neg()], 2),
    "index_list": lambda x: (x[:, [2, 0, 1]], x[..., [0, 3, -1]]),
    "index_select": lambda x: x.index_select(1, torch.tensor([5, 4, 4, 4, 0, 1])),
    "index_matrix": lambda x: x[:, torch.tensor([[0, 1], [2, 3], [4, 5]])],
    "repeat_interleave": lambda x: x[:, torch.arange(6).repeat_interleave(2)],
    "flip": lambda x: x.flip(1, -1),
    "roll": lambda x: x.roll((1, -2), (1, 3)),
    "roll_flat": lambda x: x.roll(5),
    "slice_scatter": lambda x: x.slice_scatter(x[:, 3:5], 1, 1, 3),
    "slice_scatter_negative": lambda x: x.slice_scatter(x[:, :2].neg(), 1, -2),
    "slice_scatter_all": lambda x: x.slice_scatter(x.neg(), 1),
    "slice_scatter_beyond": lambda x: x.slice_scatter(x[..., 2:].neg(), -1, 2, 100),
    "slice_scatter_step": lambda x: x.slice_scatter(x[..., :5].neg(), 3, step=2).slice_scatter(C, 1, 1, None, 5),
    "select_scatter": lambda x: (x.select_scatter(x[:, 0].neg(), 1, -2), x.select_scatter(ROW, 0, 1).neg()),
    "masked_fill": lambda x: x.masked_fill(MASK, -torch.inf),
    "masked_value": lambda x: x.masked_fill(MASK, 2.5),
    "where_constant": lambda x: torch.where(MASK, C[:, :, :1], x),
    "where_two": lambda x: torch.where(MASK, x, x.roll(1, 1)),
}


@pytest.mark.parametrize("name", SAME)
def test_same_as_eager(name):
    run(Function(SAME[name]), (X,), 0, 0)


NHWC = [
    "slice",
    "step_2",
    "select",
    "slice_scatter",
    "select_scatter",
    "split_even",
    "split_sizes",
    "cat",
    "cat_constant",
    "index_list",
    "roll",
    "masked_value",
]


@pytest.mark.parametrize("name", NHWC)
def test_after_convolution(name):
    """Check that NHWC needs transposes of the input and of each output only."""
    module = AfterConv(SAME[name])
    lowered = run(module, (torch.randn(2, 3, 4, 9),), 1e-4, 1e-5)
    assert lowered.transposes <= 1 + len(lowered.region.outputs)


def assigned(key, value):
    """`y[key] = value` of a new y, as models write it."""

    def function(x):
        y = x * 2
        y[key] = value(x) if callable(value) else value
        return y + 1

    return function


ALL = slice(None)
ASSIGNED = {
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
def test_assignment_is_one_partition(name):
    function = Function(ASSIGNED[name])
    program = delegate.to_backend(torch.export.export(function, (X,)), "xnnpack")
    assert len(program.report.partitions) == 1
    assert "aten.copy.default" not in [n.op for n in program.report.nodes]
    assert_same(program(X), function(X), tolerance=0)


@pytest.mark.parametrize(
    ("indices", "expected"),
    [
        ([0, 1, 2], [(0, 3, 1)]),
        ([2, 1, 0], [(2, 1, 1), (1, 1, 1), (0, 1, 1)]),
        ([0, 2, 4, 1], [(0, 3, 2), (1, 1, 1)]),
        ([3, 3], [(3, 2, 0)]),
    ],
)
def test_runs(indices, expected):
    assert runs(indices) == expected
    assert [start + i * step for start, count, step in expected for i in range(count)] == indices


@pytest.mark.parametrize(("indices", "times"), [([0, 0, 1, 1], 2), ([0, 0, 1], 1), ([5, 5, 5], 3), ([0, 1, 1, 2], 1)])
def test_evenly_repeated(indices, times):
    assert evenly_repeated(indices) == times
