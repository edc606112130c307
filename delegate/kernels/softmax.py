"""Softmax and log-softmax, in place in the result; rows are worked on in blocks that fit a cache."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from delegate.kernels.halves import Array
from delegate.kernels.operands import WIDE, axis_of, cast, row_blocks
from delegate.kernels.portable_table import TABLE
from delegate.kernels.table import BOOL, INT


def _softmax(x: Array, axis: int, out: Array) -> None:
    np.subtract(x, np.maximum.reduce(x, axis=axis, keepdims=True), out=out)
    np.exp(out, out=out)
    np.divide(out, np.add.reduce(out, axis=axis, keepdims=True), out=out)


def _log_softmax(x: Array, axis: int, out: Array) -> None:
    np.subtract(x, np.maximum.reduce(x, axis=axis, keepdims=True), out=out)
    total = np.add.reduce(np.exp(out), axis=axis, keepdims=True)
    np.subtract(out, np.log(total, out=total), out=out)


def _safe_softmax(x: Array, axis: int, out: Array) -> None:
    """Zeros where all elements are -inf."""
    _softmax(x, axis, out)
    np.copyto(out, 0, where=np.maximum.reduce(x, axis=axis, keepdims=True) == -math.inf)


def _along(function: Callable[[Array, int, Array], None], x: Array, dim: int, *_: Any, out: Array) -> None:
    """The other arguments choose the dtype, which `out` has."""
    x = cast(x, out.dtype)
    if x.size == 0:
        return
    if x.ndim == 0:
        x, out = x.reshape(1), out.reshape(1)
    axis = axis_of(x, dim)
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
