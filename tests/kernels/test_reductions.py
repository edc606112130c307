"""Reductions, scans, softmax and sorting against torch eager."""

import math

import numpy as np
import pytest
import torch

from delegate.kernels.portable import TABLE
from delegate.program.dtypes import DType
from delegate.testing import assert_same
from tests.support.kernels import check, sample

A = torch.ops.aten
F32, F64, F16, BF16, C64 = torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64
U8, I8, I32, I64, BOOL = torch.uint8, torch.int8, torch.int32, torch.int64, torch.bool
FLOATS = [F32, F64, F16, BF16]
ALL = [*FLOATS, U8, I8, I32, I64, BOOL]
NAN, INF = torch.nan, torch.inf
SPECIAL = torch.tensor([[1.0, NAN, 3.0, NAN], [INF, -INF, 2.0, INF], [-INF, -INF, -INF, -INF], [5.0, 5.0, 1.0, 1.0]])


def tensors(dtype):
    yield sample(3, 4, 5, dtype=dtype, scale=1)
    yield sample(5, 4, 3, dtype=dtype, scale=1).transpose(0, 2)[:, :, ::2]
    yield sample(dtype=dtype)


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dims", [[0], [-1], [0, 2], [], None])
@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_over_dims(dtype, dims, keepdim):
    for x in tensors(dtype):
        d = dims if x.ndim or not dims else [0]
        check(A.sum.dim_IntList, x, d, keepdim)
        check(A.any.dims, x, d, keepdim)
        if d is not None:
            check(A.amax.default, x, d, keepdim)
            check(A.amin.default, x, d, keepdim)
        if dtype.is_floating_point:
            check(A.mean.dim, x, d, keepdim)
            check(A.linalg_vector_norm.default, x, 2, d, keepdim)
            check(A.logsumexp.default, x, d or [0], keepdim)
            if x.ndim:
                check(A.var.correction, x, d, correction=1, keepdim=keepdim)
                check(A.var.dim, x, d, False, keepdim)
                check(A.var_mean.correction, x, d, correction=0, keepdim=keepdim)


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dim", [0, -1])
@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_over_one_dim(dtype, dim, keepdim):
    for x in tensors(dtype):
        check(A.prod.dim_int, x, dim, keepdim)
        check(A.any.dim, x, dim, keepdim)
        check(A.max.dim, x, dim, keepdim)
        check(A.min.dim, x, dim, keepdim)
        if dtype is not BOOL:
            check(A.argmax.default, x, dim, keepdim)
            check(A.argmin.default, x, dim, keepdim)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_over_all(dtype):
    for x in tensors(dtype):
        for name in "prod any max min".split():  # noqa: SIM905
            check(getattr(A, name).default, x)
        if dtype is not BOOL:
            check(A.argmax.default, x)
            check(A.argmin.default, x, None, True)
        if dtype.is_floating_point:
            check(A.mean.default, x)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_special_values(dtype):
    x = SPECIAL.to(dtype)
    for dim in (0, 1):
        check(A.max.dim, x, dim)
        check(A.min.dim, x, dim)
        check(A.argmax.default, x, dim)
        check(A.argmin.default, x, dim)
        check(A.amax.default, x, [dim])
        check(A.amin.default, x, [dim])
        check(A.sum.dim_IntList, x, [dim])
        check(A.any.dim, x, dim)
        check(A.logsumexp.default, x, [dim])
        check(A._softmax.default, x, dim, False)
        check(A._log_softmax.default, x, dim, False)
        check(A.sort.default, x, dim, False)
        check(A.sort.default, x, dim, True)
        check(A.cumsum.default, x, dim)
        check(A.cummax.default, x, dim)
        check(A.cummin.default, x, dim)
    check(A.median.dim, x, 1)


@pytest.mark.parametrize(
    ("of", "to"), [(I32, F32), (F32, F64), (BOOL, I32), (F32, I64), (I64, I8), (F16, F32), (F32, BF16)]
)
def test_chosen_dtypes(of, to):
    x = sample(3, 4, dtype=of)
    check(A.sum.dim_IntList, x, [1], dtype=to)
    check(A.prod.dim_int, x, 0, dtype=to)
    check(A.cumsum.default, x, 1, dtype=to)
    if to is not BF16:  # torch rounds its input first
        check(A.cumsum.default, sample(3, 2000, dtype=of), 0, dtype=to)
    if to.is_floating_point:
        check(A.mean.dim, x, [1], dtype=to)


def test_empty():
    x = torch.empty(3, 0, 2)
    check(A.sum.dim_IntList, x, [1])
    check(A.mean.dim, x, [1])
    check(A.prod.dim_int, x, 1)
    check(A.any.dim, x, 1)
    check(A.amax.default, x, [0])
    check(A.var.correction, x, [1])
    check(A._softmax.default, x, 1, False)
    check(A.cumsum.default, x, 1)
    check(A.sort.default, x, 1)
    check(A.logsumexp.default, x, [1])
    check(A.argmax.default, x, 2)
    check(A.var.correction, torch.ones(1), [0])


