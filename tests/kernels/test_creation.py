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
    (aten.arange.start_step, (2, 9, 3)),
    (aten.arange.start_step, (9, -2, -2)),
    (aten.arange.start_step, (3, 3, 1)),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CREATIONS, ids=str)
def test_created_tensors(case, dtype):
    op, args = case
    check(op, *args, dtype=dtype, atol=1e-3 if dtype is torch.float16 else None)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool])
@pytest.mark.parametrize("op", [aten.full_like.default, aten.fill.Scalar], ids=str)
def test_like(op, dtype):
    check(op, sample(2, 3, dtype=dtype), 2)


def test_conversions():
    check(aten.full.default, [2], 3.7, dtype=torch.int64)
    check(aten.full.default, [2], 3, dtype=torch.bool)
    check(aten.full.default, [2], True)
    check(aten.full.default, [2], -torch.inf)
    check(aten.full_like.default, sample(2), 1.5, dtype=torch.bfloat16)
    check(aten.arange.start_step, 0.5, 3, 0.25)
    check(aten.arange.start_step, 0, 100, 7, dtype=torch.float16)
    check(aten.tril_indices.default, 3, 4, -1)
    check(aten.triu_indices.default, 3, 4, 1)


EMPTY = [(aten.empty.memory_format, [2, 3]), (aten.empty_strided.default, [2], [1])]


@pytest.mark.parametrize("case", EMPTY, ids=lambda c: str(c[0]))
def test_empty_is_zero(case):
    op, *args = case
    (result,) = run(op, *args, expected=(op(*args),))
    assert not result.any()
