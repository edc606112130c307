"""Attention, Fourier transform and distance kernels against torch eager."""

import numpy as np
import pytest
import torch

from delegate.errors import KernelError
from delegate.kernels import attention
from tests.support.kernels import check, sample

aten = torch.ops.aten

FLOATS = sample(2, 1, 5, 7)
KEEP = FLOATS > 0
BLIND = KEEP.clone()
BLIND[:, :, 2] = False

ATTENTION = [
    {},
    {"is_causal": True},
    {"scale": 0.5},
    {"attn_mask": FLOATS},
    {"attn_mask": KEEP},
    {"attn_mask": BLIND},
    {"attn_mask": torch.ones(7, dtype=torch.bool)[None, :]},
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kwargs", ATTENTION, ids=",".join)
def test_attention(kwargs, dtype, monkeypatch):
    query, key, value = (sample(2, 3, n, 8, dtype=dtype, scale=1, seed=i) for i, n in enumerate((5, 7, 7)))
    if "attn_mask" in kwargs and kwargs["attn_mask"].is_floating_point():
        kwargs = {"attn_mask": kwargs["attn_mask"].to(dtype)}
    tolerance = {torch.float16: 4e-3, torch.bfloat16: 3e-2}.get(dtype)
    check(aten.scaled_dot_product_attention.default, query, key, value, **kwargs, atol=tolerance)
    monkeypatch.setattr(attention, "_SCRATCH", 40)
    check(aten.scaled_dot_product_attention.default, query, key, value, **kwargs, atol=tolerance)


@pytest.mark.parametrize("kwargs", ATTENTION, ids=",".join)
def test_attention_of_grouped_heads(kwargs):
    query, key, value = sample(2, 6, 5, 8, scale=1), *(sample(2, 2, 7, n, scale=1, seed=n) for n in (8, 4))
    check(aten.scaled_dot_product_attention.default, query, key, value, **kwargs, enable_gqa=True)


def test_heads_that_groups_do_not_divide():
    query, key = np.ones((1, 6, 1, 8), np.float32), np.ones((1, 4, 7, 8), np.float32)
    with pytest.raises(KernelError, match="the 6 heads of the query are not divisible by the 4 heads of the key"):
        attention.scaled_dot_product_attention(query, key, key, None, 0.0, False, None, True, out=np.empty_like(query))


def test_attention_without_heads():
    check(aten.scaled_dot_product_attention.default, sample(5, 8), sample(7, 8), sample(7, 4), atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("normalization", [0, 1, 2])
@pytest.mark.parametrize("dims", [[1], [0, 2], [2]], ids=str)
def test_fourier(dims, normalization, dtype):
    x = sample(4, 6, 5, dtype=dtype)
    tolerance = 1e-4 if dtype is torch.float32 else None
    for onesided in (True, False):
        check(aten._fft_r2c.default, x, dims, normalization, onesided, atol=tolerance)
    half = aten._fft_r2c.default(x, dims, 0, True)
    for forward in (True, False):
        check(aten._fft_c2c.default, half, dims, normalization, forward, atol=tolerance, rtol=tolerance)
    check(aten._fft_c2r.default, half, dims, normalization, x.shape[dims[-1]], atol=10 * (tolerance or 1e-9))


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, 3.0, torch.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_distances(dtype, p):
    check(aten._cdist_forward.default, sample(2, 4, 3, dtype=dtype), sample(2, 5, 3, dtype=dtype, seed=1), p, None)
    check(aten._cdist_forward.default, sample(1, 4, 3, dtype=dtype), sample(2, 5, 3, dtype=dtype, seed=1), p, None)
    for mode in (None, 1, 2):
        check(aten._cdist_forward.default, sample(2, 40, 9, dtype=dtype), sample(2, 3, 9, dtype=dtype, seed=1), p, mode)
        check(aten._cdist_forward.default, sample(300, 9, dtype=dtype), sample(31, 9, dtype=dtype, seed=1), p, mode)
    check(aten._pdist_forward.default, sample(5, 3, dtype=dtype), p)
