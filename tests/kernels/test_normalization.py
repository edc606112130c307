"""Normalization kernels against torch eager."""

import pytest
import torch

from tests.support.kernels import check, sample

A = torch.ops.aten
F32, F64, F16, BF16 = torch.float32, torch.float64, torch.float16, torch.bfloat16
FLOATS = [F32, F64, F16, BF16]


@pytest.mark.parametrize("parameters", [(True, True), (True, False), (False, False)])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_layer_norm(dtype, parameters):
    for shape in ([5], [4, 5]):
        weight, bias = (sample(*shape, dtype=dtype, seed=s) if p else None for s, p in enumerate(parameters))
        for x in (sample(3, 4, 5, dtype=dtype), sample(4, 3, 5, dtype=dtype).transpose(0, 1)):
            check(A.native_layer_norm.default, x, shape, weight, bias, 1e-5)
            check(A.layer_norm.default, x, shape, weight, bias)
    check(A.native_layer_norm.default, torch.empty(0, 5, dtype=dtype), [5], None, None, 1e-5)


def test_layer_norm_of_many_rows_and_of_mixed_dtypes():
    check(A.layer_norm.default, sample(300, 700), [700], sample(700), sample(700))
    check(A.native_layer_norm.default, sample(3, 5, dtype=BF16), [5], sample(5), sample(5), 1e-5)


def test_layer_norm_of_nothing():
    check(A.layer_norm.default, torch.empty(3, 0), [0])
    check(A.layer_norm.default, torch.empty(0, 3), [3])


def test_layer_norm_far_from_zero():
    check(A.layer_norm.default, sample(4, 64) + 1000, [64], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("eps", [None, 1e-3])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rms_norm(dtype, eps):
    x = sample(3, 4, 5, dtype=dtype)
    check(A.rms_norm.default, x, [5], sample(5, dtype=dtype), eps)
    check(A.rms_norm.default, x.transpose(0, 1), [3, 5], None, eps)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_group_and_instance_norm(dtype):
    x, weight, bias = sample(2, 6, 3, 4, dtype=dtype), sample(6, dtype=dtype), sample(6, dtype=dtype, seed=1)
    for groups in (1, 3, 6):
        check(A.native_group_norm.default, x, weight, bias, 2, 6, 12, groups, 1e-5)
        check(A.group_norm.default, x, groups, weight, None)
        check(A.group_norm.default, x.transpose(2, 3), groups, None, None)
    step = {BF16: 5e-2, F16: 5e-3}.get(dtype)  # of the largest results
    check(A.instance_norm.default, x, weight, bias, None, None, True, 0.1, 1e-5, False, atol=step)


@pytest.mark.parametrize("shape", [(2, 6), (2, 6, 5), (2, 6, 3, 4)])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_batch_norm(dtype, shape):
    x = sample(*shape, dtype=dtype)
    weight, bias, mean = (sample(6, dtype=dtype, seed=s) for s in range(3))
    var = sample(6, dtype=dtype, seed=3).abs() + 0.5
    for w, b in ((weight, bias), (None, None)):
        check(A._native_batch_norm_legit_no_training.default, x, w, b, mean, var, 0.1, 1e-5)
        check(A._native_batch_norm_legit.default, x, w, b, mean, var, False, 0.1, 1e-5)
        if dtype in (F32, F64) and len(shape) > 2:
            check(A._native_batch_norm_legit.no_stats, x, w, b, True, 0.1, 1e-5)
            check(A._native_batch_norm_legit_functional.default, x, w, b, mean, var, True, 0.1, 1e-5)
