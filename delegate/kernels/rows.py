"""Sums of rows by index. NumPy's own `ufunc.at` is fast only on flat arrays."""

from __future__ import annotations

import numpy as np

from delegate.kernels.half_precision import Array
from delegate.program.raw import combine_at

_NARROW = 16  # elements per row up to which single elements are added
_LONG = 16  # rows per sum from which each sum is a separate call


def add_at(out: Array, index: Array, source: Array) -> None:
    """Add out[index[i]] += source[i] in order; out (rows, width), index (n), source (n, width)."""
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
        targets: (sums) distinct rows of `out`.
        source: (any, width).
        rows: (n) rows of the source; those of one sum are consecutive.
        starts, counts: (sums) the start in `rows` and the number of rows of each sum.
    """
    long = counts > _LONG
    for sum_ in np.flatnonzero(long):
        begin = starts[sum_]
        out[targets[sum_]] += np.add.reduce(source.take(rows[begin : begin + counts[sum_]], axis=0), axis=0)
    if long.any():
        short = ~long
        targets, starts, counts = targets[short], starts[short], counts[short]
    for step in range(int(counts.max(initial=0))):
        if step:
            remaining = counts > step
            targets, starts, counts = targets[remaining], starts[remaining], counts[remaining]
        _add_rows(out, targets, source.take(rows[starts + step], axis=0))


def _add_rows(out: Array, targets: Array, rows: Array) -> None:
    """Add to distinct rows; in one addition if these are all rows."""
    if len(targets) == len(out) and targets[0] == 0 and (targets[1:] > targets[:-1]).all():
        np.add(out, rows, out=out)
    else:
        out[targets] += rows
