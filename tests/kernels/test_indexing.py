"""Indexing kernels against torch eager."""

import numpy as np
import pytest
import torch

from delegate.errors import KernelError
from delegate.kernels.portable import TABLE
from delegate.testing import assert_same
from tests.support.kernels import check, run, sample, schema_arguments, to_runtime

aten = torch.ops.aten
MOVED = [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex64]
SUMMED = [torch.float32, torch.float64, torch.bfloat16, torch.int32]


def index(*values):
    return torch.tensor(values)


GRID = torch.tensor([[0, 2], [1, 0]])
MASK = torch.tensor([True, False, True, True])

READS = [
    (aten.embedding.default, (5, 3), (GRID, 0), {}),
    (aten.embedding.default, (5, 3), (GRID.int(),), {}),
    (aten.embedding.default, (5, 3), (torch.zeros(0, dtype=torch.int64),), {}),
    (aten.index_select.default, (4, 3), (1, index(2, 0, 2)), {}),
    (aten.index_select.default, (4, 3), (-2, torch.tensor(3)), {}),
    (aten.index_select.default, (), (0, index(0)), {}),
    (aten.index.Tensor, (4, 3), ([GRID],), {}),
    (aten.index.Tensor, (4, 3), ([GRID, index(-1, 0)],), {}),
    (aten.index.Tensor, (4, 3, 5), ([None, index(0, 2)],), {}),
    (aten.index.Tensor, (4, 3, 5), ([index(0, 2), None, index(1, 4)],), {}),
    (aten.index.Tensor, (4, 3, 5), ([None, GRID, GRID],), {}),
    (aten.index.Tensor, (4, 3), ([MASK],), {}),
    (aten.index.Tensor, (4, 3), ([MASK, index(0, 1, 2)],), {}),
    (aten.index.Tensor, (3, 4), ([None, MASK],), {}),
    (aten.index.Tensor, (2, 2, 3), ([torch.tensor([[True, False], [False, True]])],), {}),
    (aten.index.Tensor, (4, 3), ([index(1, 2).int()],), {}),
    (aten.masked_select.default, (4, 3), (MASK[:, None],), {}),
    (aten.gather.default, (4, 3), (0, GRID), {}),
    (aten.gather.default, (4, 3), (-1, torch.tensor([[0, 2, 2, 1]])), {}),
    (aten.gather.default, (), (0, torch.tensor(0)), {}),
    (aten.gather.default, (4, 3), (0, torch.zeros(0, 3, dtype=torch.int64)), {}),
    (aten.nonzero.default, (4, 3), (), {}),
    (aten.nonzero.default, (), (), {}),
]


@pytest.mark.parametrize("dtype", MOVED)
@pytest.mark.parametrize("case", READS, ids=lambda c: f"{c[0]}{c[1]}")
def test_read(case, dtype):
    op, shape, args, kwargs = case
    check(op, sample(*shape, dtype=dtype), *args, **kwargs)


WRITES = [
    (aten.index_put.default, (4, 3), ([GRID],), (3,)),
    (aten.index_put.default, (4, 3), ([index(0, 2), index(1, 1)],), (2,)),
    (aten.index_put.default, (4, 3, 5), ([None, index(0, 2)],), (4, 2, 5)),
    (aten.index_put.default, (4, 3), ([MASK],), ()),
    (aten.masked_scatter.default, (4, 3), (MASK[:, None],), (10,)),
    (aten.scatter.src, (4, 3), (0, GRID), (3, 3)),
    (aten.scatter.src, (4, 3), (-1, torch.tensor([[2], [0]])), (2, 1)),
    (aten.scatter.src, (), (0, torch.tensor(0)), ()),
    (aten.scatter.src, (4, 3), (0, torch.zeros(0, dtype=torch.int64)), (3, 3)),
]


@pytest.mark.parametrize("dtype", MOVED)
@pytest.mark.parametrize("case", WRITES, ids=lambda c: f"{c[0]}{c[1]}{c[3]}")
def test_write(case, dtype):
    op, shape, args, source = case
    check(op, sample(*shape, dtype=dtype), *args, sample(*source, dtype=dtype, seed=1))


