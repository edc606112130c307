"""Cached attention in compiled loops: the kernel against the operator in eager, and the limits of the loops."""

from __future__ import annotations

import importlib
import sys
from itertools import product
from typing import Any

import delegate_numba
import numpy as np
import pytest
import torch
from delegate_numba import table
from delegate_numba.table import TABLE
from numba.core.caching import CacheImpl

from delegate.errors import KernelError
from delegate.kernels.table import TABLE as PORTABLE
from delegate.testing import assert_same
from tests.support import cached_attention as support
from tests.support.cached_attention import (
    CASES,
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

SMALL = ("float16", "bfloat16", "int8")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the loops that are called."""
    calls: list[str] = []
    loops = table._loops()

    class Recorder:
        def __getattr__(self, name: str) -> Any:
            calls.append(name)
            return getattr(loops, name)

    monkeypatch.setattr(table, "_loops", Recorder)
    return calls


@pytest.mark.parametrize("one_thread", [True, False], ids=["one thread", "threads"])
@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("case", CASES)
def test_as_in_eager(case: str, types: str, one_thread: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_ONE_THREAD", 10**9 if one_thread else 0)
    assert_as_in_eager(TABLE, case, types)


@pytest.mark.parametrize(("types", "heads"), [*product([*SMALL, "float32"], [2, 4, 10, 14])])
def test_heads_that_share_a_group(types: str, heads: int, calls: list[str]) -> None:
    assert_as_in_eager(TABLE, "one token", types, heads)
    assert "attend" in calls


@pytest.mark.parametrize(
    ("types", "case", "is_compiled"),
    [
        ("float32", "one token", True),
        ("float32", "a chunk", True),
        ("float16", "a chunk with a window", True),
        ("bfloat16", "capped", True),
        ("int8", "a window", True),
        ("int8", "several of one row", True),
        ("all float16", "one token", True),
        ("all bfloat16", "one token", True),
        ("float64", "one token", False),
    ],
)
def test_which_types_run_in_the_loops(types: str, case: str, is_compiled: bool, calls: list[str]) -> None:
    assert_as_in_eager(TABLE, case, types)
    assert ("attend" in calls) == is_compiled


@pytest.mark.parametrize("types", ["float32", *SMALL])
def test_many_rows_run_in_blas(types: str, calls: list[str]) -> None:
    assert_as_in_eager(TABLE, "a chunk", types, heads=8)  # 4 heads a group, and 5 queries
    assert "attend" not in calls


@pytest.mark.parametrize("types", ["float32", *SMALL])
@pytest.mark.parametrize(
    ("positions", "options"),
    [
        ([[299]], {}),
        ([[127], [128], [255]], {}),
        ([[100, 200, 299]], {"window": 90}),  # no block is seen by all queries
        ([[250], [10], [299]], {"rows": [1, 1, 0], "softcap": 3.0}),
    ],
    ids=["one token", "a batch at the ends of blocks", "a window", "several of one row"],
)
def test_several_blocks(
    positions: list[list[int]], options: dict[str, Any], types: str, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(support, "CAPACITY", 300)
    given = {name: torch.tensor(x) if name == "rows" else x for name, x in options.items()}
    args = kernel_arguments(positions, *TYPES[types], **given)
    args[0] *= 3  # so that larger scores are found in later blocks
    assert_same(run(TABLE, *args), run(PORTABLE, *args), 1e-6)
    assert "attend" in calls


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_what_is_not_filled_is_not_read(dtype: torch.dtype) -> None:
    args = kernel_arguments([[7], [20]], dtype, torch.float32, window=6)
    for entries in args[1:3]:
        for row, end in ((0, 8), (1, 21)):
            entries[row, :, end:] = torch.nan
            entries[row, :, : end - 6] = torch.nan
    assert np.isfinite(run(TABLE, *args)).all()


@pytest.mark.parametrize("last", [12, 299], ids=["one block", "several blocks"])
@pytest.mark.parametrize("argument", [0, 1, 2], ids=["query", "keys", "values"])
@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan, 65504.0, 2.0**-24])
@pytest.mark.parametrize("types", ["float32", "float16", "bfloat16"])
def test_special_values(types: str, value: float, argument: int, last: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "CAPACITY", 300)
    args = kernel_arguments([[last]], *TYPES[types])
    args[argument][0, :, 0, 3] = value
    with np.errstate(invalid="ignore"):
        expected = run(PORTABLE, *args)
    assert_same(run(TABLE, *args), expected, 2e-6)


@pytest.mark.parametrize("spread", [1e-3, 1.0, 30.0, 1e4])
def test_exponentials_of_small_and_large_scores(spread: float) -> None:
    args = kernel_arguments([[39]], torch.float32, torch.float32, heads=10, scale=spread)
    assert_same(run(TABLE, *args), run(PORTABLE, *args), 1e-6)


@pytest.mark.parametrize(
    ("positions", "options", "match"),
    [
        ([[40]], {}, "position 40 to 40 is out of range for a cache of size 40"),
        ([[-1]], {}, "position -1"),
        ([[1]], {"rows": torch.tensor([3])}, "row 3 to 3 is out of range for a cache of size 3"),
    ],
)
def test_places_that_the_cache_has_not(positions: list[list[int]], options: dict[str, Any], match: str) -> None:
    with pytest.raises(KernelError, match=match):
        run(TABLE, *kernel_arguments(positions, torch.float16, torch.float32, **options))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_scales_of_any_type(dtype: torch.dtype) -> None:
    assert_scales_are_read(TABLE, dtype)


def test_scales_of_wrong_sizes_never_reach_the_loops(calls: list[str]) -> None:
    args = kernel_arguments([[30]], torch.int8, torch.float32)
    args[5] = args[5][:, :, :20].contiguous()
    with pytest.raises(ValueError, match="broadcast"):
        run(TABLE, *args)
    assert not calls


@pytest.mark.parametrize("case", WRONG_SIZES)
def test_sizes_that_do_not_fit_never_reach_the_loops(case: str, calls: list[str]) -> None:
    assert_sizes_are_refused(TABLE, case, "float16")
    assert not calls


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_cache_that_is_a_state(dtype: torch.dtype, calls: list[str]) -> None:
    assert_state_is_read(TABLE, dtype)
    assert calls.count("attend") == 2


def test_no_folder_is_writable(monkeypatch: pytest.MonkeyPatch) -> None:
    table._loops()
    monkeypatch.setattr(CacheImpl, "_locator_classes", [])
    monkeypatch.delitem(sys.modules, "delegate_numba.loops", raising=False)
    monkeypatch.delattr(delegate_numba, "loops")
    monkeypatch.setattr(table, "_loops", lambda: importlib.import_module("delegate_numba.loops"))
    assert_is_updated(TABLE, torch.float16, torch.float32, (8,))  # by the loop that is compiled fastest
    assert importlib.import_module("delegate_numba.loops").write.signatures


def test_a_numba_that_cannot_be_imported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.delitem(sys.modules, "delegate_numba.loops", raising=False)
    monkeypatch.delattr(delegate_numba, "loops")
    table._loops.cache_clear()
    with pytest.raises(KernelError, match=r"Numba cannot be imported.*DELEGATE_BLOCK_PLUGINS=numba"):
        run(TABLE, *kernel_arguments([[30]], torch.float16, torch.float32))


@pytest.mark.parametrize("channels", [(8,), ()], ids=["entries", "scales"])
@pytest.mark.parametrize("new", NEW)
@pytest.mark.parametrize("entries", ["float32", "float16", "bfloat16", "int8", "float64"])
def test_writes_as_in_eager(entries: str, new: str, channels: tuple[int, ...]) -> None:
    assert_is_updated(TABLE, TYPES[entries][0], NEW[new], channels)


def test_writes_to_places_that_the_cache_has_not() -> None:
    assert_places_are_checked(TABLE)


@pytest.mark.parametrize(
    ("entries", "is_compiled"), [(torch.float16, True), (torch.int8, True), (torch.bfloat16, False)], ids=str
)
def test_which_writes_run_in_the_loops(entries: torch.dtype, is_compiled: bool, calls: list[str]) -> None:
    assert_is_updated(TABLE, entries, torch.float32, (8,))
    assert ("write" in calls) == is_compiled
