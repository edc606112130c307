"""Attention over a cache that is filled from its front: what is not filled is not read, and nothing of it is copied."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from delegate.errors import KernelError
from delegate.kernels.halves import Array, widen_float16
from delegate.kernels.portable_table import TABLE
from delegate.kernels.softmax import shifted_exponentials
from delegate.kernels.table import FLOAT
from delegate.kernels.threads import share_out
from delegate.program.dtypes import DType

_ALONE = 1 << 18  # elements of keys that one thread reads as fast as several do, which have to be woken
_BLOCK = 1 << 15  # elements of a cache that are read at a time, and stay in the processor's own
_SCRATCH = 1 << 17  # scores at a time
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
    _check(keys, positions, rows)
    wide = np.result_type(query.dtype, np.float32)
    factor = wide.type(1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    batch, groups = len(query), keys.shape[1]
    asked = (query.astype(wide, copy=False) * factor).reshape(batch, groups, -1, query.shape[-1])
    made = out.reshape(batch, groups, -1, out.shape[-1])
    for b, where in enumerate(positions):
        row = b if rows is None else int(rows[b])
        cache = [(x[row], None if s is None else s[row]) for x, s in ((keys, key_scales), (values, value_scales))]
        _attend(asked[b], cache, where, window, softcap, made[b])


def _attend(
    query: Array,
    cache: Sequence[tuple[Array, Array | None]],
    where: Array,
    window: int,
    softcap: float,
    out: Array,
) -> None:
    """One conversation: query (groups, m, E), cache (groups, S, E) and (groups, S, V) with scales -> (groups, m, V)."""
    groups, rows, channels = query.shape
    first, end = max(0, int(where.min()) - window + 1) if window else 0, int(where.max()) + 1
    unseen = None if len(where) == 1 else _unseen(where, first, end, window)
    together = max(1, _SCRATCH // (rows * (end - first)))

    def attend(start: int, stop: int) -> None:
        for g in range(start, stop, together):
            some = range(g, min(g + together, stop))
            keys, values = (
                [_Entries(x[i, first:end], None if s is None else s[i, first:end]) for i in some] for x, s in cache
            )
            weights, sums = _weights(query[g : some.stop], keys, unseen, softcap)
            for i, entries in enumerate(values):
                np.divide(entries.mixed(weights[i]), sums[i], out=out[g + i])

    if (end - first) * groups * channels < _ALONE:
        attend(0, groups)
    else:
        share_out(attend, groups)


def _weights(query: Array, keys: Sequence[_Entries], unseen: Array | None, softcap: float) -> tuple[Array, Array]:
    """query (groups, m, channels) -> weights of the entries (groups, m, n), and their sums (groups, m, 1)."""
    scores = np.empty((*query.shape[:2], len(keys[0])), query.dtype)
    for asked, found, target in zip(query, keys, scores, strict=True):
        found.scores(asked, target)
    if softcap:
        np.multiply(np.tanh(np.divide(scores, softcap, out=scores), out=scores), softcap, out=scores)
    if unseen is not None:
        np.copyto(scores.reshape(-1, *unseen.shape), -np.inf, where=unseen)
    return scores, shifted_exponentials(scores, 2, scores)[1]


class _Entries:
    """The filled keys or values of a group, (n, channels), in whatever type they lie, read block by block.

    Few rows are multiplied one by one: a product of a matrix and a vector reads the matrix once, where BLAS would first
    copy it for a product of two matrices. The next row finds the block in the processor's cache.
    """

    def __init__(self, entries: Array, scales: Array | None) -> None:
        self._entries, self._scales = entries, scales

    def __len__(self) -> int:
        return len(self._entries)

    def scores(self, query: Array, made: Array) -> None:
        """query (m, channels) -> its products with every entry, made (m, n)."""
        for block, entries in self._blocks(query):
            if len(query) > _FEW:
                np.matmul(query, entries.T, out=made[:, block])
                continue
            for row, target in zip(query, made, strict=True):
                np.dot(entries, row, out=target[block])
        if self._scales is not None:
            made *= self._scales

    def mixed(self, weights: Array) -> Array:
        """weights (m, n) -> the sums of the entries by them, (m, channels)."""
        if self._scales is not None:
            weights = weights * self._scales
        made = np.zeros((len(weights), self._entries.shape[1]), weights.dtype)
        for block, entries in self._blocks(weights):
            if len(weights) > _FEW:
                made += weights[:, block] @ entries
                continue
            for i, row in enumerate(weights):
                made[i] += np.dot(row[block], entries)
        return made

    def _blocks(self, other: Array) -> Iterator[tuple[slice, Array]]:
        """Places, and the entries there in the dtype of the other factor."""
        count, channels = self._entries.shape
        same = self._entries.dtype == other.dtype
        step = count if same and len(other) > _FEW else max(1, _BLOCK // channels)
        room = None if same else np.empty((min(step, count), channels), other.dtype)
        for start in range(0, count, max(1, step)):
            block = slice(start, start + step)
            yield block, self._entries[block] if room is None else _widened(self._entries[block], room)


def _widened(entries: Array, room: Array) -> Array:
    """The entries in the dtype of `room`, and there."""
    made = room[: len(entries)]
    if entries.dtype == np.float16 and made.dtype == np.float32:
        widen_float16(entries.reshape(-1), made.reshape(-1))
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


def _check(keys: Array, positions: Array, rows: Array | None) -> None:
    """Raises KernelError for a place that the cache has not."""
    for name, given, size in (("position", positions, keys.shape[2]), ("row", rows, keys.shape[0])):
        if given is not None and given.size and (given.min() < 0 or given.max() >= size):
            raise KernelError(
                f"{name} {given.min()} to {given.max()} of a cache that has {size}",
                remedy="check the positions and rows that the model is given",
            )
    if rows is None and len(positions) > len(keys):
        raise KernelError(f"a batch of {len(positions)} for a cache of {len(keys)} conversations")
