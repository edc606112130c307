"""Attention over a cache that is filled from its start, in several threads, and writes to it.

Unfilled entries are not read, and entries are not copied.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

import numpy as np

from delegate.errors import KernelError
from delegate.kernels.half_precision import Array, from_bfloat16, to_bfloat16, widen_bfloat16, widen_float16
from delegate.kernels.table import FLOAT, TABLE
from delegate.program.cores import cores
from delegate.program.dtypes import DType

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor


def run_in_parts(work: Callable[[int, int], None], count: int, is_small: bool) -> None:
    """Call `work(first, end)` on parts of range(count) in parallel: one part per core, the last in this thread.

    Exceptions of `work` are raised when all parts have finished.

    Args:
        is_small: true to make one call, in this thread, because other threads must wake up first.
    """
    if is_small:
        work(0, count)
        return
    parts = min(cores(), count)
    bounds = [count * i // parts for i in range(parts + 1)]
    waiting = [_pool(os.getpid()).submit(work, first, end) for first, end in pairwise(bounds[:-1])]
    try:
        work(bounds[-2], bounds[-1])
    finally:
        for part in waiting:
            part.exception()
    for part in waiting:
        part.result()


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    """Return the threads of a process: a fork has none of its parent's."""
    from concurrent.futures import ThreadPoolExecutor  # imports logging, which the runtime otherwise does not need

    return ThreadPoolExecutor(cores(), "delegate-kernels")


OPERATOR = "delegate.cached_attention.default"
UPDATE = "delegate.update_cache.default"
DTYPES = FLOAT | {DType.bfloat16, DType.int8, DType.int64}
_ONE_THREAD = 1 << 20  # elements of keys that one thread reads as fast as several threads
_ROWS = 16  # rows of a matrix product that take as long as reading the keys once
_BLOCK = 1 << 16  # elements of a cache per block: they fit the processor's cache
_SCRATCH = 1 << 17  # scores per block
_IN_CACHE = 1 << 15  # elements of a cache that may still be in the processor's cache
_LOWEST = np.float32(-87)  # the exponential of it is still a normal number
_FEW = 4  # rows of a product that are multiplied one by one


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
    """Attend to the filled part of a cache -> (B, H, L, V).

    query (B, H, L, E), keys (R, G, S, E), values (R, G, S, V), positions (B, L), rows (B). Adjacent sequences of one
    row are computed as one, so that its entries are read once.
    """
    chosen = range(len(query)) if rows is None else rows.tolist()
    batch, groups, channels = len(query), keys.shape[1], query.shape[-1]
    _check("row", chosen, len(keys))
    if len(chosen) != batch:
        raise KernelError(f"{len(chosen)} rows for {batch} queries", remedy="pass one row of the cache for each query")
    if keys.shape[:3] != values.shape[:3] or channels != keys.shape[3]:
        raise KernelError(
            f"keys of shape {keys.shape} and values of shape {values.shape} for {channels} channels of the query",
            remedy="pass keys and values of the same conversations, groups and capacity, and keys of these channels",
        )
    is_bfloat16 = query.dtype == np.uint16
    wide = query.dtype if query.dtype == np.float64 else np.dtype(np.float32)
    factor = wide.type(1 / math.sqrt(channels) if scale is None else scale)
    scaled = np.multiply(from_bfloat16(query) if is_bfloat16 else query, factor, dtype=wide)
    result = np.empty(out.shape, wide) if is_bfloat16 else out
    end = 0
    for row, run in groupby(chosen):
        start, end = end, end + len([*run])
        scales = [None if x is None else _as_type(x[row], wide) for x in (key_scales, value_scales)]
        some, target = _by_group(scaled[start:end], groups), _by_group(result[start:end], groups)
        joined, sums = (x.reshape(groups, -1, x.shape[-1]) for x in (some, target))  # copies of several sequences
        where = positions[start:end].reshape(-1)
        _attend(joined, (keys[row], values[row]), scales, where, window, softcap, sums)
        if end - start > 1:
            np.copyto(target, sums.reshape(target.shape))
    if is_bfloat16:
        to_bfloat16(result, out)


