"""The parts and the neighbors of numbers."""

from __future__ import annotations

import numpy as np

from delegate.kernels.half_precision import Array, from_bfloat16
from delegate.kernels.operands import WIDE
from delegate.kernels.table import FLOAT
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
