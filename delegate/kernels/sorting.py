"""Stable sorting; NaN counts as the greatest."""

from __future__ import annotations

import numpy as np

from delegate.kernels.half_precision import Array
from delegate.kernels.keys import elements, first_of, order_of, place_of
from delegate.kernels.operands import axis_of
from delegate.kernels.portable_table import TABLE
from delegate.kernels.table import REAL, UNSIGNED


def _sort(x: Array, dim: int, descending: bool, out: tuple[Array, Array]) -> None:
    if x.ndim == 0:
        np.copyto(out[0], x)
        out[1].fill(0)
        return
    axis = axis_of(x, dim)
    order = np.moveaxis(order_of(x, axis, descending), axis, -1)
    np.copyto(np.moveaxis(out[1], axis, -1), order)
    np.copyto(np.moveaxis(out[0], axis, -1), elements(np.moveaxis(x, axis, -1), order))


@TABLE.kernel("aten.sort.default", dtypes=REAL | UNSIGNED)
def sort(x: Array, dim: int, descending: bool, *, out: tuple[Array, Array]) -> None:
    _sort(x, dim, descending, out)


@TABLE.kernel("aten.sort.stable", dtypes=REAL | UNSIGNED)
def sort_stable(x: Array, _stable: bool | None, dim: int, descending: bool, *, out: tuple[Array, Array]) -> None:
    _sort(x, dim, descending, out)


@TABLE.kernel("aten.argsort.default", dtypes=REAL | UNSIGNED)
def argsort(x: Array, dim: int, descending: bool, *, out: Array) -> None:
    out.fill(0) if x.ndim == 0 else np.copyto(out, order_of(x, axis_of(x, dim), descending))


@TABLE.kernel("aten.argsort.stable", dtypes=REAL | UNSIGNED)
def argsort_stable(x: Array, _stable: bool, dim: int, descending: bool, *, out: Array) -> None:
    argsort(x, dim, descending, out=out)


@TABLE.kernel("aten.msort.default")
def msort(x: Array, *, out: Array) -> None:
    np.copyto(out, np.sort(x, axis=0) if x.ndim else x)


@TABLE.kernel("aten.topk.default")
def topk(x: Array, k: int, dim: int, largest: bool, sorted_: bool, *, out: tuple[Array, Array]) -> None:
    """Find the k greatest or least elements, always in order."""
    values, indices = out
    if x.ndim == 0:
        np.copyto(values, x)
        indices.fill(0)
        return
    axis = axis_of(x, dim)
    line = np.moveaxis(x, axis, -1)
    chosen = first_of(line, k, largest)
    np.copyto(np.moveaxis(indices, axis, -1), chosen)
    np.copyto(np.moveaxis(values, axis, -1), elements(line, chosen))


@TABLE.kernel("aten.kthvalue.default")
def kthvalue(x: Array, k: int, dim: int, keepdim: bool, *, out: tuple[Array, Array]) -> None:
    """Find the k-th least element, counted from 1."""
    axis = axis_of(x, dim)
    line = np.moveaxis(x, axis, -1) if x.ndim else x.reshape(1)
    place = place_of(line, k - 1)
    np.copyto(out[1], place.reshape(out[1].shape))
    np.copyto(out[0], elements(line, place).reshape(out[0].shape))
