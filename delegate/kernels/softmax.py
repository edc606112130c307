"""Softmax and log-softmax; rows are worked on in blocks that fit a cache."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from delegate.kernels.halves import Array
from delegate.kernels.operands import WIDE, axis_of, blocks, cast, level, row_blocks
from delegate.kernels.portable_table import TABLE
from delegate.kernels.table import BOOL, INT
from delegate.program.raw import same_shape

_MODERATE = 16.0  # exponentials up to this number are summed and multiplied without a fear of overflow
_MANY, _NARROW = 1 << 13, 16  # elements in all, and side by side, from and below which NumPy reduces slowly
_ENOUGH = 2.0**-30  # a smaller sum may have lost terms of 1e-29 of it and more


def _floor(dtype: type[np.floating[Any]]) -> tuple[Any, Any]:
    """Where exp gives almost the smallest normal number, and what it gives there."""
    lowest = np.full(64, math.log(np.finfo(dtype).tiny) + 1, dtype)
    return lowest[0], np.exp(lowest)[0]


_FLOORS = {np.dtype(t): _floor(t) for t in (np.float32, np.float64)}


def exponentials(x: Array, axis: int, out: Array) -> Array:
    """Numbers in proportion to exp(x) into out; gives their sums along an axis (counted from the front, kept).

    If all elements are moderate numbers they are exp(x) itself: the pass that finds the largest element of each row and
    the one that subtracts it would take as long as all the rest.
    """
    if np.maximum.reduce(x, axis=None, initial=-math.inf) <= _MODERATE:
        _exp(x, out)
        sums = _sums(out, axis)
        if np.minimum.reduce(sums, axis=None, initial=math.inf) >= _ENOUGH:
            return sums
    return shifted_exponentials(x, axis, out)[1]


def shifted_exponentials(x: Array, axis: int, out: Array) -> tuple[Array, Array]:
    """exp(x - shift) into out, where shift is the largest element of each row; gives shift and the sums, axes kept.

    The shift of a row of -inf is 0, and so is its sum.
    """
    shift: Array = np.maximum.reduce(x, axis=axis, keepdims=True, initial=-math.inf)
    np.copyto(shift, 0, where=np.isneginf(shift))
    _exp(np.subtract(x, shift, out=out), out)
    return shift, _sums(out, axis)


def _exp(x: Array, out: Array) -> None:
    """exp, where what would be denormal is 0: denormal numbers slow down what computes with them tenfold.

    Beside other numbers it makes no difference that almost the smallest normal one is subtracted from all.
    """
    lowest, least = _FLOORS[x.dtype]
    if np.minimum.reduce(x, axis=None, initial=math.inf) < lowest:
        for given, made in blocks(x, out):
            np.exp(np.maximum(given, level(lowest, made), out=made), out=made)
            np.subtract(made, least, out=made)
    else:
        np.exp(x, out=out)


def _sums(x: Array, axis: int) -> Array:
    """Sums along an axis, which is kept; a product with ones sums rows in a third of the time of a reduction."""
    last = axis == x.ndim - 1
    sums: Array = x @ np.ones((x.shape[-1], 1), x.dtype) if last else np.add.reduce(x, axis=axis, keepdims=True)
    return sums


def _softmax(x: Array, axis: int, out: Array) -> None:
    np.divide(out, exponentials(x, axis, out), out=out)


def _log_softmax(x: Array, axis: int, out: Array) -> None:
    """x - shift - log(sum): close to 0 all its digits depend on the shift."""
    shift, sums = shifted_exponentials(x, axis, out)
    np.subtract(x, shift, out=out)
    np.subtract(out, np.log(sums, out=sums), out=out)


def _safe_softmax(x: Array, axis: int, out: Array) -> None:
    """Zeros where all elements are -inf."""
    sums = exponentials(x, axis, out)
    np.divide(out, np.where(sums == 0, 1, sums), out=out)


def _along(function: Callable[[Array, int, Array], None], x: Array, dim: int, *_: Any, out: Array) -> None:
    """The other arguments choose the dtype, which `out` has."""
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


for _function, _ops in (
    (_softmax, ("aten._softmax.default", "aten.softmax.int")),
    (_log_softmax, ("aten._log_softmax.default", "aten.log_softmax.int")),
    (_safe_softmax, ("aten._safe_softmax.default",)),
):
    TABLE.kernel(*_ops, dtypes=WIDE | INT | BOOL)(partial(_along, _function))
