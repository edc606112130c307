"""Half-precision types: bfloat16 as raw bits, and kernels that compute in float32 for them.

NumPy has no bfloat16: its arrays are the raw 16 bits as uint16. A kernel is written for float32; `widened` makes the
same kernel take float16 and bfloat16, converting what goes in and rounding what comes out, as torch does itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from delegate.program.dtypes import DType

Array = np.ndarray[Any, np.dtype[Any]]

HALF = frozenset({DType.float16, DType.bfloat16})
LARGEST_BFLOAT16 = float.fromhex("0x1.FEp127")
_FLOAT32 = np.dtype(np.float32)
_HIGH = 1 if sys.byteorder == "little" else 0  # which half of a float32 is the bfloat16
_SMALL = 1 << 10  # elements that NumPy converts as fast as we do
_FIELDS = np.int32(-0x70002000)  # the sign, and the 15 bits of exponent and mantissa, of a float16 that was moved
_SCALE, _BEYOND = np.float32(2.0**112), np.float32(65536)
_BLOCK = 1 << 14  # elements whose temporaries stay in the cache


def from_bfloat16(bits: Array) -> Array:
    """The float32 values of bfloat16 bits (uint16), any shape; exact."""
    wide = bits.astype(np.uint32, order="C")
    wide <<= 16
    return wide.view(np.float32)


def from_float16(values: Array) -> Array:
    """float16 as float32, any shape, in the same order; exact. NumPy itself converts one element after the other."""
    if values.size < _SMALL or not (values.flags.c_contiguous or values.flags.f_contiguous):
        return values.astype(_FLOAT32)
    if not values.flags.c_contiguous:
        return from_float16(values.T).T
    wide = np.empty(values.shape, _FLOAT32)
    given, made = values.reshape(-1), wide.reshape(-1)
    for start in range(0, given.size, _BLOCK):
        widen_float16(given[start : start + _BLOCK], made[start : start + _BLOCK])
    return wide


def widen_float16(half: Array, out: Array) -> None:
    """float16 into float32, of one shape: sign, exponent and mantissa are moved to where float32 has them.

    The exponent counts from another number there.
    """
    bits = out.view(np.int32)
    np.copyto(bits, half.view(np.int16))
    bits <<= 13
    bits &= _FIELDS
    out *= _SCALE
    if out.max() >= _BEYOND or out.min() <= -_BEYOND:  # infinity and NaN are no numbers with a large exponent
        np.copyto(out, half)


def to_bfloat16(values: Array, out: Array | None = None) -> Array:
    """Round float32 values to bfloat16 bits (uint16), half to even; NaN stays NaN. Written to `out` if it is given."""
    result = np.empty(values.shape, np.uint16) if out is None else out
    source = np.ascontiguousarray(values, np.float32).reshape(-1).view(np.uint32)
    flat = result.reshape(-1) if result.flags.c_contiguous else np.empty(result.size, np.uint16)
    for start in range(0, source.size, _BLOCK):
        _round(source[start : start + _BLOCK], flat[start : start + _BLOCK])
    if not result.flags.c_contiguous:
        np.copyto(result, flat.reshape(result.shape))
    return result


def _round(bits: Array, out: Array) -> None:
    """The upper halves of float32 bits, rounded to even by the lower ones."""
    rounded = bits >> 16
    rounded &= 1
    rounded += 0x7FFF
    rounded += bits
    nan = np.isnan(bits.view(np.float32))
    if nan.any():
        rounded[nan] = 0x7FC00000
    np.copyto(out, rounded.view(np.uint16)[_HIGH::2])


def widened(function: Callable[..., None], dtypes: frozenset[DType]) -> Callable[..., None]:
    """A kernel's function for the half types among `dtypes` (of all its arguments and results), computed in float32."""
    return partial(_run_wide, function, frozenset(t.numpy for t in dtypes & HALF))


def _run_wide(function: Callable[..., None], half: frozenset[np.dtype[Any]], *args: Any, out: Any) -> None:
    results = out if isinstance(out, tuple) else (out,)
    wide = tuple(np.empty(r.shape, np.float32) if r.dtype in half else r for r in results)
    function(*[_widen(a, half) for a in args], out=wide if isinstance(out, tuple) else wide[0])
    for result, temporary in zip(results, wide, strict=True):
        if result is temporary:
            continue
        if result.dtype == np.uint16:
            to_bfloat16(temporary, result)
        else:
            np.copyto(result, temporary, casting="same_kind")


def widened_allocating(function: Callable[..., Any], dtypes: frozenset[DType]) -> Callable[..., Any]:
    """The same for a function that makes its results; there must be one half type, which the float32 ones get."""
    return partial(_allocate_wide, function, next(iter(dtypes & HALF)))


def _allocate_wide(function: Callable[..., Any], half: DType, *args: Any) -> Any:
    made = function(*[_widen(a, frozenset({half.numpy})) for a in args])
    narrow = [_narrowed(r, half) for r in (made if isinstance(made, tuple) else (made,))]
    return tuple(narrow) if isinstance(made, tuple) else narrow[0]


def _narrowed(result: Array, half: DType) -> Array:
    if result.dtype != np.float32:
        return result
    return to_bfloat16(result) if half is DType.bfloat16 else result.astype(half.numpy)


def _widen(arg: Any, half: frozenset[np.dtype[Any]]) -> Any:
    if isinstance(arg, np.ndarray):
        if arg.dtype not in half:
            return arg
        return from_bfloat16(arg) if arg.dtype == np.uint16 else from_float16(arg)
    if isinstance(arg, DType):
        return DType.float32 if arg in HALF else arg
    if isinstance(arg, list | tuple):
        return [_widen(a, half) for a in arg]
    return arg