@pytest.mark.parametrize("dtype", [F32, F64, C64], ids=str)
@pytest.mark.parametrize("order", [0, 1, 2, 3, 0.5, math.inf, -math.inf])
def test_norms(order, dtype):
    x = sample(3, 4, 5, dtype=dtype)
    check(A.linalg_vector_norm.default, x, order)
    check(A.linalg_vector_norm.default, x, order, [0, 2], True)


@pytest.mark.parametrize("dtype", [C64, torch.complex128], ids=str)
def test_complex(dtype):
    x = sample(3, 4, dtype=dtype, scale=1)
    for op in (A.sum.dim_IntList, A.mean.dim, A.any.dims):
        check(op, x, [1])
    check(A.prod.default, x)
    check(A.cumsum.default, x, 1)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_scans(dtype):
    for x in tensors(dtype):
        for dim in (0, -1):
            check(A.cumsum.default, x, dim)
            check(A.cumprod.default, x, dim)
            check(A.cummax.default, x, dim)
            check(A.cummin.default, x, dim)
            if dtype in (F32, F64):
                check(A.logcumsumexp.default, x, dim)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_scans_of_long_steps(dtype):
    for shape, dim in [((7, 40, 30), 0), ((20, 5, 64), 1), ((3, 0, 2000), 1), ((1, 3000), 0)]:
        x = sample(*shape, dtype=dtype)
        for tensor in (x, x.transpose(0, 1).contiguous().transpose(0, 1)):
            check(A.cumsum.default, tensor, dim)
            check(A.cumprod.default, tensor, dim)
            if dtype in (F32, F64):
                check(A.logcumsumexp.default, tensor, dim)


@pytest.mark.parametrize("shape", [(1500, 3, 4, 2), (700, 20, 1), (3, 900, 15), (2, 0, 9000)])
def test_softmax_of_narrow_rows(shape):
    x = sample(*shape)
    x[0, :1] = -torch.inf
    for dim in range(x.ndim - 1):
        for op in (A._softmax.default, A._log_softmax.default):
            check(op, x, dim, False)
            check(op, x.transpose(0, -1).contiguous().transpose(0, -1), dim, False)


def test_long_sums_keep_their_precision():
    x = torch.rand(300_000, generator=torch.Generator().manual_seed(0))
    check(A.cumsum.default, x, 0, rtol=1e-6)


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_softmax(dtype, dim):
    for x in tensors(dtype):
        d = dim if x.ndim else 0
        check(A._softmax.default, x, d, False)
        check(A._log_softmax.default, x, d, False)
    check(A._softmax.default, sample(300, 501, dtype=dtype), dim, False)
    check(A._log_softmax.default, sample(2, 70_001, dtype=dtype), dim, False)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("k", [0, 1, 3, 20])
@pytest.mark.parametrize("dtype", [*FLOATS, I32], ids=str)
def test_topk(dtype, k, largest):
    x = torch.randperm(120, generator=torch.Generator().manual_seed(0)).reshape(3, 40).to(dtype)
    check(A.topk.default, x, k, -1, largest)
    check(A.topk.default, x.t(), k, 0, largest)
    if dtype.is_floating_point and k:
        x[0, 7] = torch.nan
        check(A.topk.default, x, k, -1, largest)
        check(A.kthvalue.default, x, k, -1)
    check(A.topk.default, x[0, 0], min(k, 1), -1, largest)


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=str)
@pytest.mark.parametrize("masked", [-100.0, -800.0, -math.inf])
@pytest.mark.parametrize("offset", [0.0, 5.0, 40.0, -40.0])  # moderate numbers and others go different ways
def test_softmax_of_masked_rows(offset, masked, dtype):
    """Check that nothing is denormal, -inf gives exactly 0, and a fully masked row is as in torch."""
    x = np.random.default_rng(0).standard_normal((6, 40)).astype(dtype) + dtype(offset)
    x[:, ::3] = masked
    x[0] = -math.inf
    result = np.empty_like(x)
    kernel = TABLE.find("aten._softmax.default", {DType[dtype.__name__]})
    assert kernel is not None
    with np.errstate(invalid="ignore"):  # 0 / 0, as in torch
        kernel.function(x, -1, False, out=result)
    expected = torch.softmax(torch.from_numpy(x).double(), -1).numpy()
    assert_same(result, expected.astype(dtype), 2e-6, each=True, at_least=np.finfo(dtype).tiny)
    assert np.all((result == 0) | (result >= np.finfo(dtype).tiny) | np.isnan(result))
    assert np.isnan(result[0]).all()
    assert np.all(result[1:][np.isneginf(x[1:])] == 0)
