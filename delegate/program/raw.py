"""Arrays over memory that NumPy does not check, and memory whose size comes from an argument, all in one module.

`as_strided`, `frombuffer` and the like do not check that their result lies inside the array, and a program file is
untrusted. So nothing else in this project calls them, which a test checks. Each function here checks its arguments
first: its result lies in the memory of its input.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from delegate.errors import KernelError

Array = np.ndarray[Any, np.dtype[Any]]

MOST_BYTES = 2**62  # of one tensor: sums of a few such numbers stay within 64 bits
_ALWAYS_ALLOWED = 1 << 26  # bytes that an argument may always require
_MOST_PARTS = 1 << 16  # results of one operator
_MOST_COUNTED = 1 << 40
_TIMES = 64  # times the bytes of the operator's tensors, in addition


def array_over(data: Any, dtype: np.dtype[Any], shape: Sequence[int], offset: int = 0) -> Array:
    """Return an array of a shape over an object with the buffer protocol, from `offset` on; read-only if the object is.

    Raises:
        ValueError: the bytes do not hold it.
    """
    size, available = nbytes(shape, dtype), memoryview(data).nbytes
    if offset < 0 or offset + size > available:
        raise ValueError(f"{dtype}{list(shape)} at byte {offset} does not fit into {available} bytes")
    if size == 0:
        return np.empty(shape, dtype)
    return np.frombuffer(data, dtype, size // dtype.itemsize, offset).reshape(shape)


def writable_view(array: Array) -> Array:
    """Return a writable view of a row-major array, for libraries that reject a read-only array but only read from it.

    If the memory itself is read-only, as a file's is, the view does not keep it alive.

    Raises:
        ValueError: the array is not row-major.
    """
    if not array.flags.c_contiguous:
        raise ValueError("the array is not contiguous")
    view = array.view()
    try:
        view.setflags(write=True)
    except ValueError:
        memory = (ctypes.c_uint8 * array.nbytes).from_address(array.ctypes.data)
        return array_over(memory, array.dtype, array.shape)
    return view


def nbytes(shape: Iterable[int], dtype: np.dtype[Any]) -> int:
    """Return the bytes of an array; raise ValueError for a negative size, or for more bytes than any memory has."""
    sizes = list(map(int, shape))
    size = dtype.itemsize * math.prod(sizes)
    if min(sizes, default=0) < 0 or dtype.itemsize * math.prod(n for n in sizes if n) > MOST_BYTES:
        raise ValueError(f"the shape {sizes} is invalid")
    return size


def strided(x: Array, shape: Sequence[int], strides: Sequence[int], offset: int) -> Array:
    """Return a view of a contiguous vector x (n). Strides and offset count its elements; strides may be negative.

    Raises:
        KernelError: an element of the view lies outside of x, or sizes and strides are not of one length.
    """
    if len(shape) != len(strides):
        raise KernelError(f"{len(shape)} sizes, but {len(strides)} strides")
    _require_sizes(shape)
    if x.ndim != 1 or not x.flags.c_contiguous:
        raise KernelError("only a contiguous vector can be viewed with other strides")
    if math.prod(shape):
        ends = [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
        first = offset + sum(e for e in ends if e < 0)
        last = offset + sum(e for e in ends if e > 0)
        if first < 0 or last >= x.size:
            raise KernelError(
                f"strides go outside the memory of the tensor ({x.size} elements): from {first} to {last}",
                where=f"sizes {list(shape)}, strides {list(strides)}, offset {offset}",
                remedy="use view, slice and permute in the model",
            )
        x = x[offset:]
    return as_strided(x, tuple(shape), tuple(s * x.itemsize if math.prod(shape) else 0 for s in strides))


def windows(
    x: Array, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int], count: Sequence[int]
) -> Array:
    """Return a view of shape (..., *kernel, *count): element [k, i] is x[i * stride + k * dilation]. x is (...,
    *spatial).

    Raises:
        KernelError: a window lies outside of x.
    """
    rank = len(kernel)
    if not rank == len(stride) == len(dilation) == len(count) or rank > x.ndim:
        raise KernelError(f"kernel {list(kernel)}, stride {list(stride)}, dilation {list(dilation)} differ in length")
    _require_sizes((*kernel, *count))
    size = x.shape[x.ndim - rank :]
    if math.prod(kernel) and math.prod(count):
        for n, k, s, d, o in zip(size, kernel, stride, dilation, count, strict=True):
            if min(s, d) < 0 or (o - 1) * s + (k - 1) * d >= n:
                raise KernelError(
                    f"{o} windows of {k} elements, stride {s} and dilation {d} do not fit into {n} elements",
                    remedy="check the sizes that are passed to the operator",
                )
        steps = [*zip(x.strides[x.ndim - rank :], dilation, strict=True)]
        steps += zip(x.strides[x.ndim - rank :], stride, strict=True)
        inner = tuple(step * times for step, times in steps)
    else:
        inner = (0,) * (2 * rank)
    shape = (*x.shape[: x.ndim - rank], *kernel, *count)
    return as_strided(x, shape, (*x.strides[: x.ndim - rank], *inner), writeable=False)


def shadow(shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """Return an array of a shape with row-major strides that takes no memory, for code that reads strides, not
    elements.

    Raises:
        ValueError: no array has that shape.
    """
    nbytes(shape, dtype)
    strides = [dtype.itemsize] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * max(shape[i + 1], 1)
    return as_strided(np.zeros(1, dtype), shape, strides, writeable=False)


def check_room(shape: Iterable[int], dtype: np.dtype[Any], *tensors: Array) -> None:
    """Check that a kernel may allocate an array whose shape comes from its arguments, given its tensors.

    Raises:
        KernelError: the array would be many times as large as the tensors, which no real model needs.
    """
    sizes = list(shape)
    size = dtype.itemsize * math.prod(sizes)
    if min(sizes, default=0) < 0 or size > _ALWAYS_ALLOWED + _TIMES * sum(x.nbytes for x in tensors):
        raise KernelError(
            f"the arguments require working memory of the shape {sizes}",
            remedy="check the sizes that are passed to the operator",
        )


def repeated(x: Array, repeats: int | Array, axis: int | None, count: int) -> Array:
    """Repeat each part of an axis, or of the flattened array, by the numbers in `repeats`; `count` parts in total.

    Raises:
        KernelError: a number is negative, or they are not `count` in all. NumPy adds them up in 64 bits, and writes
            beyond its result where that is not enough.
    """
    parts = x.size if axis is None else x.shape[axis]
    numbers = np.asarray(repeats)
    least, most = int(numbers.min(initial=0)), int(numbers.max(initial=0))
    if least < 0:
        raise KernelError("repeats are negative", where=f"the least is {least}")
    if most > MOST_BYTES // max(parts, 1):
        raise KernelError(
            f"cannot repeat elements {most} times", remedy="check the repeats that are passed to the operator"
        )
    if (total := int(numbers.sum(dtype=np.int64)) * (parts if numbers.ndim == 0 or numbers.size == 1 else 1)) != count:
        raise KernelError(f"there are {total} repeated parts, but the result has {count}")
    return np.repeat(x, numbers, axis=axis)


def occurrences(numbers: Array, weights: Array | None, least: int) -> Array:
    """Count the occurrences of each number from 0 on, or sum its weights, with at least `least` entries.

    Raises:
        KernelError: a number is negative, or too large to count up to. NumPy adds 1 to the largest in 64 bits, and
            writes where it likes if that is not enough.
    """
    low, high = int(numbers.min(initial=0)), int(numbers.max(initial=0))
    if low < 0:
        raise KernelError("numbers to count must not be negative", where=f"the least is {low}")
    if high > _MOST_COUNTED:
        raise KernelError(
            f"the numbers to count are too large: up to {high}",
            remedy="pass smaller numbers: the result has an element for each number up to the largest",
        )
    return np.bincount(numbers, weights, least)


def diagonal(x: Array, offset: int, dim1: int, dim2: int) -> Array:
    """Return the diagonal as the last dimension; empty if the offset is outside, which NumPy does not check."""
    rows, columns = x.shape[dim1], x.shape[dim2]
    return x.diagonal(max(-rows, min(offset, columns)), dim1, dim2)


def combine_at(ufunc: np.ufunc, out: Array, places: tuple[Any, ...], values: Any) -> None:
    """Call `ufunc.at`, which writes outside of `out` if the values have more dimensions than the places.

    Raises:
        KernelError: the values have more dimensions.
    """
    arrays = [p for p in places if isinstance(p, np.ndarray)]
    masks = [p for p in arrays if p.dtype == bool]
    consumed = sum(p.ndim for p in masks) + len(arrays) - len(masks)
    rank = out.ndim - consumed + max((1 if p.dtype == bool else p.ndim for p in arrays), default=0)
    if np.ndim(values) > rank:
        raise KernelError(f"values of {np.ndim(values)} dimensions cannot be written to places of {rank} dimensions")
    ufunc.at(out, places, values)


def same_shape(*arrays: Array) -> None:
    """Raise KernelError unless all arrays have one shape."""
    if any(a.shape != arrays[0].shape for a in arrays[1:]):
        shapes = ", ".join(str(list(a.shape)) for a in arrays)
        raise KernelError(f"the tensors must have one shape, not {shapes}")


def check_parts(count: int) -> int:
    """Return a number of parts to split a tensor into; raise KernelError if it is negative or too large."""
    if not 0 <= count <= _MOST_PARTS:
        raise KernelError(
            f"a tensor cannot be split into {count} parts", remedy="check the sizes that are passed to the operator"
        )
    return count


def _require_sizes(shape: Sequence[int]) -> None:
    if min(shape, default=0) < 0 or math.prod(n for n in shape if n) > MOST_BYTES:
        raise KernelError(f"the shape {list(shape)} is invalid")