FILLS = [
    (aten.masked_fill.Scalar, (4, 3), (MASK[:, None], -torch.inf)),
    (aten.masked_fill.Scalar, (4, 3), (torch.tensor(True), 2)),
    (aten.masked_fill.Tensor, (4, 3), (MASK[:, None], torch.tensor(2.5))),
    (aten.scatter.value, (4, 3), (1, GRID, 2)),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("case", FILLS, ids=lambda c: f"{c[0]}{c[1]}")
def test_fill(case, dtype):
    op, shape, args = case
    args = [a.to(dtype) if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args]
    check(op, sample(*shape, dtype=dtype), *args)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
def test_fill_of_integers(dtype):
    check(aten.masked_fill.Scalar, sample(4, 3, dtype=dtype), MASK[:, None], 1)
    check(aten.scatter.value, sample(4, 3, dtype=dtype), 1, GRID, 1)


SUMS = [
    (aten.index_put.default, (4, 3), ([index(0, 2, 0)],), (3, 3), (True,)),
    (aten.index_add.default, (4, 3), (0, index(1, 1, 0)), (3, 3), ()),
    (aten.index_add.default, (4, 3), (-1, torch.tensor(1)), (4, 1), ()),
    (aten.index_add.default, (), (0, index(0)), (), ()),
    (aten.scatter_add.default, (4, 3), (0, GRID), (3, 3), ()),
    (aten.scatter_add.default, (), (0, torch.tensor(0)), (), ()),
    (aten.scatter_add.default, (4, 3), (1, torch.tensor([[0, 0, 0, 1]])), (2, 4), ()),
]


@pytest.mark.parametrize("dtype", SUMMED)
@pytest.mark.parametrize("case", SUMS, ids=lambda c: f"{c[0]}{c[1]}")
def test_sum(case, dtype):
    op, shape, args, source, rest = case
    check(op, sample(*shape, dtype=dtype), *args, sample(*source, dtype=dtype, seed=1), *rest)


def test_index_add_with_alpha():
    check(aten.index_add.default, sample(4, 3), 0, index(1, 1), sample(2, 3, seed=1), alpha=0.5)
    check(
        aten.index_add.default, sample(4, 3, dtype=torch.int64), 0, index(1), sample(1, 3, dtype=torch.int64), alpha=3
    )


@pytest.mark.parametrize("dtype", SUMMED)
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("how", ["sum", "prod", "mean", "amax", "amin"])
def test_scatter_reduce(how, include_self, dtype):
    places = torch.tensor([[0, 1, 0], [0, 0, 2], [0, 1, 2]])
    x, source = sample(4, 3, dtype=dtype), sample(3, 3, dtype=dtype, seed=1)
    check(aten.scatter_reduce.two, x, 0, places, source, how, include_self=include_self)


def test_scatter_with():
    check(aten.scatter.reduce, sample(4, 3), 0, GRID, sample(2, 2), reduce="multiply")
    check(aten.scatter.value_reduce, sample(4, 3), 1, GRID, 2.0, reduce="add")


@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16])
def test_buckets(dtype, right):
    edges, values = torch.tensor([-2, 0, 1, 3], dtype=dtype), sample(3, 4, dtype=dtype)
    check(aten.bucketize.Tensor, values, edges, right=right)
    check(aten.bucketize.Scalar, 1, edges, right=right)
    check(aten.searchsorted.Tensor, edges, values, right=right, out_int32=True)
    check(aten.searchsorted.Tensor, edges, values, side="right" if right else "left")
    rows = sample(3, 5, dtype=dtype)
    ordered, order = rows.sort()
    check(aten.searchsorted.Tensor, ordered, values, right=right)
    check(aten.searchsorted.Tensor, rows, values, right=right, sorter=order)


@pytest.mark.parametrize(
    ("op", "args"),
    [
        (aten.embedding.default, (index(5),)),
        (aten.embedding.default, (index(-1),)),
        (aten.index_select.default, (0, index(9))),
        (aten.gather.default, (0, torch.tensor([[7]]))),
    ],
    ids=str,
)
def test_index_out_of_range(op, args):
    arguments = [to_runtime(a) for a in schema_arguments(op, (sample(5, 3), *args), {})]
    function = TABLE.rows(str(op))[0].function
    with pytest.raises(KernelError, match="out of range"):
        function(*arguments, out=sample(1, 3).numpy())


@pytest.mark.parametrize(
    ("ordered", "values", "out"), [((2, 20), (5,), (5,)), ((3, 0, 0), (5,), (5,)), ((2, 4), (2, 3), (3, 3))], ids=str
)
def test_rows_for_other_values(ordered, values, out):
    """Test requests of a file that torch never makes: the whole result must be overwritten."""
    function = TABLE.rows("aten.searchsorted.Tensor")[0].function
    with pytest.raises(KernelError, match="pass values whose dimensions match those of the sorted rows"):
        function(np.zeros(ordered), np.zeros(values), False, False, None, None, out=np.zeros(out, np.int64))


BAGS = [
    {"mode": 0},
    {"mode": 1},
    {"mode": 2},
    {"mode": 0, "include_last_offset": True},
    {"mode": 1, "padding_idx": 2},
    {"mode": 2, "padding_idx": 2},
    {"mode": 0, "per_sample_weights": sample(6)},
]


@pytest.mark.parametrize("kwargs", BAGS, ids=",".join)
def test_embedding_bag(kwargs):
    offsets = index(0, 2, 2, 6) if "include_last_offset" in kwargs else index(0, 2, 2)
    weight, indices = sample(5, 3), index(4, 2, 0, 1, 2, 2)
    expected = aten._embedding_bag.default(weight, indices, offsets, **kwargs)
    results = run(aten._embedding_bag.default, weight, indices, offsets, expected=expected, **kwargs)
    assert_same(results[0], expected[0])
