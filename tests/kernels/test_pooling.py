"""Pooling kernels against torch eager."""

import pytest
import torch

from tests.support.kernels import check, sample

aten = torch.ops.aten

# rank, shape, kernel, stride, padding, dilation, ceil mode
WINDOWS = [
    (1, (2, 3, 11), [3], [2], [1], [1], False),
    (1, (3, 11), [4], [], [0], [2], True),
    (2, (2, 3, 11, 12), [3, 3], [2, 2], [1, 1], [1, 1], False),
    (2, (2, 3, 11, 12), [3, 2], [], [0, 0], [1, 1], False),
    (2, (3, 11, 12), [3, 3], [2, 2], [1, 1], [1, 1], True),
    (2, (2, 3, 11, 12), [3], [2], [1], [2], True),
    (2, (2, 3, 7, 7), [7, 7], [7, 7], [0, 0], [1, 1], False),
    (2, (2, 3, 6, 6), [1, 1], [2, 2], [0, 0], [1, 1], False),
    (2, (1, 2, 13, 13), [5, 5], [1, 1], [2, 2], [1, 1], False),
    (3, (2, 2, 5, 6, 7), [2, 3, 2], [2, 1, 2], [1, 1, 0], [1, 1, 1], True),
]
AVERAGES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", [*AVERAGES, torch.int64, torch.uint8])
@pytest.mark.parametrize("case", WINDOWS, ids=str)
def test_max_pool(case, dtype):
    rank, shape, *window = case
    if rank == 1 and not dtype.is_floating_point:
        pytest.skip("torch has none")
    x = sample(*shape, dtype=dtype)
    check(getattr(aten, f"max_pool{rank}d").default, x, *window)
    if rank > 1:
        check(getattr(aten, f"max_pool{rank}d_with_indices").default, x, *window)


def test_max_pool_of_nan_and_infinity():
    x = sample(1, 1, 8, 8)
    x[..., 2, 2], x[..., 4:, 4:], x[..., 7, 0] = torch.nan, -torch.inf, torch.inf
    for padding in (0, 1):
        check(aten.max_pool2d_with_indices.default, x, [3, 3], [2, 2], [padding, padding])
        check(aten.max_pool2d.default, x, [3, 3], [2, 2], [padding, padding])


@pytest.mark.parametrize("dtype", AVERAGES)
@pytest.mark.parametrize("count_pad", [True, False])
@pytest.mark.parametrize("case", WINDOWS, ids=str)
def test_avg_pool(case, count_pad, dtype):
    rank, shape, kernel, stride, padding, _, ceil = case
    if rank == 3 and dtype.itemsize == 2:
        pytest.skip("torch has none")
    x = sample(*shape, dtype=dtype)
    op = getattr(aten, f"avg_pool{rank}d").default
    check(op, x, kernel, stride, padding, ceil, count_pad, atol=2e-2 if dtype is torch.bfloat16 else None)
    if rank > 1:
        check(op, x, kernel, stride, padding, ceil, count_pad, 3, atol=4e-2 if dtype is torch.bfloat16 else None)


ADAPTIVE = [
    (1, (2, 3, 11), [4]),
    (2, (2, 3, 8, 6), [1, 1]),
    (2, (2, 3, 8, 6), [4, 3]),
    (2, (3, 7, 5), [3, 4]),
    (2, (2, 3, 3, 5), [7, 5]),
    (3, (2, 2, 5, 6, 7), [2, 3, 7]),
]


@pytest.mark.parametrize("dtype", AVERAGES)
@pytest.mark.parametrize("case", ADAPTIVE, ids=str)
def test_adaptive(case, dtype):
    rank, shape, size = case
    x = sample(*shape, dtype=dtype)
    tolerance = {torch.bfloat16: 3e-2, torch.float16: 4e-3}.get(dtype)
    check(getattr(aten, f"{'_' if rank > 1 else ''}adaptive_avg_pool{rank}d").default, x, size, atol=tolerance)
    if rank > 1:
        check(getattr(aten, f"adaptive_max_pool{rank}d").default, x, size)


def test_empty_batch():
    x = sample(0, 3, 8, 8)
    check(aten.max_pool2d_with_indices.default, x, [2, 2])
    check(aten.avg_pool2d.default, x, [2, 2])
    check(aten._adaptive_avg_pool2d.default, x, [1, 1])


def test_strided_input():
    x = sample(2, 9, 8, 3).permute(0, 3, 1, 2)
    check(aten.max_pool2d_with_indices.default, x, [3, 3], [2, 2], [1, 1])
    check(aten.avg_pool2d.default, x, [3, 3], [2, 2], [1, 1])
    check(aten._adaptive_avg_pool2d.default, x, [3, 1])


@pytest.mark.parametrize("divisor", [None, 3, -2])
@pytest.mark.parametrize("padded", [True, False])
def test_averages_of_integers_are_cut_towards_zero(divisor, padded):
    x = sample(2, 3, 7, 6, dtype=torch.int64)
    check(aten.avg_pool2d.default, x, [3, 2], [2, 1], [1, 1], True, padded, divisor)
    check(aten.avg_pool1d.default, x[0], [3], [2], [1], True, padded)
    check(aten.avg_pool3d.default, x, [2, 3, 2], [1, 2, 1], [1, 1, 1], False, padded, divisor)
