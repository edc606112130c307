"""Arrays with short rows, such as boxes and points: NumPy works along the last axis, here columns do.

A row of 2 to 7 elements takes NumPy as long as 50 elements of a long row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from delegate.kernels.half_precision import Array

LEAST = 1 << 10  # elements of an array, from which columns are worth their calls
_REDUCED = 7  # elements of a row that is reduced; NumPy adds up 8 in pairs
_BROADCAST = 4  # elements of a row of elementwise functions


def reduce(
    ufunc: np.ufunc,
    x: Array,
    axes: Sequence[int],
    *,
    keepdims: bool = False,
    dtype: np.dtype[Any],
    out: Array | None = None,
) -> Array:
    """Return what `ufunc.reduce` returns for the same arguments, to the bit; no axis is negative."""
    width = x.shape[-1] if x.ndim > 1 and x.size >= LEAST and tuple(axes) == (x.ndim - 1,) else 0
    is_rounded = dtype == np.float16 or (out is not None and out.dtype != dtype)  # once, after the last step
    if not 2 <= width <= _REDUCED or is_rounded:
        result: Array = ufunc.reduce(x, axis=tuple(axes), dtype=dtype, keepdims=keepdims, out=out)
        return result
    columns = [x[..., number] for number in range(width)]
    target = out[..., 0] if out is not None and keepdims else out
    total = np.asarray(ufunc(columns[0], columns[1], out=target, dtype=dtype))
    for column in columns[2:]:
        ufunc(total, column, out=total, dtype=dtype)
    if ufunc is np.add:
        np.add(total, 0, out=total)  # a sum of negative zeros is positive
    return total[..., None] if keepdims else total


def apply(ufunc: np.ufunc, a: Array, b: Array, out: Array) -> None:
    """Call an elementwise function of two arrays; by columns if rows are short, and repeated or apart in memory."""
    is_long = out.size < LEAST or out.ndim < 2 or not 2 <= out.shape[-1] <= _BROADCAST
    if is_long or (_is_even(a, out) and _is_even(b, out)):
        ufunc(a, b, out=out)
        return
    a, b = np.broadcast_to(a, out.shape), np.broadcast_to(b, out.shape)
    for number in range(out.shape[-1]):
        ufunc(a[..., number], b[..., number], out=out[..., number])


def _is_even(x: Array, out: Array) -> bool:
    """Return true if NumPy works on an operand as on one long row."""
    return x.size == 1 or (x.size == out.size and x.flags.c_contiguous)
