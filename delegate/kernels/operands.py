"""Helpers of kernels: torch's type promotion, operand conversion, dimensions, and blocks that fit a cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from delegate.kernels.half_precision import Array
from delegate.kernels.table import COMPLEX, FLOAT
from delegate.program.dtypes import DType

Operand = Array | bool | int | float | complex
DTypeLike = np.dtype[Any]

# For rows with only these, the table computes float16 in float32, as torch does.
WIDE = FLOAT - {DType.float16}
WIDE_COMPLEX = WIDE | COMPLEX

BLOCK = 1 << 15  # elements; a few blocks of float32 fit the second-level cache
_FEW = 1 << 10  # elements up to which a masked copy is faster than operations on bits
_BITS = {size: np.dtype(f"i{size}") for size in (1, 2, 4, 8)}

_SCALARS = {bool: np.dtype(np.bool_), int: np.dtype(np.int64), float: np.dtype(np.float32), complex: np.dtype("c8")}


def cast(x: Operand, dtype: DTypeLike) -> Array:
    """Convert an operand to an array of `dtype`; numbers become 0-d arrays and wrap as in C."""
    if isinstance(x, np.ndarray):
        return x if x.dtype == dtype else x.astype(dtype)
    return np.asarray(x).astype(dtype)


def result_type(*operands: Operand) -> DTypeLike:
    """Return the promoted dtype as torch does.

    Arrays with dimensions have priority over 0-d arrays, and these over numbers.
    """
    return _promote(*map(_kind, operands))


def _kind(x: Operand) -> tuple[DTypeLike, bool | None]:
    """Return an operand's dtype and if it has dimensions; None for a number."""
    return (x.dtype, x.ndim > 0) if isinstance(x, np.ndarray) else (_SCALARS[type(x)], None)


@lru_cache(maxsize=1024)
def _promote(*kinds: tuple[DTypeLike, bool | None]) -> DTypeLike:
    result: DTypeLike | None = None
    for rank in (True, False, None):
        here: DTypeLike | None = None
        for dtype, of in kinds:
            if of is rank:
                here = dtype if here is None else promote_types(here, dtype)
        if here is not None:
            result = here if result is None else _combine(result, here)
    assert result is not None
    return result


def _combine(higher: DTypeLike, lower: DTypeLike) -> DTypeLike:
    """Combine dtypes: a lower rank changes the dtype only by a higher category (bool, integer, float, complex)."""
    if _category(lower) <= _category(higher):
        return higher
    if higher.kind == "f":  # lower is complex here: keep the precision
        return np.result_type(higher, np.complex64)
    return lower


def _category(dtype: DTypeLike) -> int:
    return {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}[dtype.kind]


def promote_types(a: DTypeLike, b: DTypeLike) -> DTypeLike:
    """Promote like `torch.promote_types`: unlike in NumPy, an integer never widens a float."""
    if _category(a) >= 2 > _category(b):
        return a
    if _category(b) >= 2 > _category(a):
        return b
    return np.promote_types(a, b)


def axis_of(x: Array, dim: int) -> int:
    """Return a dimension counted from the front; 0 for a 0-d array."""
    return dim % x.ndim if x.ndim else 0


def axes_of(x: Array, dim: int | Sequence[int] | None) -> tuple[int, ...]:
    """Return the dimensions of a reduction: all for None and for an empty list, none of a 0-d array."""
    if x.ndim == 0:
        return ()
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return tuple(range(x.ndim))
    return tuple(d % x.ndim for d in ([dim] if isinstance(dim, int) else dim))


def count_of(x: Array, axes: Sequence[int]) -> int:
    """Return the number of elements that a reduction over these dimensions combines."""
    return math.prod(x.shape[a] for a in axes)


def along(vector: Array, ndim: int, axis: int) -> Array:
    """Return a vector shaped to broadcast along one dimension of an array with `ndim` dimensions."""
    place = normalize_axis_index(axis, ndim)
    return vector.reshape([-1 if d == place else 1 for d in range(ndim)])


def by_blocks(function: Callable[..., None]) -> Callable[..., None]:
    """Make an elementwise kernel from `function(x, *parameters, out=...)`, where x has out's dtype.

    Large contiguous arrays are computed block by block, so that temporaries stay in the cache.
    """
    return partial(_in_blocks, function)


def _in_blocks(function: Callable[..., None], x: Operand, *parameters: Any, out: Array) -> None:
    for source, target in blocks(cast(x, out.dtype), out):
        function(source, *parameters, out=target)


def blocks(x: Array, out: Array) -> Iterable[tuple[Array, Array]]:
    """Split two arrays of one shape into 1-d blocks that fit the cache; if one is strided, yield both unsplit."""
    if not (x.flags.c_contiguous and out.flags.c_contiguous):
        return ((x, out),)
    flat, result = x.reshape(-1), out.reshape(-1)
    if result.size <= BLOCK:
        return ((flat, result),)
    return ((flat[at : at + BLOCK], result[at : at + BLOCK]) for at in range(0, result.size, BLOCK))


def level(value: float, like: Array) -> Array:
    """Return a number as an operand of maximum or minimum with `like`: NumPy is fast only on equal strides."""
    if like.ndim == 1 and like.size <= BLOCK:
        return _level_block(value, math.copysign(1.0, value), like.dtype)[: like.size]
    return cast(value, like.dtype)


@lru_cache(maxsize=32)
def _level_block(value: float, sign: float, dtype: DTypeLike) -> Array:
    """Return a block of one number, where the sign distinguishes 0.0 and -0.0, which are equal keys of the cache."""
    block = np.full(BLOCK, cast(value, dtype))
    block.flags.writeable = False
    return block


def put(out: Array, value: Operand, places: Array) -> None:
    """Write a number where a mask is true, by operations on bits: a masked copy branches at each element.

    `places` is bool, of out's shape, and contiguous.
    """
    if out.itemsize not in _BITS or out.size < _FEW:
        np.copyto(out, cast(value, out.dtype), where=places)
        return
    bits = out.view(_BITS[out.itemsize])
    others = (places.view(np.int8) - np.int8(1)).astype(bits.dtype, copy=False)
    bits &= others
    if pattern := cast(value, out.dtype).view(bits.dtype).item():
        np.invert(others, out=others)
        others &= bits.dtype.type(pattern)
        bits |= others


def row_blocks(rows: int, width: int) -> Iterator[slice]:
    """Yield slices over `rows` rows of `width` elements, each with the elements of about one block."""
    step = max(1, BLOCK // max(width, 1))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))
