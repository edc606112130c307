"""Matrix products against torch eager."""

import pytest
import torch

from tests.support.kernels import check, sample

aten = torch.ops.aten
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.complex64]

PRODUCTS = [
    (aten.linear.default, (3, 4), (5, 4), (5,)),
    (aten.linear.default, (2, 3, 4), (5, 4), (5,)),
    (aten.linear.default, (2, 3, 4), (5, 4), None),
    (aten.linear.default, (4,), (5, 4), (5,)),
    (aten.linear.default, (3, 4), (4,), None),
    (aten.linear.default, (0, 4), (5, 4), (5,)),
    (aten.linear.default, (3, 0), (5, 0), (5,)),
    (aten.mm.default, (3, 4), (4, 5)),
    (aten.mm.default, (3, 0), (0, 5)),
    (aten.bmm.default, (2, 3, 4), (2, 4, 5)),
    (aten.matmul.default, (4,), (4,)),
    (aten.matmul.default, (4,), (4, 3)),
    (aten.matmul.default, (2, 3, 4), (4,)),
    (aten.matmul.default, (2, 3, 4), (4, 5)),
    (aten.matmul.default, (2, 1, 3, 4), (5, 4, 2)),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", PRODUCTS, ids=str)
def test_product(case, dtype):
    op, *shapes = case
    tensors = [None if s is None else sample(*s, dtype=dtype, scale=1, seed=i) for i, s in enumerate(shapes)]
    check(op, *tensors, atol={torch.bfloat16: 5e-2, torch.float16: 4e-3}.get(dtype))


SUMS = [
    (aten.addmm.default, (5,), (3, 4), (4, 5)),
    (aten.addmm.default, (3, 1), (3, 4), (4, 5)),
    (aten.addmv.default, (3,), (3, 4), (4,)),
    (aten.baddbmm.default, (2, 3, 5), (2, 3, 4), (2, 4, 5)),
    (aten.addbmm.default, (3, 5), (2, 3, 4), (2, 4, 5)),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("beta", "alpha"), [(1, 1), (2, 3), (0, 1)])
@pytest.mark.parametrize("case", SUMS, ids=str)
def test_sum_and_product(case, beta, alpha, dtype):
    op, *shapes = case
    if op is aten.addbmm.default and dtype is torch.complex64 and beta == 0:
        pytest.skip("covered by baddbmm")
    bias, left, right = (sample(*s, dtype=dtype, scale=1, seed=i) for i, s in enumerate(shapes))
    if beta == 0 and dtype.is_floating_point:
        bias = torch.full_like(bias, torch.nan)
    tolerance = {torch.bfloat16: 0.1, torch.float16: 1e-2}.get(dtype)
    check(op, bias, left, right, beta=beta, alpha=alpha, atol=tolerance)


def test_strided():
    left, right = sample(4, 3).t(), sample(10, 8)[::2, ::2].t()
    check(aten.mm.default, left, right, atol=1e-5)
    check(aten.linear.default, sample(2, 4, 3).permute(0, 2, 1), sample(8, 5)[::2].t(), None, atol=1e-5)
    check(aten.bmm.default, sample(4, 3, 2).permute(2, 1, 0), sample(2, 5, 4).transpose(1, 2), atol=1e-5)
    check(aten.matmul.default, sample(4, 3, 2).permute(2, 1, 0), sample(4, 6), atol=1e-5)


def test_products_of_three():
    check(
        aten._trilinear.default,
        sample(3, 4),
        sample(5, 4, 6),
        sample(3, 6, seed=1),
        [1, 3],
        [0],
        [1, 2],
        [2, 3],
        atol=1e-5,
    )


@pytest.mark.parametrize("inner", [1, 7, 1024, 1025, 4000])
def test_products_of_int8(inner):
    """Check exact sums at the ends of the range, for any length."""
    left, right = sample(20, inner, dtype=torch.int8), sample(inner, 16, dtype=torch.int8)
    left[0], right[:, 0], left[1], right[:, 1] = -128, -128, 127, 127
    for a, b in ((left, right), (left.T.contiguous().T, right.T.contiguous().T)):
        check(torch.ops.aten._int_mm.default, a, b)
