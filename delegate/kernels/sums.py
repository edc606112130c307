"""Sums of many floats in stages: adding one number after the other in float32 loses digits, and stops at 2**24.

NumPy adds neighbors in memory in pairs, as torch does, but elements along other axes one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from delegate.kernels import short_rows
from delegate.kernels.half_precision import Array

_STAGE = 1 << 7  # numbers that are added one after the other; NumPy's pairs have as many at the least
_NARROW = 16  # with fewer elements side by side, NumPy takes less time for a transposed copy
_ROW = 1 << 10  # elements of a row that a product with ones adds up


def add(
    x: Array,
    axes: Sequence[int] | None = None,
    *,
    keepdims: bool = False,
    dtype: np.dtype[Any] | None = None,
    out: Any = None,
) -> Array:
    """Add up an array as `np.add.reduce` does; floats in stages if they are many.

    Args:
        x: the array.
        axes: the axes to sum over, none negative; None: all.
        keepdims: keep these axes with size 1.
        dtype: The dtype of the sum, if it is not x's.
        out: the array for the result.
    """
    axes = tuple(range(x.ndim)) if axes is None else tuple(axes)
    dtype = x.dtype if dtype is None else dtype
    if x.size > _STAGE and dtype.kind in "fc" and prod(x.shape[axis] for axis in axes) > _STAGE:
        x = x.astype(dtype, copy=False)
        adjacent = _adjacent(x, axes)
        if len(adjacent) < len(axes):
            x = np.add.reduce(x, axis=adjacent, keepdims=True) if adjacent else x
            for axis in set(axes) - set(adjacent):
                x = _along(x, axis)
    return short_rows.reduce(np.add, x, axes, dtype=dtype, keepdims=keepdims, out=out)


def _adjacent(x: Array, axes: Sequence[int]) -> tuple[int, ...]:
    """Return the axes whose elements are neighbors in memory, the innermost axis of x among them."""
    found, step = [], x.itemsize
    for axis in sorted(range(x.ndim), key=lambda a: (abs(x.strides[a]), -a)):
        if x.shape[axis] == 1:
            found += [axis] if axis in axes else []
        elif axis in axes and x.strides[axis] == step:
            found.append(axis)
            step *= x.shape[axis]
        else:
            break
    return tuple(found)


def _along(x: Array, axis: int) -> Array:
    """Add up along one axis, which gets size 1."""
    if x.shape[axis] <= _STAGE:
        return x
    if prod(x.shape[axis + 1 :]) < _NARROW:
        return np.expand_dims(np.add.reduce(np.ascontiguousarray(np.moveaxis(x, axis, -1)), axis=-1), axis)
    first = np.moveaxis(x, axis, 0)
    while len(first) > _STAGE:
        count = len(first) // _STAGE * _STAGE
        sums = np.add.reduce(first[:count].reshape(-1, _STAGE, *first.shape[1:]), axis=1)
        first = np.concatenate([sums, np.add.reduce(first[count:], axis=0, keepdims=True)])
    return np.moveaxis(first, 0, axis)


def add_rows(x: Array) -> Array:
    """Return the row sums of x [..., width], by products with ones, in a third of a sum's time."""
    ones = np.ones(min(x.shape[-1], _ROW), x.dtype)
    return _in_pieces(x, lambda piece: piece @ ones[: piece.shape[-1]])


def square_rows(x: Array) -> Array:
    """Return the sums of the squared rows of x [..., width]."""
    return _in_pieces(x, lambda piece: np.vecdot(piece, piece))


def _in_pieces(x: Array, sums: Callable[[Array], Array]) -> Array:
    """Add up the sums over pieces of rows; `sums` removes the last axis."""
    width = x.shape[-1]
    if width <= _ROW:
        return sums(x)
    count = width // _ROW * _ROW
    pieces = (sums(x[..., :count].reshape(*x.shape[:-1], -1, _ROW)), sums(x[..., count:])[..., None])
    return add(np.concatenate(pieces, axis=-1), (x.ndim - 1,))
