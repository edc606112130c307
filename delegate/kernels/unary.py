"""Elementwise functions of one tensor: mathematics, rounding, tests for NaN and infinity, and parts of numbers."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from delegate.kernels.erf import erf, erfc
from delegate.kernels.half_precision import LARGEST_BFLOAT16, Array, from_bfloat16, to_bfloat16
from delegate.kernels.operands import WIDE, Operand, blocks, by_blocks, cast, put
from delegate.kernels.table import ANY, BOOL, COMPLEX, FLOAT, INT, REAL, TABLE, UNSIGNED
from delegate.program.dtypes import DType

_MAX_DECIMALS = 308  # of a float

# Results of integers and bools are floats, of the dtype of `out`.
_TO_FLOAT: dict[str, np.ufunc] = {
    "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh, "atan": np.arctan,
    "atanh": np.arctanh, "cos": np.cos, "cosh": np.cosh, "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1,
    "log": np.log, "log10": np.log10, "log1p": np.log1p, "log2": np.log2, "reciprocal": np.reciprocal, "sin": np.sin,
    "sinh": np.sinh, "sqrt": np.sqrt, "tan": np.tan, "tanh": np.tanh,
}  # fmt: skip
_SAME: dict[str, np.ufunc] = {
    "neg": np.negative, "square": np.square, "ceil": np.ceil, "floor": np.floor, "trunc": np.trunc,
    "bitwise_not": np.invert, "positive": np.positive,
}  # fmt: skip
_TO_BOOL: dict[str, np.ufunc] = {
    "isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite, "logical_not": np.logical_not,
}  # fmt: skip


def _convert(ufunc: np.ufunc, x: Array, *, out: Array) -> None:
    ufunc(cast(x, out.dtype), out=out)


def _direct(ufunc: np.ufunc, x: Array, *, out: Array) -> None:
    ufunc(x, out=out)


for _names, _apply in ((_TO_FLOAT, _convert), (_SAME, _convert), (_TO_BOOL, _direct)):
    for _name, _ufunc in _names.items():
        TABLE.kernel(f"aten.{_name}.default", dtypes=REAL | COMPLEX | UNSIGNED, in_place=True)(partial(_apply, _ufunc))
TABLE.kernel("aten.abs.default", dtypes=REAL | COMPLEX, in_place=True)(partial(_direct, np.absolute))
TABLE.kernel("aten.erf.default", dtypes=WIDE | INT | BOOL | UNSIGNED)(by_blocks(erf))
TABLE.kernel("aten.erfc.default", dtypes=WIDE | INT | BOOL | UNSIGNED)(by_blocks(erfc))


@TABLE.kernel("aten.signbit.default")
def signbit(x: Array, *, out: Array) -> None:
    np.signbit(x, out=out) if x.dtype.kind == "f" else np.less(x, 0, out=out)


@TABLE.kernel("aten.isposinf.default")
def isposinf(x: Array, *, out: Array) -> None:
    np.equal(x, math.inf, out=out) if x.dtype.kind == "f" else out.fill(False)


@TABLE.kernel("aten.isneginf.default")
def isneginf(x: Array, *, out: Array) -> None:
    np.equal(x, -math.inf, out=out) if x.dtype.kind == "f" else out.fill(False)


@TABLE.kernel("aten.sign.default", "aten.sgn.default")
def sign(x: Array, *, out: Array) -> None:
    """Compute the sign; as in torch, it is 0 for NaN."""
    if x.dtype.kind == "b":
        np.copyto(out, x)
        return
    for source, target in blocks(x, out):
        np.sign(source, out=target)
        if x.dtype.kind == "f" and (nan := np.isnan(source)).any():
            put(target, 0, nan)


TABLE.kernel("aten.sgn.default", dtypes=COMPLEX)(partial(_direct, np.sign))


@TABLE.kernel("aten.rsqrt.default", dtypes=REAL | COMPLEX | UNSIGNED)
def rsqrt(x: Array, *, out: Array) -> None:
    np.sqrt(cast(x, out.dtype), out=out)
    np.reciprocal(out, out=out)


@TABLE.kernel("aten.round.default", dtypes=REAL | UNSIGNED)
def round_(x: Array, *, out: Array) -> None:
    """Round to the nearest integer, ties to even."""
    np.rint(x, out=out) if x.dtype.kind == "f" else np.copyto(out, x)


@TABLE.kernel("aten.round.decimals", dtypes=WIDE | INT)
def round_decimals(x: Array, decimals: int, *, out: Array) -> None:
    if x.dtype.kind != "f" or decimals == 0:
        round_(x, out=out)
        return
    scale = float(10 ** abs(decimals)) if abs(decimals) <= _MAX_DECIMALS else math.inf
    first, last = (np.multiply, np.divide) if decimals > 0 else (np.divide, np.multiply)
    first(x, scale, out=out)
    np.rint(out, out=out)
    last(out, scale, out=out)


@TABLE.kernel("aten.frac.default", dtypes=FLOAT)
def frac(x: Array, *, out: Array) -> None:
    np.trunc(x, out=out)
    np.subtract(x, out, out=out)


def _scale(factor: float, x: Array, *, out: Array) -> None:
    np.multiply(cast(x, out.dtype), factor, out=out)


TABLE.kernel("aten.deg2rad.default", dtypes=WIDE | INT | BOOL)(partial(_scale, math.pi / 180))
TABLE.kernel("aten.rad2deg.default", dtypes=WIDE | INT | BOOL)(partial(_scale, 180 / math.pi))


@TABLE.kernel("aten.logit.default", "aten.special_logit.default", dtypes=WIDE | INT | BOOL)
@by_blocks
def logit(x: Array, eps: float | None, *, out: Array) -> None:
    """Compute log(x / (1 - x)), after a clamp of x to [eps, 1 - eps] if eps is not None."""
    if eps is not None:
        x = np.clip(x, eps, 1 - eps)
    np.subtract(1, x, out=out)
    np.divide(x, out, out=out)
    np.log(out, out=out)


@TABLE.kernel("aten.nan_to_num.default")
def nan_to_num(x: Array, nan: float | None, posinf: float | None, neginf: float | None, *, out: Array) -> None:
    np.copyto(out, x)
    if x.dtype.kind == "f":
        largest: Any = np.finfo(x.dtype).max
        np.copyto(out, 0.0 if nan is None else nan, where=np.isnan(x))
        np.copyto(out, largest if posinf is None else posinf, where=x == math.inf)
        np.copyto(out, -largest if neginf is None else neginf, where=x == -math.inf)


@TABLE.kernel("aten.nan_to_num.default", dtypes={DType.bfloat16})
def nan_to_num_bfloat16(
    bits: Array, nan: float | None, posinf: float | None, neginf: float | None, *, out: Array
) -> None:
    """Replace NaN and infinities; the largest bfloat16 is less than the largest float32."""
    posinf = LARGEST_BFLOAT16 if posinf is None else posinf
    neginf = -LARGEST_BFLOAT16 if neginf is None else neginf
    result = np.empty(bits.shape, np.float32)
    nan_to_num(from_bfloat16(bits), nan, posinf, neginf, out=result)
    to_bfloat16(result, out)


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
    np.copyto(out, toward, where=x == toward)  # NumPy returns x for float16, with another sign of zero


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
