"""Tensors made from numbers, copies, concatenations and rearrangements against torch eager."""

import pytest
import torch
from torch.export import Dim

from delegate.errors import KernelError
from tests.support.functions import Function
from tests.support.kernels import check, run, sample
from tests.support.lowering import compiled

aten = torch.ops.aten
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex64]

COPIES = [
    (aten.clone.default, (2, 3)),
    (aten.clone.default, ()),
    (aten.lift_fresh_copy.default, (2, 3)),
    (aten.flip.default, (2, 3, 4), [0, -1]),
    (aten.flip.default, (3,), []),
    (aten.roll.default, (3, 4), [2], [-1]),
    (aten.roll.default, (3, 4), [2, -1], [0, 1]),
    (aten.roll.default, (3, 4), [5]),
    (aten.repeat.default, (2, 3), [2, 1, 3]),
    (aten.repeat.default, (), [2]),
    (aten.repeat.default, (2, 3), [0, 2]),
    (aten.tril.default, (2, 4, 5)),
    (aten.tril.default, (4, 3), -1),
    (aten.triu.default, (2, 4, 5), 1),
    (aten.triu.default, (4, 3), -2),
    (aten.view_copy.default, (2, 3), [3, 2]),
    (aten.permute_copy.default, (2, 3, 4), [2, 0, 1]),
    (aten.slice_copy.Tensor, (5, 3), 0, 1, 4, 2),
    (aten.select_copy.int, (5, 3), 1, -1),
    (aten.unbind_copy.int, (3, 2)),
    (aten.as_strided_copy.default, (3, 4), [2, 2], [4, 1], 1),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", COPIES, ids=str)
def test_copy(case, dtype):
    op, shape, *args = case
    check(op, sample(*shape, dtype=dtype), *args)


def test_copy_of_strided():
    check(aten.view_copy.default, sample(3, 4).t(), [6, 2])
    check(aten.repeat.default, sample(3, 4).t(), [2, 2])
    check(aten.clone.default, sample(4)[:1].expand(3))
    check(aten.roll.default, sample(3, 4).t(), [5])


SCATTERS = [
    (aten.slice_scatter.default, (5, 3), (2, 3), 0, 1, 4, 2),
    (aten.slice_scatter.default, (3, 5), (3, 2), -1, -2),
    (aten.select_scatter.default, (5, 3), (5,), -1, -2),
    (aten.select_scatter.default, (5,), (), 0, 2),
    (aten.diagonal_scatter.default, (4, 5), (4,), 1),
    (aten.diagonal_scatter.default, (4, 5), (3,), -1, 0, 1),
    (aten.as_strided_scatter.default, (4, 5), (2, 2), [2, 2], [5, 1], 3),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", SCATTERS, ids=str)
def test_scatter_into_view(case, dtype):
    op, shape, source, *args = case
    check(op, sample(*shape, dtype=dtype), sample(*source, dtype=dtype, seed=1), *args)


@pytest.mark.parametrize("size", [2, 9])
def test_a_source_that_does_not_fit_is_refused(size):
    """Use sizes that the export did not see: torch refuses them; NumPy would broadcast."""
    module = Function(lambda x, y: torch.slice_scatter(x, y, 0, 3, 6))
    program = compiled(module, (torch.randn(4), torch.randn(1)), dynamic_shapes=(({0: Dim.AUTO}, None),))
    with pytest.raises(KernelError, match=r"a source of shape \[1\] does not fit a part of shape"):
        program(torch.randn(size), torch.randn(1))


JOINS = [
    (aten.cat.default, [(2, 3), (4, 3)], 0),
    (aten.cat.default, [(2, 3), (2, 1), (2, 0)], -1),
    (aten.cat.default, [(0,), (2, 3)], 1),
    (aten.cat.default, [(0,), (0,)], 0),
]


@pytest.mark.parametrize("dtypes", [(d, d) for d in DTYPES] + [(torch.int32, torch.bfloat16), (torch.bool, torch.int8)])
@pytest.mark.parametrize("case", JOINS, ids=str)
def test_join(case, dtypes):
    op, shapes, dim = case
    check(op, [sample(*s, dtype=dtypes[i % 2], seed=i) for i, s in enumerate(shapes)], dim)


@pytest.mark.parametrize("source", [torch.int64, torch.bfloat16, torch.bool, torch.float64])
@pytest.mark.parametrize("target", [torch.float32, torch.bfloat16, torch.int32])
def test_copy_converts(target, source):
    check(aten.copy.default, sample(2, 3, dtype=target), sample(3, dtype=source))


def test_complex_parts():
    check(aten.complex.default, sample(3), sample(3, seed=1))
    check(aten.complex.default, sample(3, 1), sample(4, seed=1))
    check(aten.polar.default, sample(3).abs(), sample(3, seed=1))
    for dtype in (torch.complex64, torch.float32, torch.int64):
        check(aten.angle.default, sample(3, 4, dtype=dtype) - 1)


def test_repeat_positions():
    check(aten.repeat_interleave.Tensor, torch.tensor([2, 0, 1]))


NUMBERS = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32]
CREATIONS = [
    (aten.full.default, ([2, 3], 2.0)),
    (aten.full.default, ([], 7)),
    (aten.full.default, ([0, 2], 7)),
    (aten.scalar_tensor.default, (3,)),
    (aten.arange.start_step, (2, 9, 3)),
    (aten.arange.start_step, (9, -2, -2)),
    (aten.arange.start_step, (3, 3, 1)),
]


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("case", CREATIONS, ids=str)
def test_created_tensors(case, dtype):
    op, args = case
    check(op, *args, dtype=dtype, atol=1e-3 if dtype is torch.float16 else None)


@pytest.mark.parametrize("dtype", [*NUMBERS, torch.bool])
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
