"""Padding: constant, reflected, replicated or circular."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from delegate.kernels.copies import CONVERTIBLE
from delegate.kernels.half_precision import Array
from delegate.kernels.table import ANY, TABLE
from delegate.program.raw import check_room

# A list of padding is (before, after) of the last dimension, then of the one before it, ...; negative pads crop.


@TABLE.kernel("aten.constant_pad_nd.default", dtypes=CONVERTIBLE)
def constant_pad(x: Array, pad: Sequence[int], value: Any, *, out: Array) -> None:
    inner, source = [slice(None)] * x.ndim, [slice(None)] * x.ndim
    for axis, before, after in _by_axis(x.ndim, pad):
        inner[axis] = slice(max(before, 0), out.shape[axis] - max(after, 0))
        source[axis] = slice(max(-before, 0), x.shape[axis] - max(-after, 0))
    if any(p > 0 for p in pad):
        np.copyto(out, np.asarray(value), casting="unsafe")
    out[tuple(inner)] = x[tuple(source)]


def _by_axis(ndim: int, pad: Sequence[int]) -> list[tuple[int, int, int]]:
    return [(ndim - 1 - i // 2, pad[i], pad[i + 1]) for i in range(0, len(pad), 2)]


@TABLE.kernel(
    "aten.reflection_pad1d.default", "aten.reflection_pad2d.default", "aten.reflection_pad3d.default", dtypes=ANY
)
def reflection_pad(x: Array, pad: Sequence[int], *, out: Array) -> None:
    """Mirror at the edge, without a repetition of the edge."""
    _gather_axes(x, pad, "reflect", out)


@TABLE.kernel("aten.replication_pad2d.default", "aten.replication_pad3d.default", dtypes=ANY)
def replication_pad(x: Array, pad: Sequence[int], *, out: Array) -> None:
    """Repeat the edge."""
    _gather_axes(x, pad, "replicate", out)


def _gather_axes(x: Array, pad: Sequence[int], mode: str, out: Array) -> None:
    for axis, before, after in _by_axis(x.ndim, pad):
        if before or after:
            check_room((x.shape[axis] + max(before, 0) + max(after, 0),), np.dtype(np.int64), x, out)
            x = x.take(_sources(x.shape[axis], before, after, mode), axis=axis)
    np.copyto(out, x)


def _sources(size: int, before: int, after: int, mode: str) -> Array:
    """Return the source position of each element of a padded axis."""
    if mode == "circular":  # around the elements that remain after cropping
        first, length = max(-before, 0), size + min(before, 0) + min(after, 0)
        return first + np.arange(-max(before, 0), length + max(after, 0)) % length
    index = np.arange(-before, size + after)
    if mode == "replicate":
        return index.clip(0, size - 1)
    index = np.abs(index)
    return np.where(index >= size, 2 * (size - 1) - index, index)
