"""Kernels that make tensors from numbers, against torch eager."""

import pytest
import torch

from tests.support.kernels import check, run, sample

aten = torch.ops.aten
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32]

CREATIONS = [
    (aten.full.default, ([2, 3], 2.0)),
    (aten.full.default, ([], 7)),
    (aten.full.default, ([0, 2], 7)),
    (aten.scalar_tensor.default, (3,)),
    (aten.zeros.default, ([2, 3],)),
    (aten.ones.default, ([2, 3],)),
    (aten.arange.default, (5,)),
    (aten.arange.start, (2, 7)),
    (aten.arange.start_step, (2, 9, 3)),
    (aten.arange.start_step, (9, -2, -2)),
    (aten.arange.start_step, (3, 3, 1)),
    (aten.linspace.default, (-2, 9, 6)),
    (aten.linspace.default, (3, 9, 1)),
    (aten.linspace.default, (3, 9, 0)),
    (aten.linspace.default, (0, 10, 11)),
    (aten.eye.default, (3,)),
    (aten.eye.m, (2, 4)),
    (aten.eye.m, (4, 2)),
    (aten.eye.m, (0, 2)),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CREATIONS, ids=str)
def test_created_tensors(case, dtype):
    op, args = case
    check(op, *args, dtype=dtype, atol=1e-3 if dtype is torch.float16 else None)


LIKE = [
    (aten.full_like.default, (2,)),
    (aten.zeros_like.default, ()),
    (aten.ones_like.default, ()),
    (aten.new_full.default, ([2, 2], 3)),
    (aten.new_zeros.default, ([3],)),
    (aten.new_ones.default, ([3],)),
    (aten.fill.Scalar, (2,)),
]


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool])
@pytest.mark.parametrize("case", LIKE, ids=str)
def test_like(case, dtype):
    op, args = case
    check(op, sample(2, 3, dtype=dtype), *args)


def test_conversions():
    check(aten.full.default, [2], 3.7, dtype=torch.int64)
    check(aten.full.default, [2], 3, dtype=torch.bool)
    check(aten.full.default, [2], True)
    check(aten.full.default, [2], -torch.inf)
    check(aten.full_like.default, sample(2), 1.5, dtype=torch.bfloat16)
    check(aten.fill.Tensor, sample(2, 3), torch.tensor(2))
    check(aten.arange.start_step, 0.5, 3, 0.25)
    check(aten.arange.start_step, 0, 100, 7, dtype=torch.float16)
    check(aten.tril_indices.default, 3, 4, -1)
    check(aten.triu_indices.default, 3, 4, 1)
    check(aten.logspace.default, -1, 2, 7)


@pytest.mark.parametrize(
    "case",
    [(aten.empty.memory_format, [2, 3]), (aten.empty_like.default, sample(2)), (aten.empty_strided.default, [2], [1])],
    ids=lambda c: str(c[0]),
)
def test_empty_is_zero(case):
    op, *args = case
    (result,) = run(op, *args, expected=(op(*args),))
    assert not result.any()
