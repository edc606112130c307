"""Views against torch eager: values, and that they share memory (which `check` asserts)."""

import pytest
import torch

from delegate.errors import KernelError
from delegate.kernels import views
from delegate.kernels.portable import TABLE
from tests.support.kernels import check, sample

aten = torch.ops.aten

VIEWS = [
    (aten.alias.default, (2, 3)),
    (aten.view.default, (2, 3, 4), [6, -1]),
    (aten.view.default, (), [1, 1]),
    (aten.view.default, (0, 3), [3, 0]),
    (aten.permute.default, (2, 3, 4), [2, 0, -2]),
    (aten.permute.default, (), []),
    (aten.slice.Tensor, (5, 6), 1, 1, -1, 2),
    (aten.slice.Tensor, (5, 6), -2, -3, 9223372036854775807),
    (aten.slice.Tensor, (5, 6), 0, -9, None),
    (aten.slice.Tensor, (5, 6), 0, 4, 2),
    (aten.select.int, (5, 6), -1, -2),
    (aten.select.int, (5,), 0, 3),
    (aten.expand.default, (1, 3, 1), [2, -1, -1, 4]),
    (aten.expand.default, (), [2, 3]),
    (aten.expand.default, (1, 3), [0, 3]),
    (aten.squeeze.dim, (1, 3, 1), -1),
    (aten.squeeze.dim, (1, 3, 1), 1),
    (aten.squeeze.dim, (), 0),
    (aten.squeeze.dims, (1, 3, 1), [0, 1, -1]),
    (aten.unsqueeze.default, (2, 3), -1),
    (aten.unsqueeze.default, (2, 3), -3),
    (aten.unsqueeze.default, (), 0),
    (aten.diagonal.default, (3, 4, 5)),
    (aten.diagonal.default, (3, 4, 5), -1, 2, 0),
    (aten.diagonal.default, (3, 4), 9),
    (aten.unfold.default, (2, 9), 1, 3, 2),
    (aten.unfold.default, (9, 2), 0, 4, 1),
    (aten.unfold.default, (), 0, 1, 1),
    (aten.as_strided.default, (4, 6), [2, 3], [6, 2], 1),
    (aten.as_strided.default, (8,), [4, 3], [1, 2]),
    (aten.as_strided.default, (8,), [], []),
    (aten.split_with_sizes.default, (7, 2), [2, 0, 5]),
    (aten.split_with_sizes.default, (2, 7), [3, 4], -1),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64])
@pytest.mark.parametrize("case", VIEWS, ids=str)
def test_view(case, dtype):
    op, shape, *args = case
    check(op, sample(*shape, dtype=dtype), *args)


OF_ROW_MAJOR = (aten.view.default, aten.as_strided.default)


@pytest.mark.parametrize("case", [c for c in VIEWS if len(c[1]) == 2 and c[0] not in OF_ROW_MAJOR], ids=str)
def test_view_of_strided(case):
    op, shape, *args = case
    check(op, sample(*reversed(shape)).t(), *args)


def test_as_strided_reads_in_row_major_order():
    assert views.as_strided(sample(4, 6).t().numpy(), [3, 2], [6, 2], 1) is None


def test_view_that_strides_forbid_requires_a_copy():
    assert views.view(sample(4, 6).t().numpy(), [24]) is None
    with pytest.raises(ValueError, match="reshape"):
        views.view(sample(4, 6).numpy(), [5, 5])


@pytest.mark.parametrize("args", [([5], [1], 8), ([3], [6], 0), ([2], [1], -1)], ids=str)
def test_as_strided_stays_in_its_memory(args):
    with pytest.raises(KernelError, match="strides go outside"):
        views.as_strided(sample(12).numpy(), *args)


def test_complex_views():
    x = sample(3, 4, dtype=torch.complex64)
    for op in (aten.real.default, aten.imag.default, aten.view_as_real.default):
        check(op, x)
        check(op, x.t())
    check(aten.view_as_complex.default, sample(3, 4, 2))
    check(aten.view_as_complex.default, sample(4, 3, 2).transpose(0, 1))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.complex64, torch.uint8, torch.bfloat16])
def test_view_as_dtype(dtype):
    check(aten.view.dtype, sample(3, 4), dtype)


def test_rows_take_every_dtype():
    row = TABLE.rows("aten.permute.default")[0]
    assert row.is_view
    assert {t.name for t in row.dtypes} >= {"bfloat16", "uint16", "complex128", "bool"}
