"""Operators on the representation of numbers: parts and neighbors of floats, parts of complex numbers."""

from __future__ import annotations

import math

import numpy as np

from delegate.kernels.half_precision import Array, from_bfloat16
from delegate.kernels.operands import WIDE, Operand, cast
from delegate.kernels.portable_table import TABLE
from delegate.kernels.table import ANY, BOOL, COMPLEX, FLOAT, INT
from delegate.program.dtypes import DType

_SIGN, _NAN = np.uint16(0x8000), 0x7FC0  # of bfloat16


@TABLE.kernel("aten.frexp.Tensor", dtypes=WIDE | {DType.int32})
def frexp(x: Array, *, out: tuple[Array, Array]) -> None:
    """Split x into mantissa * 2 ** exponent, with the mantissa in [0.5, 1)."""
    mantissa, exponent = np.frexp(x)
    np.copyto(out[0], mantissa)
    np.copyto(out[1], np.where(np.isfinite(x), exponent, 0))


@TABLE.kernel("aten.ldexp.Tensor", dtypes=WIDE | COMPLEX | INT | BOOL)
def ldexp(x: Operand, exponent: Operand, *, out: Array) -> None:
    """Compute x * 2 ** exponent."""
    np.multiply(cast(x, out.dtype), np.power(out.dtype.type(2), cast(exponent, out.dtype)), out=out)


@TABLE.kernel("aten.nextafter.default", dtypes=FLOAT)
def nextafter(x: Array, toward: Array, *, out: Array) -> None:
    np.nextafter(x, toward, out=out)


@TABLE.kernel("aten.nextafter.default", dtypes={DType.bfloat16})
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


@TABLE.kernel(
    "aten._conj.default", "aten.conj.default", "aten._conj_physical.default", "aten.conj_physical.default", dtypes=ANY
)
def conjugate(x: Array, *, out: Array) -> None:
    np.conjugate(x, out=out) if x.dtype.kind == "c" else np.copyto(out, x)


@TABLE.kernel("aten._neg_view.default", dtypes=FLOAT | INT | COMPLEX)
def negate(x: Array, *, out: Array) -> None:
    """Negate. Torch uses this lazy operator for the imaginary part of a conjugate."""
    np.negative(x, out=out)
