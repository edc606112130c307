"""Softmax and log-softmax; rows are computed in blocks that fit a cache."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from delegate.kernels.half_precision import Array
from delegate.kernels.operands import WIDE, axis_of, blocks, cast, level, row_blocks
from delegate.kernels.sums import add, add_rows
from delegate.kernels.table import BOOL, INT, TABLE
from delegate.program.raw import same_shape

_MODERATE = 16.0  # sums and products of exponentials up to this number cannot overflow
_MANY, _NARROW = 1 << 13, 16  # above this size, with fewer adjacent elements, NumPy reduces slowly
_ENOUGH = 2.0**-30  # a smaller sum may have lost terms of 1e-29 of it and more


def _floor(dtype: type[np.floating[Any]]) -> tuple[Any, Any]:
    """Return the number where exp is almost the smallest normal number, and that exponential."""
    lowest = np.full(64, math.log(np.finfo(dtype).tiny) + 1, dtype)
    return lowest[0], np.exp(lowest)[0]


_FLOORS = {np.dtype(t): _floor(t) for t in (np.float32, np.float64)}


def exponentials(x: Array, axis: int, out: Array) -> Array:
    """Write numbers in proportion to exp(x) to out; return their sums along an axis (counted from the front, with size
    1).

    If all elements are moderate, the numbers are exp(x) itself: the passes that find and subtract the largest element
    of each row would take as long as all the rest.
    """
    if np.maximum.reduce(x, axis=None, initial=-math.inf) <= _MODERATE:
        _exp(x, out)
        sums = _sums(out, axis)
        if np.minimum.reduce(sums, axis=None, initial=math.inf) >= _ENOUGH:
            return sums
    return write_exponentials(x, axis, out)[1]


def write_exponentials(x: Array, axis: int, out: Array) -> tuple[Array, Array]:
    """Write exp(x - shift) to out, where shift is the largest element of each row; return shift and sums.

    Reduced axes have size 1. The shift and the sum are 0 for a row of -inf.
    """
    shift: Array = np.maximum.reduce(x, axis=axis, keepdims=True, initial=-math.inf)
    np.copyto(shift, 0, where=np.isneginf(shift))
    _exp(np.subtract(x, shift, out=out), out)
    return shift, _sums(out, axis)


def _exp(x: Array, out: Array) -> None:
    """Compute exp with 0 for denormal results, because denormal numbers slow down later computations tenfold.

    Almost the smallest normal number is subtracted from all results, which is negligible for the others.
    """
    lowest, least = _FLOORS[x.dtype]
    if np.minimum.reduce(x, axis=None, initial=math.inf) < lowest:
        for source, target in blocks(x, out):
            np.exp(np.maximum(source, level(lowest, target), out=target), out=target)
            np.subtract(target, least, out=target)
    else:
        np.exp(x, out=out)


def _sums(x: Array, axis: int) -> Array:
    """Sum along an axis, which gets size 1."""
    return add_rows(x)[..., None] if axis == x.ndim - 1 else add(x, (axis,), keepdims=True)


def _softmax(x: Array, axis: int, out: Array) -> None:
    np.divide(out, exponentials(x, axis, out), out=out)


def _log_softmax(x: Array, axis: int, out: Array) -> None:
    """Compute x - shift - log(sum); close to 0, all digits depend on the shift."""
    shift, sums = write_exponentials(x, axis, out)
    np.subtract(x, shift, out=out)
    np.subtract(out, np.log(sums, out=sums), out=out)


def _apply_along(function: Callable[[Array, int, Array], None], x: Array, dim: int, *_: Any, out: Array) -> None:
    """Apply a function along a dimension; the other arguments only choose the dtype, which `out` has."""
    x = cast(x, out.dtype)
    same_shape(x, out)
    if x.size == 0:
        return
    if x.ndim == 0:
        x, out = x.reshape(1), out.reshape(1)
    axis = axis_of(x, dim)
    if axis != x.ndim - 1 and x.size > _MANY and math.prod(x.shape[axis + 1 :]) < _NARROW:
        wide = np.ascontiguousarray(np.moveaxis(x, axis, 0))
        function(wide, 0, result := np.empty_like(wide))
        np.copyto(np.moveaxis(out, axis, 0), result)
        return
    if axis != x.ndim - 1 or not (x.flags.c_contiguous and out.flags.c_contiguous):
        function(x, axis, out)
        return
    width = x.shape[-1]
    rows, result = x.reshape(-1, width), out.reshape(-1, width)
    for block in row_blocks(len(rows), width):
        function(rows[block], 1, result[block])


for _function, _op in (
    (_softmax, "aten._softmax.default"),
    (_log_softmax, "aten._log_softmax.default"),
):
    TABLE.kernel(_op, dtypes=WIDE | INT | BOOL)(partial(_apply_along, _function))
