"""Half-precision types: bfloat16 as raw bits, and kernels that compute in float32 for them.

NumPy has no bfloat16: its arrays are the raw 16 bits as uint16. A kernel is written for float32; `widened` makes the
same kernel take float16 and bfloat16, converting what goes in and rounding what comes out, as torch does itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from delegate.program.dtypes import DType

Array = np.ndarray[Any, np.dtype[Any]]

HALF = frozenset({DType.float16, DType.bfloat16})
LARGEST_BFLOAT16 = float.fromhex("0x1.FEp127")
_FLOAT32 = np.dtype(np.float32)


def from_bfloat16(bits: Array) -> Array:
    """The float32 values of bfloat16 bits (uint16), any shape; exact."""
    wide = bits.astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)


def to_bfloat16(values: Array, out: Array | None = None) -> Array:
    """Round float32 values to bfloat16 bits (uint16), half to even; NaN stays NaN. Written to `out` if it is given."""
    bits = values.astype(np.float32, order="C").view(np.uint32)  # a copy: changed below
    nan = np.isnan(values)
    bits += ((bits >> 16) & 1) + np.uint32(0x7FFF)
    bits >>= 16
    if nan.any():
        bits[nan] = 0x7FC0
    if out is None:
        return bits.astype(np.uint16)
    np.copyto(out, bits, casting="unsafe")
    return out


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


def _widen(arg: Any, half: frozenset[np.dtype[Any]]) -> Any:
    if isinstance(arg, np.ndarray):
        if arg.dtype not in half:
            return arg
        return from_bfloat16(arg) if arg.dtype == np.uint16 else arg.astype(_FLOAT32)
    if isinstance(arg, DType):
        return DType.float32 if arg in HALF else arg
    if isinstance(arg, list | tuple):
        return [_widen(a, half) for a in arg]
    return arg
