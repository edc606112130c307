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


@TABLE.view("aten.alias.default", "aten.detach.default", "aten.lift_fresh.default")
def alias(x: Array) -> Array:
    return x[...]


@TABLE.view("aten.view.default", "aten._unsafe_view.default", "aten.reshape.default", "aten._reshape_alias.default")
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


@TABLE.view("aten.view_as.default", "aten.reshape_as.default")
def view_as(x: Array, other: Array) -> Array | None:
    return _reshape(x, other.shape)


@TABLE.view("aten.permute.default")
def permute(x: Array, dims: Sequence[int]) -> Array:
    return x.transpose(tuple(dims))


@TABLE.view("aten.transpose.int", "aten.swapaxes.default", "aten.swapdims.default")
def transpose(x: Array, dim0: int, dim1: int) -> Array:
    return x.swapaxes(dim0, dim1) if x.ndim else x[...]


@TABLE.view("aten.t.default", "aten.numpy_T.default")
def t(x: Array) -> Array:
    return x.T


@TABLE.view("aten.mT.default")
def matrix_transpose(x: Array) -> Array:
    return x.swapaxes(-1, -2)


@TABLE.view("aten.movedim.int", "aten.movedim.intlist", "aten.moveaxis.int", "aten.moveaxis.intlist")
def movedim(x: Array, source: int | Sequence[int], destination: int | Sequence[int]) -> Array:
    return np.moveaxis(x, source, destination)


@TABLE.view("aten.slice.Tensor")
def slice_tensor(x: Array, dim: int, start: int | None, end: int | None, step: int) -> Array:
    """Slice; bounds are clamped as in Python, and the step is positive."""
    result: Array = x[along(dim, x.ndim, slice(start, end, step))]
    return result


@TABLE.view("aten.narrow.default")
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


@TABLE.view("aten.expand_as.default")
def expand_as(x: Array, other: Array) -> Array:
    return np.broadcast_to(x, other.shape)


@TABLE.view("aten.squeeze.default")
def squeeze(x: Array) -> Array:
    return x.squeeze()


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


@TABLE.view("aten.flatten.using_ints")
def flatten(x: Array, start: int, end: int) -> Array | None:
    if not x.ndim:
        return x.reshape(1)
    first, last = normalize_axis_index(start, x.ndim), normalize_axis_index(end, x.ndim)
    return _reshape(x, (*x.shape[:first], math.prod(x.shape[first : last + 1]), *x.shape[last + 1 :]))


@TABLE.view("aten.ravel.default")
def ravel(x: Array) -> Array | None:
    return _reshape(x, (x.size,))


@TABLE.view("aten.unflatten.int")
def unflatten(x: Array, dim: int, sizes: Sequence[int]) -> Array | None:
    axis = normalize_axis_index(dim, x.ndim)
    return _reshape(x, (*x.shape[:axis], *sizes, *x.shape[axis + 1 :]))


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


@TABLE.view("aten.split_with_sizes.default", "aten.split.sizes")
def split_with_sizes(x: Array, sizes: Sequence[int], dim: int) -> tuple[Array, ...]:
    """Split into parts of these sizes; raise KernelError if they do not sum to the dimension."""
    if sum(sizes) != x.shape[dim]:
        raise KernelError(f"the sizes {list(sizes)} do not add up to the dimension's size {x.shape[dim]}")
    bounds = pairwise(accumulate(sizes, initial=0))
    return tuple(x[along(dim, x.ndim, slice(begin, end))] for begin, end in bounds)


@TABLE.view("aten.split.Tensor")
def split(x: Array, size: int, dim: int) -> tuple[Array, ...]:
    """Split into parts of `size`; the last part is smaller if `size` does not divide the dimension."""
    length = x.shape[dim]
    check_parts(-(-length // max(size, 1)))
    return split_with_sizes(x, [min(size, length - b) for b in range(0, length, max(size, 1))] or [length], dim)


@TABLE.view("aten.chunk.default")
def chunk(x: Array, chunks: int, dim: int) -> tuple[Array, ...]:
    """Split into at most `chunks` equal parts; the last part may be smaller."""
    if x.shape[dim] == 0:
        return split_with_sizes(x, [0] * check_parts(chunks), dim)
    return split(x, -(-x.shape[dim] // chunks), dim)


@TABLE.view("aten.tensor_split.sections")
def tensor_split(x: Array, sections: int, dim: int) -> tuple[Array, ...]:
    small, more = divmod(x.shape[dim], sections)
    return split_with_sizes(x, [small + (i < more) for i in range(check_parts(sections))], dim)


@TABLE.view("aten.tensor_split.indices")
def tensor_split_indices(x: Array, indices: Sequence[int], dim: int) -> tuple[Array, ...]:
    bounds = pairwise([None, *indices, None])
    return tuple(x[along(dim, x.ndim, slice(begin, end))] for begin, end in bounds)


@TABLE.view("aten.unbind.int")
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