@TABLE.kernel(UPDATE, dtypes=DTYPES, in_place=True)
def update_cache(entries: Array, new: Array, positions: Array, rows: Array, *, out: Array) -> None:
    """Write new entries (B, G, L, ...) to a cache (R, G, S, ...), at positions (B, L) of rows (B)."""
    np.copyto(out, entries)
    _check("row", rows.tolist(), len(entries))
    _check("position", positions.reshape(-1).tolist(), entries.shape[2])
    is_bfloat16 = entries.dtype == np.uint16
    converted = to_bfloat16(_as_type(new, np.dtype(np.float32))) if is_bfloat16 else _as_type(new, entries.dtype)
    out[rows[:, None], :, positions] = converted.swapaxes(1, 2)


def _as_type(x: Array, dtype: np.dtype) -> Array:
    """Convert floats of any type to another one, or to integers; they are not copied if they have it."""
    return (from_bfloat16(x) if x.dtype == np.uint16 else x).astype(dtype, copy=False)


def _by_group(x: Array, groups: int) -> Array:
    """View the sequences (B, H, L, E) of one conversation as (groups, H / groups, B, L, E)."""
    return x.reshape(len(x), groups, -1, *x.shape[2:]).transpose(1, 2, 0, 3, 4)


def _attend(
    query: Array,
    cache: tuple[Array, Array],
    scales: Sequence[Array | None],
    where: Array,
    window: int,
    softcap: float,
    out: Array,
) -> None:
    """Compute the attention of one conversation: query (groups, m, E) -> (groups, m, V).

    The cache is keys (groups, S, E) and values (groups, S, V), with scales (groups, S), and the queries are at
    positions `where`.
    """
    groups, rows, channels = query.shape
    places = where.tolist()  # for a few numbers, Python's min and max are faster than NumPy's
    _check("position", places, cache[0].shape[1])
    first, end = max(0, min(places) - window + 1) if window else 0, max(places) + 1
    unseen = None if len(where) == 1 else _unseen_mask(where, first, end, window)
    step = max(1, _SCRATCH // (rows * (end - first)))

    def attend(start: int, stop: int) -> None:
        for g in range(start, stop, step):
            some = slice(g, min(g + step, stop))
            parts = [None if x is None else x[some] for x in scales]
            keys_values = cache[0][some], cache[1][some]
            _attend_groups(query[some], keys_values, parts, slice(first, end), unseen, softcap, out[some])

    elements = (end - first) * groups * channels * max(1, rows // _ROWS)
    run_in_parts(attend, groups, elements < _ONE_THREAD)


def _attend_groups(
    query: Array,
    cache: tuple[Array, Array],
    scales: Sequence[Array | None],
    filled: slice,
    unseen: Array | None,
    softcap: float,
    out: Array,
) -> None:
    """Attend to the entries `filled` of some groups: query (groups, m, E) -> (groups, m, V).

    Args:
        query: the scaled queries, in float32 or float64.
        cache: keys (groups, S, E) and values (groups, S, V).
        scales: (groups, S) of the keys and the values; None but for int8.
        filled: a slice of S entries; others are not read.
        unseen: (queries, entries), true for entries that a query must not see. Row i of m is query i % queries.
        softcap: as in the operator.
        out: (groups, m, V), is written.
    """
    first, end = filled.start, filled.stop
    key_scales, value_scales = (None if x is None else x[:, None, filled] for x in scales)
    weights = _scores(query, cache[0], first, end)
    if key_scales is not None:
        np.multiply(weights, key_scales, out=weights)
    if softcap:
        np.multiply(np.tanh(np.divide(weights, softcap, out=weights), out=weights), softcap, out=weights)
    if unseen is not None:
        np.copyto(weights.reshape(-1, *unseen.shape), -np.inf, where=unseen)
    sums = _exponentiate(weights)
    if value_scales is not None:
        np.multiply(weights, value_scales, out=weights)
    np.divide(_sum_by_weights(weights, cache[1], first, end), sums, out=out)


def _scores(query: Array, keys: Array, first: int, end: int) -> Array:
    """Multiply query (groups, m, E) with keys -> (groups, m, end - first)."""
    scores = np.empty((*query.shape[:2], end - first, 1), query.dtype)
    for block, entries in _blocks(keys[:, first:end], query):
        if query.shape[1] > _FEW:
            np.matmul(query, entries.swapaxes(1, 2), out=scores[:, :, block, 0])
        else:
            np.matmul(entries[:, None], query[..., None], out=scores[:, :, block])
    return scores[..., 0]


def _sum_by_weights(weights: Array, values: Array, first: int, end: int) -> Array:
    """Sum values by weights (groups, m, end - first) -> (groups, m, V)."""
    parts: list[Array] = []
    for block, entries in _blocks(values[:, first:end], weights):
        if weights.shape[1] > _FEW:
            parts.append(np.matmul(weights[:, :, block], entries))
        else:
            parts.append(np.matmul(weights[:, :, None, block], entries[:, None])[:, :, 0])
    return parts[0] if len(parts) == 1 else np.asarray(np.add.reduce(parts))


def _blocks(cache: Array, other: Array) -> Iterator[tuple[slice, Array]]:
    """Yield blocks of a cache (groups, n, channels) with their slices, in the dtype of the other factor.

    Few rows are multiplied one by one, because a product of a matrix and a vector reads the matrix once; BLAS would
    first copy it for a product of two matrices. The next row then finds the block in the processor's cache. For the
    first row, a reduction reads the block in advance: memory delivers faster to a reduction than to a product.
    """
    groups, count, channels = cache.shape
    same, few = cache.dtype == other.dtype, other.shape[1] <= _FEW
    step = count if same and not few else max(1, _BLOCK // channels // (1 if same else groups))
    buffer = None if same else np.empty((groups, min(step, count), channels), other.dtype)
    for start in range(0, count, step):
        block = slice(start, start + step)
        entries = cache[:, block]
        if buffer is not None:
            entries = _widen(entries, buffer)
        elif few and cache.size > _IN_CACHE:
            np.maximum.reduce(entries, axis=None)
        yield block, entries


def _exponentiate(scores: Array) -> Array:
    """Compute exp of scores (groups, m, n) minus the largest of their row, in place; return the sums (groups, m, 1).

    Each row has a largest score, because a query sees at least itself. Results that would be denormal, which slow down
    later computations, become almost the smallest normal number. Relative to the largest, which is 1, this is
    negligible.
    """
    np.subtract(scores, np.maximum.reduce(scores, axis=2, keepdims=True), out=scores)
    np.exp(np.maximum(scores, _LOWEST, out=scores), out=scores)
    sums: Array = np.add.reduce(scores, axis=2, keepdims=True)
    return sums


def _widen(entries: Array, buffer: Array) -> Array:
    """Convert the entries to the dtype of a buffer, into this buffer; bfloat16 is its bits, as uint16."""
    target = buffer[:, : entries.shape[1]]
    if entries.dtype == np.uint16 and target.dtype == np.float32:
        widen_bfloat16(entries, target)
    elif entries.dtype == np.uint16:
        np.copyto(target, from_bfloat16(entries))
    elif entries.dtype == np.float16 and target.dtype == np.float32:
        widen_float16(entries, target)
    else:
        np.copyto(target, entries)
    return target


def _unseen_mask(where: Array, first: int, end: int, window: int) -> Array:
    """Return a mask (queries, entries) of the entries from `first` to `end` that each query must not see."""
    entries, here = np.arange(first, end), where[:, None]
    unseen: Array = entries > here
    if window:
        unseen |= entries <= here - window
    return unseen


def _check(name: str, positions: Sequence[int], size: int) -> None:
    """Raise KernelError for a position that the cache lacks."""
    if positions and (min(positions) < 0 or max(positions) >= size):
        raise KernelError(
            f"{name} {min(positions)} to {max(positions)} is out of range for a cache of size {size}",
            remedy="check the positions and rows that are passed to the model",
        )
