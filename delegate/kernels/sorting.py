"""Sorting: stable, NaN counts as the greatest."""

from __future__ import annotations

import numpy as np

from delegate.kernels.halves import Array
from delegate.kernels.operands import axis_of
from delegate.kernels.portable_table import TABLE
from delegate.kernels.table import REAL, UNSIGNED


def order_of(x: Array, axis: int, descending: bool) -> Array:
    """The indices that sort along an axis; equal elements keep their order."""
    if not descending:
        return np.argsort(x, axis=axis, kind="stable")
    backwards = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
    order: Array = x.shape[axis] - 1 - np.flip(backwards, axis)
    return order


def _sort(x: Array, dim: int, descending: bool, out: tuple[Array, Array]) -> None:
    if x.ndim == 0:
        np.copyto(out[0], x)
        out[1].fill(0)
        return
    order = order_of(x, axis_of(x, dim), descending)
    np.copyto(out[1], order)
    np.copyto(out[0], np.take_along_axis(x, order, dim))


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
    """The k greatest or least elements, always in order."""
    values, indices = out
    if x.ndim == 0:
        np.copyto(values, x)
        indices.fill(0)
        return
    axis = axis_of(x, dim)
    line = np.moveaxis(x, axis, -1)
    if 0 < k < line.shape[-1] // 4:
        candidates = _partition(line, k, largest)
        order = order_of(np.take_along_axis(line, candidates, -1), -1, largest)
        chosen = np.take_along_axis(candidates, order, -1)
    else:
        chosen = order_of(line, -1, largest)[..., :k]
    np.copyto(np.moveaxis(indices, axis, -1), chosen)
    np.copyto(np.moveaxis(values, axis, -1), np.take_along_axis(line, chosen, -1))


def _partition(line: Array, k: int, largest: bool) -> Array:
    """Indices of the k greatest or least along the last axis, in the order of their places."""
    count = line.shape[-1]
    parts = np.argpartition(line, count - k if largest else k - 1, axis=-1)
    return np.sort(parts[..., count - k :] if largest else parts[..., :k], axis=-1)


@TABLE.kernel("aten.kthvalue.default")
def kthvalue(x: Array, k: int, dim: int, keepdim: bool, *, out: tuple[Array, Array]) -> None:
    """The k-th least element, counted from 1."""
    axis = axis_of(x, dim)
    line = x if x.ndim else x.reshape(1)
    place = order_of(line, axis, False).take([k - 1], axis)
    np.copyto(out[1], place.reshape(out[1].shape))
    np.copyto(out[0], np.take_along_axis(line, place, axis).reshape(out[0].shape))
