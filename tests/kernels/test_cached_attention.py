"""Attention over a cache: the kernel against the operator in eager and torch's own attention."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from delegate.edge.cached_attention import cached_attention
from delegate.errors import KernelError
from delegate.kernels import cached_attention as kernels
from delegate.kernels.portable import TABLE
from delegate.program.dtypes import DType
from delegate.testing import assert_same

HEADS, GROUPS, CAPACITY, CHANNELS = 6, 2, 40, 8
CASES = {
    "one token": ([[30]], {}),
    "the first token": ([[0]], {}),
    "the last token": ([[39]], {}),
    "a chunk": ([[3, 4, 5, 6, 7]], {}),
    "a window": ([[30]], {"window": 5}),
    "a chunk with a window": ([[28, 29, 30, 31]], {"window": 3}),
    "a window larger than what is there": ([[2, 3]], {"window": 30}),
    "capped": ([[17]], {"softcap": 2.0}),
    "scaled": ([[17, 18]], {"scale": 0.7}),
    "large scores": ([[17, 18], [30, 31]], {"scale": 20.0}),
    "small scores": ([[1], [9]], {"scale": 20.0, "window": 2}),
    "a batch": ([[4], [33], [0]], {}),
    "rows in another order": ([[4, 5], [33, 34]], {"rows": torch.tensor([2, 0])}),
}


def cache(dtype: torch.dtype, query: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    shape = (3, GROUPS, CAPACITY, CHANNELS)
    if dtype is not torch.int8:
        return torch.randn(shape, dtype=query).to(dtype), torch.randn(shape, dtype=query).to(dtype), {}
    keys, values = (torch.randint(-127, 128, shape, dtype=torch.int8) for _ in range(2))
    scales = {f"{name}_scales": torch.rand(shape[:-1]) / 60 for name in ("key", "value")}
    return keys, values, scales


def run(*args: object) -> np.ndarray:
    """Run the kernel on the arguments of the operator, with NaN in unfilled places."""
    arrays = [a.numpy() if isinstance(a, torch.Tensor) else a for a in args]
    out = np.empty((*arrays[0].shape[:-1], arrays[2].shape[-1]), arrays[0].dtype)
    names = {str(a.dtype) for a in arrays if isinstance(a, np.ndarray)}
    kernel = TABLE.find("delegate.cached_attention.default", [DType[name] for name in names])
    assert kernel is not None
    kernel.function(*arrays, out=out)
    return out


def kernel_arguments(
    positions: list[list[int]], dtype: torch.dtype, query: torch.dtype, **options: object
) -> list[object]:
    torch.manual_seed(0)
    where = torch.tensor(positions)
    keys, values, scales = cache(dtype, query)
    named = {"rows": None, "key_scales": None, "value_scales": None, "scale": None, "window": 0, "softcap": 0.0}
    queries = torch.randn(len(positions), HEADS, where.shape[1], CHANNELS, dtype=query)
    if "rows" not in options:
        keys, values = keys[: len(positions)], values[: len(positions)]
        scales = {name: s[: len(positions)] for name, s in scales.items()}
    return [queries, keys, values, where, *{**named, **scales, **options}.values()]


@pytest.mark.parametrize("one_thread", [True, False], ids=["one thread", "threads"])
@pytest.mark.parametrize(
    ("dtype", "query"),
    [
        (torch.float32, torch.float32),
        (torch.float16, torch.float32),
        (torch.int8, torch.float32),
        (torch.float64, torch.float64),
        (torch.float16, torch.float16),
    ],
    ids=str,
)
@pytest.mark.parametrize("case", CASES)
def test_as_in_eager(case, dtype, query, one_thread, monkeypatch):
    monkeypatch.setattr(kernels, "_ONE_THREAD", 10**9 if one_thread else 0)
    monkeypatch.setattr(kernels, "_BLOCK", 7 * CHANNELS)
    positions, options = CASES[case]
    args = kernel_arguments(positions, dtype, query, **options)
    expected = cached_attention(*(a.float() if query is torch.float16 and i < 3 else a for i, a in enumerate(args)))
    tolerance = 2e-3 if query is torch.float16 else 2e-5
    assert_same(run(*args), expected.half() if query is torch.float16 else expected, tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_what_is_not_filled_is_not_read(dtype):
    args = kernel_arguments([[7], [20]], dtype, torch.float32, window=6)
    for entries in args[1:3]:
        for row, end in ((0, 8), (1, 21)):
            entries[row, :, end:] = torch.nan
            entries[row, :, : end - 6] = torch.nan
    assert np.isfinite(run(*args)).all()


def test_torchs_own_attention():
    args = kernel_arguments([[5, 6, 7]], torch.float32, torch.float32)
    mask = torch.arange(CAPACITY) <= args[3][0][:, None]
    expected = torch.nn.functional.scaled_dot_product_attention(*args[:3], attn_mask=mask, enable_gqa=True)
    assert_same(run(*args), expected)


def test_nothing_of_the_cache_is_copied():
    """Check that a call on a full cache of 64 MiB allocates less than a hundredth of it."""
    import tracemalloc

    keys, values = (np.zeros((1, 8, 1 << 13, 128), np.float32) for _ in range(2))
    query, out = np.zeros((1, 16, 1, 128), np.float32), np.empty((1, 16, 1, 128), np.float32)
    kernel = TABLE.find("delegate.cached_attention.default", [DType.float32, DType.int64])
    tracemalloc.start()
    kernel.function(query, keys, values, np.array([[8191]]), None, None, None, None, 0, 0.0, out=out)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < (keys.nbytes + values.nbytes) / 50


@pytest.mark.parametrize(
    ("positions", "options", "match"),
    [
        ([[40]], {}, "position 40 to 40 is out of range for a cache of size 40"),
        ([[-1]], {}, "position -1"),
        ([[1]], {"rows": torch.tensor([3])}, "row 3 to 3 is out of range for a cache of size 3"),
        ([[1]], {"rows": torch.tensor([], dtype=torch.int64)}, "0 rows for 1 queries"),
    ],
)
def test_places_that_the_cache_has_not(positions, options, match):
    with pytest.raises(KernelError, match=match):
        run(*kernel_arguments(positions, torch.float32, torch.float32, **options))
