"""The parts, the neighbors and the angles of numbers."""

from __future__ import annotations

import math

import numpy as np

from delegate.kernels.half_precision import Array, from_bfloat16
from delegate.kernels.operands import WIDE
from delegate.kernels.table import BOOL, COMPLEX, FLOAT, INT
from delegate.program.dtypes import DType
from delegate_kernels_extra.table import TABLE

_SIGN, _NAN = np.uint16(0x8000), 0x7FC0  # of bfloat16


@TABLE.kernel("aten.frexp.Tensor", "prims.frexp.default", dtypes=WIDE | {DType.int32})
def frexp(x: Array, *, out: tuple[Array, Array]) -> None:
    """Split x into mantissa * 2 ** exponent, with the mantissa in [0.5, 1)."""
    mantissa, exponent = np.frexp(x)
    np.copyto(out[0], mantissa)
    np.copyto(out[1], np.where(np.isfinite(x), exponent, 0))


@TABLE.kernel("aten.nextafter.default", "prims.nextafter.default", dtypes=FLOAT)
def nextafter(x: Array, toward: Array, *, out: Array) -> None:
    np.nextafter(x, toward, out=out)
    np.copyto(out, toward, where=x == toward)  # NumPy returns x for float16, with another sign of zero


@TABLE.kernel("aten.nextafter.default", "prims.nextafter.default", dtypes={DType.bfloat16})
def nextafter_bfloat16(x: Array, toward: Array, *, out: Array) -> None:
    """Compute the next number from its bits, which count up away from 0."""
    start, end = from_bfloat16(x), from_bfloat16(toward)
    away = (end > start) == (start > 0)
    np.copyto(out, np.where(away, x + np.uint16(1), x - np.uint16(1)))
    np.copyto(out, (toward & _SIGN) | np.uint16(1), where=start == 0)
    np.copyto(out, toward, where=start == end)
    np.copyto(out, _NAN, where=np.isnan(start) | np.isnan(end))


@TABLE.kernel("aten.angle.default", dtypes=WIDE | INT | BOOL | COMPLEX)
def angle(x: Array, *, out: Array) -> None:
    """Compute the argument of a complex number: pi for negative numbers, 0 for others; NaN stays."""
    if x.dtype.kind == "c":
        np.arctan2(x.imag, x.real, out=out)
        return
    np.multiply(x < 0, out.dtype.type(math.pi), out=out)
    if x.dtype.kind == "f" and (nan := np.isnan(x)).any():
        np.copyto(out, x, where=nan)
