"""Views: the same memory with another shape or other strides, made once when a program is bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from delegate.errors import KernelError
from delegate.kernels.half_precision import Array
from delegate.kernels.table import COMPLEX, TABLE
from delegate.program import raw
from delegate.program.dtypes import DType
from delegate.program.raw import check_parts, strided, windows


def along(dim: int, ndim: int, index: Any) -> Any:
    """Return the NumPy index that applies `index` to one dimension and gives an array, never a scalar."""
    return (*(slice(None),) * normalize_axis_index(dim, ndim), index, ...)


def _reshape(x: Array, shape: Sequence[int]) -> Array | None:
    try:
        return x.reshape(tuple(shape), copy=False)
    except ValueError:
        if math.prod(shape) != x.size and -1 not in shape:
            raise
        return None


@TABLE.view("aten.alias.default", "aten.lift_fresh.default")
def alias(x: Array) -> Array:
    return x[...]


@TABLE.view("aten.view.default")
def view(x: Array, size: Sequence[int], *_stride: Sequence[int]) -> Array | None:
    """Reshape; one size may be -1. Return None if the strides allow no view."""
    return _reshape(x, size)


@TABLE.view("aten.view.dtype")
def view_dtype(x: Array, dtype: DType) -> Array | None:
    """Reinterpret the bytes as another dtype; the last dimension grows or shrinks with the element size."""
    try:
        return x.view(dtype.numpy)
    except ValueError:
        return None


@TABLE.view("aten.permute.default")
def permute(x: Array, dims: Sequence[int]) -> Array:
    return x.transpose(tuple(dims))


@TABLE.view("aten.slice.Tensor")
def slice_tensor(x: Array, dim: int, start: int | None, end: int | None, step: int) -> Array:
    """Slice; bounds are clamped as in Python, and the step is positive."""
    result: Array = x[along(dim, x.ndim, slice(start, end, step))]
    return result


def narrow(x: Array, dim: int, start: int, length: int) -> Array:
    first = start + x.shape[dim] if start < 0 else start
    return slice_tensor(x, dim, first, first + length, 1)


@TABLE.view("aten.select.int")
def select(x: Array, dim: int, index: int) -> Array:
    result: Array = x[along(dim, x.ndim, index)]
    return result


@TABLE.view("aten.expand.default")
def expand(x: Array, size: Sequence[int], implicit: bool) -> Array:
    """Broadcast to a size; sizes of -1 stay unchanged."""
    missing = len(size) - x.ndim
    shape = tuple(x.shape[i - missing] if n == -1 else n for i, n in enumerate(size))
    return np.broadcast_to(x, shape)


@TABLE.view("aten.squeeze.dim")
def squeeze_dim(x: Array, dim: int) -> Array:
    return squeeze_dims(x, (dim,))


@TABLE.view("aten.squeeze.dims")
def squeeze_dims(x: Array, dims: Sequence[int]) -> Array:
    """Remove dimensions of size 1; other dimensions stay."""
    if not x.ndim:
        return x[...]
    return x.squeeze(tuple(d for d in {normalize_axis_index(d, x.ndim) for d in dims} if x.shape[d] == 1))


@TABLE.view("aten.unsqueeze.default")
def unsqueeze(x: Array, dim: int) -> Array:
    return np.expand_dims(x, dim)


@TABLE.view("aten.diagonal.default")
def diagonal(x: Array, offset: int, dim1: int, dim2: int) -> Array:
    """Return the diagonal as the last dimension."""
    return raw.diagonal(x, offset, dim1, dim2)


@TABLE.view("aten.unfold.default")
def unfold(x: Array, dim: int, size: int, step: int) -> Array:
    """Return windows along a dimension; their elements become the last dimension."""
    if not x.ndim:
        return x.reshape(1)[:size]
    axis = normalize_axis_index(dim, x.ndim)
    count = (x.shape[axis] - size) // step + 1
    return np.moveaxis(windows(np.moveaxis(x, axis, -1), (size,), (step,), (1,), (count,)), -1, axis)


@TABLE.view("aten.as_strided.default")
def as_strided(x: Array, size: Sequence[int], stride: Sequence[int], offset: int | None) -> Array | None:
    """Return a view by strides and offset, which count elements of `x` in row-major order; None if it is not row-major.

    Raises:
        KernelError: the view would exceed `x`.
    """
    return strided(x.reshape(-1), size, stride, offset or 0) if x.flags.c_contiguous else None


@TABLE.view("aten.split_with_sizes.default")
def split_with_sizes(x: Array, sizes: Sequence[int], dim: int) -> tuple[Array, ...]:
    """Split into parts of these sizes; raise KernelError if they do not sum to the dimension."""
    if sum(sizes) != x.shape[dim]:
        raise KernelError(f"the sizes {list(sizes)} do not add up to the dimension's size {x.shape[dim]}")
    bounds = pairwise(accumulate(sizes, initial=0))
    return tuple(x[along(dim, x.ndim, slice(begin, end))] for begin, end in bounds)


def split(x: Array, size: int, dim: int) -> tuple[Array, ...]:
    """Split into parts of `size`; the last part is smaller if `size` does not divide the dimension."""
    length = x.shape[dim]
    check_parts(-(-length // max(size, 1)))
    return split_with_sizes(x, [min(size, length - b) for b in range(0, length, max(size, 1))] or [length], dim)


def unbind(x: Array, dim: int) -> tuple[Array, ...]:
    return tuple(x[along(dim, x.ndim, i)] for i in range(check_parts(x.shape[dim])))


@TABLE.view("aten.real.default")
def real(x: Array) -> Array:
    return x.real


@TABLE.view("aten.imag.default", dtypes=COMPLEX | {DType.float32, DType.float64})
def imag(x: Array) -> Array:
    return x.imag


@TABLE.view("aten.view_as_real.default", dtypes=COMPLEX | {DType.float32, DType.float64})
def view_as_real(x: Array) -> Array:
    """View (...) complex as (..., 2) real."""
    return x[..., None].view(x.real.dtype)


@TABLE.view("aten.view_as_complex.default", dtypes=COMPLEX | {DType.float32, DType.float64})
def view_as_complex(x: Array) -> Array | None:
    """View (..., 2) real as (...) complex."""
    if x.strides[-1] != x.itemsize:
        return None
    return x.view(np.dtype(f"c{2 * x.itemsize}"))[..., 0]
