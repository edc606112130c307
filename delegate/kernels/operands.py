"""What kernels share: torch's type promotion, operands of one dtype, dimensions, work in blocks that fit a cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from delegate.kernels.halves import Array
from delegate.kernels.table import COMPLEX, FLOAT
from delegate.program.dtypes import DType

Operand = Array | bool | int | float | complex
DTypeLike = np.dtype[Any]

# Rows for these alone leave float16 to the table, which computes it in float32 as torch does.
WIDE = FLOAT - {DType.float16}
WIDE_COMPLEX = WIDE | COMPLEX

BLOCK = 1 << 15  # elements; a few blocks of float32 fit the second-level cache
_FEW = 1 << 10  # elements that a masked copy writes sooner than a pass over their bits
_BITS = {size: np.dtype(f"i{size}") for size in (1, 2, 4, 8)}

_SCALARS = {bool: np.dtype(np.bool_), int: np.dtype(np.int64), float: np.dtype(np.float32), complex: np.dtype("c8")}


def cast(x: Operand, dtype: DTypeLike) -> Array:
    """An operand as an array of `dtype`, itself if it is one; numbers become 0-d arrays and wrap as in C."""
    if isinstance(x, np.ndarray):
        return x if x.dtype == dtype else x.astype(dtype)
    return np.asarray(x).astype(dtype)


def result_type(*operands: Operand) -> DTypeLike:
    """Torch's promotion: arrays with dimensions decide before 0-d arrays, and these before numbers."""
    return _promote(*map(_kind, operands))


def _kind(x: Operand) -> tuple[DTypeLike, bool | None]:
    """Its dtype, and whether it has dimensions; None for a number."""
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
    """A lower rank changes the dtype only if it is of a higher category (bool, integer, float, complex)."""
    if _category(lower) <= _category(higher):
        return higher
    if higher.kind == "f":  # and lower is complex: keeps the precision
        return np.result_type(higher, np.complex64)
    return lower


def _category(dtype: DTypeLike) -> int:
    return {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}[dtype.kind]


def promote_types(a: DTypeLike, b: DTypeLike) -> DTypeLike:
    """As `torch.promote_types`: unlike NumPy, an integer never widens a float."""
    if _category(a) >= 2 > _category(b):
        return a
    if _category(b) >= 2 > _category(a):
        return b
    return np.promote_types(a, b)


def axis_of(x: Array, dim: int) -> int:
    """A dimension counted from the front; 0 for a 0-d array."""
    return dim % x.ndim if x.ndim else 0


def axes_of(x: Array, dim: int | Sequence[int] | None) -> tuple[int, ...]:
    """The dimensions that a reduction names: all for None and for an empty list, none of a 0-d array."""
    if x.ndim == 0:
        return ()
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return tuple(range(x.ndim))
    return tuple(d % x.ndim for d in ([dim] if isinstance(dim, int) else dim))


def count_of(x: Array, axes: Sequence[int]) -> int:
    """How many elements one result of a reduction over these dimensions is made of."""
    return math.prod(x.shape[a] for a in axes)


def along(vector: Array, ndim: int, axis: int) -> Array:
    """A vector shaped to broadcast along one dimension of an array of `ndim` dimensions."""
    place = normalize_axis_index(axis, ndim)
    return vector.reshape([-1 if d == place else 1 for d in range(ndim)])


def blocked(function: Callable[..., None]) -> Callable[..., None]:
    """Make an elementwise kernel of `function(x, *parameters, out=...)`, where x has out's dtype.

    Large contiguous arrays are worked on block by block, so that its passes and temporaries stay in the cache.
    """
    return partial(_in_blocks, function)


def _in_blocks(function: Callable[..., None], x: Operand, *parameters: Any, out: Array) -> None:
    for given, made in blocks(cast(x, out.dtype), out):
        function(given, *parameters, out=made)


def blocks(x: Array, out: Array) -> Iterable[tuple[Array, Array]]:
    """Blocks of two arrays of one shape that stay in the cache, in one dimension; both whole where one is strided."""
    if not (x.flags.c_contiguous and out.flags.c_contiguous):
        return ((x, out),)
    flat, result = x.reshape(-1), out.reshape(-1)
    if result.size <= BLOCK:
        return ((flat, result),)
    return ((flat[at : at + BLOCK], result[at : at + BLOCK]) for at in range(0, result.size, BLOCK))


def level(value: float, like: Array) -> Array:
    """A number as an operand of maximum or minimum beside `like`: their loops are fast on equal strides alone."""
    if like.ndim == 1 and like.size <= BLOCK:
        return _level_block(value, like.dtype)[: like.size]
    return cast(value, like.dtype)


@lru_cache(maxsize=32)
def _level_block(value: float, dtype: DTypeLike) -> Array:
    block = np.full(BLOCK, cast(value, dtype))
    block.flags.writeable = False
    return block


def put(out: Array, value: Operand, places: Array) -> None:
    """Write a number to the places of a mask: by their bits, where a masked copy asks at each element anew.

    `places` is bool, of out's shape, with elements side by side.
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
    """Slices over `rows` rows of `width` elements, a block's worth of elements each."""
    step = max(1, BLOCK // max(width, 1))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))
