"""Sums of rows by index: NumPy's own `ufunc.at` is fast on flat arrays alone."""

from __future__ import annotations

import numpy as np

from delegate.kernels.halves import Array
from delegate.program.raw import combine_at

_NARROW = 16  # elements per row up to which single elements are added
_LONG = 16  # rows per sum from which each sum is a call of its own


def add_at(out: Array, index: Array, source: Array) -> None:
    """out[index[i]] += source[i], one after the other. out (rows, width), index (n), source (n, width)."""
    width = out.shape[1]
    if width <= _NARROW or source.size <= 1 << 12:
        flat = index * width
        places = (flat[:, None] + np.arange(width)).reshape(-1) if width > 1 else flat
        combine_at(np.add, out.reshape(-1, copy=False), (places,), source.reshape(-1))
        return
    order = np.argsort(index, kind="stable")
    ordered = index[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    add_segments(out, ordered[starts], source, order, starts, np.diff(np.append(starts, len(index))))


def add_segments(out: Array, targets: Array, source: Array, rows: Array, starts: Array, counts: Array) -> None:
    """Add sums of rows of the source to rows of `out`.

    Args:
        out: (any, width).
        targets: (sums) rows of `out`, each once.
        source: (any, width).
        rows: (n) rows of the source, those of a sum one after the other.
        starts, counts: (sums) where in `rows` each sum begins, and how many it has.
    """
    long = counts > _LONG
    for sum_ in np.flatnonzero(long):
        begin = starts[sum_]
        out[targets[sum_]] += np.add.reduce(source.take(rows[begin : begin + counts[sum_]], axis=0), axis=0)
    if long.any():
        short = ~long
        targets, starts, counts = targets[short], starts[short], counts[short]
    for turn in range(int(counts.max(initial=0))):
        if turn:
            left = counts > turn
            targets, starts, counts = targets[left], starts[left], counts[left]
        _add_rows(out, targets, source.take(rows[starts + turn], axis=0))


def _add_rows(out: Array, targets: Array, rows: Array) -> None:
    """Add to different rows; at once where they are all of them."""
    if len(targets) == len(out) and targets[0] == 0 and (targets[1:] > targets[:-1]).all():
        np.add(out, rows, out=out)
    else:
        out[targets] += rows
