"""Sorts of long lines: equal elements keep their order, NaN counts as the greatest; sums of rows by index."""

import pytest
import torch

from delegate.errors import KernelError
from delegate.testing import assert_same
from tests.support.kernels import check, run, sample

A = torch.ops.aten
DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
]  # fmt: skip


def lines(dtype: torch.dtype) -> torch.Tensor:
    """Return lines with many equal elements; for floats also with both zeros, infinities and NaN of both signs."""
    x = sample(3, 70, dtype=dtype, scale=1.0)
    if dtype.is_floating_point:
        x = (x * 2).round()
        x[0, 5:12] = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan"), -float("nan"), -0.0]).to(dtype)
    return x


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_stable(dtype, descending):
    x = lines(dtype)
    for line, dim in ((x, -1), (x.T, 0), (x[:, ::2], 1), (x.reshape(-1), 0), (x[:0], 1), (x.reshape(3, 7, 10), 1)):
        check(A.sort.stable, line, stable=True, dim=dim, descending=descending)


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d is not torch.bool], ids=str)
def test_selections(dtype):
    """Compare only values, because torch may return any of equal elements."""
    x = torch.arange(210).reshape(3, 70).remainder(71).to(dtype).mul(1)
    x = x[:, torch.randperm(70, generator=torch.Generator().manual_seed(0))]
    for dim, line in ((1, x), (0, x.T)):
        check(A.median.dim, line, dim, True)
        for k in (1, 3, 40, 70):
            check(A.kthvalue.default, line, k, dim)
            check(A.topk.default, line, k, dim, k % 2 == 0)
    if dtype not in (torch.float16, torch.bfloat16):
        check(A.median.default, x)


@pytest.mark.parametrize("width", [1, 3, 17, 200])
@pytest.mark.parametrize("places", [5, 60, 4000])
def test_sums_of_rows(places, width):
    """Use few and many rows, narrow and wide ones, each named once, often or never."""
    generator = torch.Generator().manual_seed(0)
    index = torch.randint(0, places, (900,), generator=generator)
    index[:300] = places // 2
    source = sample(900, width, scale=1.0)
    out = sample(places, width, scale=1.0)
    check(A.index_add.default, out, 0, index, source, rtol=1e-4, atol=1e-4)
    check(A.index_add.default, out.T, 1, index, source.T, rtol=1e-4, atol=1e-4)
    check(A.index_put.default, out, [index - places], source, True, rtol=1e-4, atol=1e-4)
    wide = index[:, None].expand(900, width)
    check(A.scatter_add.default, out, 0, wide, source, rtol=1e-4, atol=1e-4)
    for how in ("sum", "mean", "amax", "amin"):
        check(A.scatter_reduce.two, out, 0, wide, source, how, include_self=how != "mean", rtol=1e-4, atol=1e-4)
    order = index.sort().values
    offsets = torch.searchsorted(order, torch.arange(places))
    for mode in (0, 1, 2):
        bags = (sample(50, width), order.remainder(50), offsets, False, mode)
        expected = A._embedding_bag_forward_only.default(*bags)
        results = run(A._embedding_bag_forward_only.default, *bags, expected=expected)
        assert_same(results[0], expected[0])


def test_sums_of_rows_keep_what_is_not_finite():
    source, out = sample(100, 40), sample(6, 40)
    source[3, 5], source[50, 7] = float("nan"), float("inf")
    check(A.index_add.default, out, 0, torch.arange(100).remainder(5), source, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("offsets", [[0, 5, 3], [1, 2], [0, 20], [0, -1]], ids=str)
def test_offsets_of_bags_that_are_wrong(offsets):
    bags = (sample(6, 4), torch.zeros(10, dtype=torch.int64), torch.tensor(offsets))
    expected = (torch.empty(len(offsets), 4), *[torch.zeros(len(offsets), dtype=torch.int64)] * 3)
    with pytest.raises(KernelError, match="the offsets of bags run from"):
        run(A._embedding_bag_forward_only.default, *bags, expected=expected)
