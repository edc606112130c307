"""Half-precision types: bfloat16 as raw bits, and float32 computation for kernels of 16-bit floats.

NumPy has no bfloat16: its arrays are the raw 16 bits as uint16, so a kernel is written for float32. `widen_kernel`
makes it accept float16 and bfloat16: the arguments are converted and the results are rounded, as in torch.
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
_FLOAT32 = np.dtype(np.float32)
_HIGH = 1 if sys.byteorder == "little" else 0  # the 16 bits of a float32 that are the bfloat16
_SMALL = 1 << 10  # elements up to which NumPy's own conversion is as fast
_FIELDS = np.int32(-0x70002000)  # the sign, and the 15 bits of exponent and mantissa, of a shifted float16
_SCALE, _BEYOND = np.float32(2.0**112), np.float32(65536)
_BLOCK = 1 << 14  # elements per block: the temporaries fit the cache


def from_bfloat16(bits: Array) -> Array:
    """Convert bfloat16 bits (uint16) of any shape to float32 values; exact."""
    wide = bits.astype(np.uint32, order="C")
    wide <<= 16
    return wide.view(np.float32)


def from_float16(values: Array) -> Array:
    """Convert float16 of any shape to float32 in the same memory order; exact. NumPy converts one element at a time."""
    if values.size < _SMALL or not (values.flags.c_contiguous or values.flags.f_contiguous):
        return values.astype(_FLOAT32)
    if not values.flags.c_contiguous:
        return from_float16(values.T).T
    wide = np.empty(values.shape, _FLOAT32)
    source, target = values.reshape(-1), wide.reshape(-1)
    for start in range(0, source.size, _BLOCK):
        widen_float16(source[start : start + _BLOCK], target[start : start + _BLOCK])
    return wide


def widen_float16(half: Array, out: Array) -> None:
    """Convert float16 to float32 of the same shape, by shifting sign, exponent and mantissa to their places in float32.

    A multiplication then corrects the exponent, which has another bias in float32.
    """
    bits = out.view(np.int32)
    np.copyto(bits, half.view(np.int16))
    bits <<= 13
    bits &= _FIELDS
    out *= _SCALE
    if out.max() >= _BEYOND or out.min() <= -_BEYOND:  # infinity and NaN are not mere numbers with a large exponent
        np.copyto(out, half)


def widen_bfloat16(half: Array, out: Array) -> None:
    """Convert bfloat16 bits to float32 of the same shape."""
    bits = out.view(np.uint32)
    np.copyto(bits, half)
    bits <<= 16


def to_bfloat16(values: Array, out: Array | None = None) -> Array:
    """Round float32 values to bfloat16 bits (uint16), ties to even; NaN stays NaN. Write to `out` if there is one."""
    result = np.empty(values.shape, np.uint16) if out is None else out
    source = np.ascontiguousarray(values, np.float32).reshape(-1).view(np.uint32)
    flat = result.reshape(-1) if result.flags.c_contiguous else np.empty(result.size, np.uint16)
    for start in range(0, source.size, _BLOCK):
        _round(source[start : start + _BLOCK], flat[start : start + _BLOCK])
    if not result.flags.c_contiguous:
        np.copyto(result, flat.reshape(result.shape))
    return result


def _round(bits: Array, out: Array) -> None:
    """Round float32 bits to their upper 16 bits, ties to even."""
    rounded = bits >> 16
    rounded &= 1
    rounded += 0x7FFF
    rounded += bits
    nan = np.isnan(bits.view(np.float32))
    if nan.any():
        rounded[nan] = 0x7FC00000
    np.copyto(out, rounded.view(np.uint16)[_HIGH::2])


def widen_kernel(function: Callable[..., None], dtypes: frozenset[DType]) -> Callable[..., None]:
    """Return a kernel's function for the half types among `dtypes` (of all its tensors), computed in float32."""
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


Rounding = Callable[[Array], Array]


def exact(values: Array) -> Array:
    """Return the values; the rounding of intermediate results in float32 and wider dtypes."""
    return values


def stepwise_kernel(function: Callable[..., None], dtype: DType) -> Callable[..., None]:
    """Return a kernel's function for one half type, computed in float32 with intermediate results of that type.

    Args:
        function: takes `rounded`, a `Rounding`, which it applies to each intermediate result.
        dtype: float16 or bfloat16.
    """
    rounded = _round_to_bfloat16 if dtype is DType.bfloat16 else _round_to_float16
    return partial(_run_wide, partial(function, rounded=rounded), frozenset({dtype.numpy}))


def _round_to_float16(values: Array) -> Array:
    return from_float16(values.astype(np.float16))


def _round_to_bfloat16(values: Array) -> Array:
    return from_bfloat16(to_bfloat16(values))


def widen_allocating_kernel(function: Callable[..., Any], dtypes: frozenset[DType]) -> Callable[..., Any]:
    """Return, like `widen_kernel`, a function that allocates its results, in the half type of `dtypes` for float32."""
    return partial(_allocate_wide, function, next(iter(dtypes & HALF)))


def _allocate_wide(function: Callable[..., Any], half: DType, *args: Any) -> Any:
    results = function(*[_widen(a, frozenset({half.numpy})) for a in args])
    narrow = [_narrow(r, half) for r in (results if isinstance(results, tuple) else (results,))]
    return tuple(narrow) if isinstance(results, tuple) else narrow[0]


def _narrow(result: Array, half: DType) -> Array:
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
