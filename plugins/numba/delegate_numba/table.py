"""The kernel table: writes to a cache, and attention of few queries to it, in compiled loops.

Numba is imported on first use.
"""

from __future__ import annotations

import math
from functools import cache as cached
from types import ModuleType
from typing import Any

import numpy as np

from delegate.errors import KernelError
from delegate.kernels import cached_attention as portable
from delegate.kernels.cached_attention import DTYPES, OPERATOR, UPDATE, run_in_parts
from delegate.kernels.half_precision import Array, from_bfloat16, to_bfloat16
from delegate.kernels.table import KernelTable
from delegate.plugins import BLOCK_VARIABLE, one_line

TABLE = KernelTable("numba")
_FLOAT32, _FLOAT16 = np.dtype(np.float32), np.dtype(np.float16)
_QUERIES = frozenset(map(np.dtype, (np.float32, np.float16, np.uint16)))  # uint16: the bits of bfloat16
_ENTRIES = _QUERIES | {np.dtype(np.int8)}
_WRITTEN = _ENTRIES - {np.dtype(np.uint16)}
_ONE_THREAD = 3 << 19  # bytes of keys that one thread reads as fast as several threads
_FEW = 16  # rows of queries that read a group, up to which the loops are faster than BLAS


@TABLE.kernel(OPERATOR, dtypes=DTYPES)
def cached_attention(
    query: Array,
    keys: Array,
    values: Array,
    positions: Array,
    rows: Array | None,
    key_scales: Array | None,
    value_scales: Array | None,
    scale: float | None,
    window: int,
    softcap: float,
    *,
    out: Array,
) -> None:
    """Attend in the loops where they are faster, otherwise as the portable kernel, which also reports wrong sizes."""
    chosen = np.arange(len(query)) if rows is None else rows
    if _loops_take(query, keys, values, positions, chosen, key_scales, value_scales):
        groups, capacity, channels = keys.shape[1:]
        most, entries = _loops().extent(positions, chosen, window, len(keys), capacity)
        if 0 < most * query.shape[1] <= _FEW * groups:
            factor = 1 / math.sqrt(channels) if scale is None else scale
            is_bfloat16 = query.dtype == np.uint16
            wide = from_bfloat16(query) if is_bfloat16 else np.ascontiguousarray(query, _FLOAT32)
            stored = _storage(keys), _storage(values)
            result = out if out.dtype == _FLOAT32 and out.flags.c_contiguous else np.empty(out.shape, _FLOAT32)

            def attend(first: int, end: int) -> None:
                options = key_scales, value_scales, factor, window, softcap
                _loops().attend(wide, *stored, positions, chosen, *options, first, end, result)

            run_in_parts(attend, groups, entries * groups * channels * keys.itemsize < _ONE_THREAD)
            if is_bfloat16:
                to_bfloat16(result, out)
            elif result is not out:
                np.copyto(out, result)
            return
    portable.cached_attention(
        query, keys, values, positions, rows, key_scales, value_scales, scale, window, softcap, out=out
    )


@TABLE.kernel(UPDATE, dtypes=DTYPES, in_place=True)
def update_cache(entries: Array, new: Array, positions: Array, rows: Array, *, out: Array) -> None:
    """Convert and write new entries in one loop, otherwise as the portable kernel, which also reports wrong places."""
    fits = (
        new.dtype == _FLOAT32
        and entries.dtype in _WRITTEN
        and new.ndim == entries.ndim == 4
        and new.shape[1::2] == entries.shape[1::2]
        and rows.shape == new.shape[:1]
        and positions.shape == new.shape[:3:2]
        and all(x.flags.c_contiguous for x in (out, new, positions, rows))
    )
    if fits:
        np.copyto(out, entries)
        fits = _loops().write(_storage(out), new, positions, rows)
    if not fits:
        portable.update_cache(entries, new, positions, rows, out=out)


def _loops_take(query: Array, keys: Array, values: Array, positions: Array, rows: Array, *scales: Array | None) -> bool:
    """Return true if the loops can read the arrays, and their sizes fit together."""
    heads, groups = query.shape[1], keys.shape[1]
    return (
        query.dtype in _QUERIES
        and keys.dtype in _ENTRIES
        and values.dtype in _ENTRIES
        and keys.shape[:3] == values.shape[:3]
        and query.shape[3] == keys.shape[3]
        and positions.shape == (len(query), query.shape[2])
        and rows.shape == (len(query),)
        and groups > 0
        and heads % groups == 0
        and all(x.flags.c_contiguous for x in (keys, values, positions, rows))
        and all(
            x is None or (x.dtype == _FLOAT32 and x.shape == keys.shape[:3] and x.flags.c_contiguous) for x in scales
        )
    )


def _storage(entries: Array) -> Array:
    """Return entries in the dtypes of the loops."""
    return entries.view(np.int16) if entries.dtype == _FLOAT16 else entries


@cached
def _loops() -> ModuleType | Any:
    try:
        from delegate_numba import loops
    except ImportError as error:
        what = f"Numba cannot be imported: {one_line(error)}"
        raise KernelError(what, remedy=f"update numba, or block this library: {BLOCK_VARIABLE}=numba") from error
    return loops
