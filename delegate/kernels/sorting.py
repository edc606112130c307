"""Stable sorting and selection by rank; NaN counts as the greatest.

Elements are sorted by keys. A key has an element's rank in its upper 32 bits and its position in its lower 32 bits.
NumPy sorts unsigned 64-bit integers with vector instructions, but not indirectly. Equal elements keep their order,
because their keys differ by position.
"""

from __future__ import annotations

import numpy as np

from delegate.kernels.half_precision import Array
from delegate.kernels.operands import axis_of
from delegate.kernels.table import REAL, TABLE, UNSIGNED

_SHORT = 32  # elements up to which keys are slower
_PLACE = np.uint64(0xFFFFFFFF)
_SIGN = np.uint32(0x80000000)


def order_of(x: Array, axis: int, descending: bool) -> Array:
    """Return the indices that sort along an axis; equal elements keep their order."""
    line = np.moveaxis(x, axis, -1)
    keys = _keys(line, descending)
    if keys is None:
        return np.moveaxis(_argsort(line, descending), -1, axis)
    keys.sort(axis=-1)
    return np.moveaxis(_places(keys), -1, axis)


def _first_of(line: Array, count: int, descending: bool) -> Array:
    """Return the indices of the least or greatest elements along the last axis, in order."""
    keys = _keys(line, descending)
    if keys is None:
        return _argsort(line, descending)[..., :count]
    if 0 < count < line.shape[-1] // 4:
        keys.partition(count - 1, axis=-1)
        keys = keys[..., :count].copy()
    keys.sort(axis=-1)
    return _places(keys)[..., :count]


def place_of(line: Array, rank: int) -> Array:
    """Return the index (..., 1) of the element with a rank along the last axis, counted from the least."""
    keys = _keys(line, False)
    if keys is None:
        return _argsort(line, False)[..., rank : rank + 1]
    keys.partition(rank, axis=-1)
    return _places(keys[..., rank : rank + 1].copy())


def elements(line: Array, places: Array) -> Array:
    """Return the elements at positions along the last axis."""
    if not line.size:
        return np.empty(places.shape, line.dtype)
    if line.ndim == 1:
        result: Array = line.take(places, mode="clip")
        return result
    count = line.shape[-1]
    rows = np.arange(0, line.size, max(count, 1)).reshape(*line.shape[:-1], 1)
    flat: Array = line.reshape(-1)
    return flat.take(places + rows, mode="clip")


def _argsort(line: Array, descending: bool) -> Array:
    if not descending:
        return np.argsort(line, axis=-1, kind="stable")
    backwards = np.argsort(line[..., ::-1], axis=-1, kind="stable")
    order: Array = line.shape[-1] - 1 - backwards[..., ::-1]
    return order


def _keys(line: Array, descending: bool) -> Array | None:
    """Return the keys; None if the elements are too wide or too few."""
    if line.dtype.itemsize > 4 or not _SHORT < line.shape[-1] <= _PLACE:
        return None
    ranks = _ranks(line)
    keys = (~ranks if descending else ranks).astype(np.uint64)
    keys <<= np.uint64(32)
    keys |= np.arange(line.shape[-1], dtype=np.uint64)
    return keys


def _ranks(line: Array) -> Array:
    """Return unsigned integers in the same order: the bits of floats, inverted for negative ones."""
    if line.dtype.kind in "bu":
        return line.astype(np.uint32, order="C")
    if line.dtype.kind == "i":
        return line.astype(np.int32, order="C").view(np.uint32) ^ _SIGN
    bits = np.add(line, np.float32(0), dtype=np.float32, order="C").view(np.uint32)  # -0 becomes 0
    nan = np.isnan(line)
    if nan.any():
        bits[nan] = 0x7FC00000
    inverted = (bits.view(np.int32) >> 31).view(np.uint32)
    inverted |= _SIGN
    bits ^= inverted
    return bits


def _places(keys: Array) -> Array:
    keys &= _PLACE
    return keys.view(np.int64)


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
    chosen = _first_of(line, k, largest)
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
