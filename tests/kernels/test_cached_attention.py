"""Attention over a cache: the kernel against the operator in eager and torch's own attention."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from delegate.errors import KernelError
from delegate.kernels import cached_attention as kernels
from delegate.kernels.portable import TABLE
from delegate.program.dtypes import DType
from delegate.testing import assert_same
from tests.support.cached_attention import (
    CAPACITY,
    CASES,
    CHANNELS,
    NEW,
    TYPES,
    WRONG_SIZES,
    assert_as_in_eager,
    assert_is_updated,
    assert_places_are_checked,
    assert_scales_are_read,
    assert_sizes_are_refused,
    assert_state_is_read,
    kernel_arguments,
    run,
)


@pytest.mark.parametrize("one_thread", [True, False], ids=["one thread", "threads"])
@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("case", CASES)
def test_as_in_eager(case, types, one_thread, monkeypatch):
    monkeypatch.setattr(kernels, "_ONE_THREAD", 10**9 if one_thread else 0)
    monkeypatch.setattr(kernels, "_BLOCK", 7 * CHANNELS)
    assert_as_in_eager(TABLE, case, types)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_what_is_not_filled_is_not_read(dtype):
    args = kernel_arguments([[7], [20]], dtype, torch.float32, window=6)
    for entries in args[1:3]:
        for row, end in ((0, 8), (1, 21)):
            entries[row, :, end:] = torch.nan
            entries[row, :, : end - 6] = torch.nan
    assert np.isfinite(run(TABLE, *args)).all()


def test_torchs_own_attention():
    args = kernel_arguments([[5, 6, 7]], torch.float32, torch.float32)
    mask = torch.arange(CAPACITY) <= args[3][0][:, None]
    expected = torch.nn.functional.scaled_dot_product_attention(*args[:3], attn_mask=mask, enable_gqa=True)
    assert_same(run(TABLE, *args), expected)


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
        run(TABLE, *kernel_arguments(positions, torch.float32, torch.float32, **options))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_scales_of_any_type(dtype):
    assert_scales_are_read(TABLE, dtype)


@pytest.mark.parametrize("types", ["float32", "float16"])
@pytest.mark.parametrize("case", WRONG_SIZES)
def test_sizes_that_do_not_fit(case, types):
    assert_sizes_are_refused(TABLE, case, types)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_cache_that_is_a_state(dtype):
    assert_state_is_read(["portable"], dtype)


@pytest.mark.parametrize("channels", [(8,), ()], ids=["entries", "scales"])
@pytest.mark.parametrize("new", NEW)
@pytest.mark.parametrize("entries", ["float32", "float16", "bfloat16", "int8", "float64"])
def test_writes_as_in_eager(entries, new, channels):
    assert_is_updated(TABLE, TYPES[entries][0], NEW[new], channels)


def test_writes_to_places_that_the_cache_has_not():
    assert_places_are_checked(TABLE)
