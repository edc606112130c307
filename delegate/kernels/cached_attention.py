"""Attention over a cache that is filled from its front: what is not filled is not read, and nothing of it is copied."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from delegate.errors import KernelError
from delegate.kernels.halves import Array, widen_float16
from delegate.kernels.portable_table import TABLE
from delegate.kernels.table import FLOAT
from delegate.kernels.threads import share_out
from delegate.program.dtypes import DType

_ALONE = 1 << 20  # elements of keys that one thread reads as fast as several do, which have to be woken
_ROWS = 16  # rows of a product of matrices that take as long as reading the keys once
_BLOCK = 1 << 16  # elements of a cache that are read at a time, and stay in the processor's own
_SCRATCH = 1 << 17  # scores at a time
_NEAR = 1 << 15  # elements of a cache that the processor's own may still hold
_LOWEST = np.float32(-87)  # whose exponential is a normal number
_FEW = 4  # rows of a product that are multiplied one by one


@TABLE.kernel("delegate.cached_attention.default", dtypes=FLOAT | {DType.int8, DType.int64})
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
    """query (B, H, L, E), keys (R, G, S, E), values (R, G, S, V), positions (B, L), rows (B) -> (B, H, L, V)."""
    chosen = range(len(query)) if rows is None else rows.tolist()
    batch, groups, channels = len(query), keys.shape[1], query.shape[-1]
    wide = query.dtype if query.dtype == np.float64 else np.dtype(np.float32)
    factor = wide.type(1 / math.sqrt(channels) if scale is None else scale)
    asked = np.multiply(query, factor, dtype=wide).reshape(batch, groups, -1, channels)
    made = out.reshape(batch, groups, -1, out.shape[-1])
    _check("row", chosen, len(keys))
    if len(chosen) != batch:
        raise KernelError(f"{len(chosen)} rows for {batch} queries", remedy="give a row of the cache for each query")
    for b, row in enumerate(chosen):
        scales = [None if x is None else x[row] for x in (key_scales, value_scales)]
        _attend(asked[b], (keys[row], values[row]), scales, positions[b], window, softcap, made[b])


def _attend(
    query: Array,
    cache: tuple[Array, Array],
    scales: Sequence[Array | None],
    where: Array,
    window: int,
    softcap: float,
    out: Array,
) -> None:
    """One conversation: query (groups, m, E) -> (groups, m, V).

    The cache is keys (groups, S, E) and values (groups, S, V), with scales (groups, S); the queries stand at `where`.
    """
    groups, rows, channels = query.shape
    places = where.tolist()  # reductions of NumPy take longer than Python's of a few numbers
    _check("position", places, cache[0].shape[1])
    first, end = max(0, min(places) - window + 1) if window else 0, max(places) + 1
    unseen = None if len(where) == 1 else _unseen(where, first, end, window)
    together = max(1, _SCRATCH // (rows * (end - first)))

    def attend(start: int, stop: int) -> None:
        for g in range(start, stop, together):
            some = slice(g, min(g + together, stop))
            keys, values = (x[some, first:end] for x in cache)
            key_scales, value_scales = (None if x is None else x[some, None, first:end] for x in scales)
            weights = _scores(query[some], keys, key_scales)
            if softcap:
                np.multiply(np.tanh(np.divide(weights, softcap, out=weights), out=weights), softcap, out=weights)
            if unseen is not None:
                np.copyto(weights.reshape(-1, *unseen.shape), -np.inf, where=unseen)
            sums = _exponentials(weights)
            np.divide(_mixed(weights, values, value_scales), sums, out=out[some])

    if (end - first) * groups * channels * max(1, rows // _ROWS) < _ALONE:
        attend(0, groups)
    else:
        share_out(attend, groups)


def _exponentials(scores: Array) -> Array:
    """exp of scores (groups, m, n) below the largest of their row, in place; gives the sums (groups, m, 1).

    Each row has such a one, for a query sees at least itself. What would be denormal, which slows down all that
    computes with it, is almost the smallest normal number: beside the largest, which is 1, that is nothing.
    """
    np.subtract(scores, np.maximum.reduce(scores, axis=2, keepdims=True), out=scores)
    np.exp(np.maximum(scores, _LOWEST, out=scores), out=scores)
    sums: Array = np.add.reduce(scores, axis=2, keepdims=True)
    return sums


def _scores(query: Array, keys: Array, scales: Array | None) -> Array:
    """query (groups, m, E), keys (groups, n, E), scales (groups, 1, n) -> their products (groups, m, n)."""
    made = np.empty((*query.shape[:2], keys.shape[1], 1), query.dtype)
    for block, entries in _blocks(keys, query):
        if query.shape[1] > _FEW:
            np.matmul(query, entries.swapaxes(1, 2), out=made[:, :, block, 0])
        else:
            np.matmul(entries[:, None], query[..., None], out=made[:, :, block])
    return made[..., 0] if scales is None else np.multiply(made[..., 0], scales, out=made[..., 0])


def _mixed(weights: Array, values: Array, scales: Array | None) -> Array:
    """weights (groups, m, n), values (groups, n, V), scales (groups, 1, n) -> sums of the values (groups, m, V)."""
    if scales is not None:
        weights = weights * scales
    parts: list[Array] = []
    for block, entries in _blocks(values, weights):
        if weights.shape[1] > _FEW:
            parts.append(np.matmul(weights[:, :, block], entries))
        else:
            parts.append(np.matmul(weights[:, :, None, block], entries[:, None])[:, :, 0])
    return parts[0] if len(parts) == 1 else np.asarray(np.add.reduce(parts))


def _blocks(cache: Array, other: Array) -> Iterator[tuple[slice, Array]]:
    """Parts of a cache (groups, n, channels), each with its place, in the dtype of the other factor.

    Few rows are multiplied one by one: a product of a matrix and a vector reads the matrix once, where BLAS would first
    copy it for a product of two matrices. The next row finds the part in the processor's cache; so does the first, for
    the part is read through before, which memory does faster than it feeds a product.
    """
    groups, count, channels = cache.shape
    same, few = cache.dtype == other.dtype, other.shape[1] <= _FEW
    step = count if same and not few else max(1, _BLOCK // channels // (1 if same else groups))
    room = None if same else np.empty((groups, min(step, count), channels), other.dtype)
    for start in range(0, count, step):
        block = slice(start, start + step)
        entries = cache[:, block]
        if room is not None:
            entries = _widened(entries, room)
        elif few and cache.size > _NEAR:
            np.maximum.reduce(entries, axis=None)
        yield block, entries


def _widened(entries: Array, room: Array) -> Array:
    """The entries in the dtype of `room`, and there."""
    made = room[:, : entries.shape[1]]
    if entries.dtype == np.float16 and made.dtype == np.float32:
        widen_float16(entries, made)
    else:
        np.copyto(made, entries)
    return made


def _unseen(where: Array, first: int, end: int, window: int) -> Array:
    """Which of the entries from `first` to `end` each query must not see, (queries, entries)."""
    entries, here = np.arange(first, end), where[:, None]
    unseen: Array = entries > here
    if window:
        unseen |= entries <= here - window
    return unseen


def _check(name: str, given: Sequence[int], size: int) -> None:
    """Raises KernelError for a place that the cache has not."""
    if given and (min(given) < 0 or max(given) >= size):
        raise KernelError(
            f"{name} {min(given)} to {max(given)} of a cache that has {size}",
            remedy="check the positions and rows that the model is given",
        )
