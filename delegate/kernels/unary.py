"""Elementwise functions of one tensor: mathematics, rounding, tests for NaN and infinity, and parts of numbers."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from delegate.kernels.erf import erf, erfc, erfcx, erfinv, in_float64
from delegate.kernels.half_precision import Array
from delegate.kernels.operands import WIDE, Operand, blocks, by_blocks, cast, put
from delegate.kernels.table import ANY, BOOL, COMPLEX, FLOAT, INT, REAL, TABLE, UNSIGNED

_MAX_DECIMALS = 308  # of a float

# Results of integers and bools are floats, of the dtype of `out`.
_TO_FLOAT: dict[str, np.ufunc] = {
    "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh, "atan": np.arctan,
    "atanh": np.arctanh, "cos": np.cos, "cosh": np.cosh, "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1,
    "log": np.log, "log10": np.log10, "log1p": np.log1p, "log2": np.log2, "reciprocal": np.reciprocal, "sin": np.sin,
    "sinh": np.sinh, "sqrt": np.sqrt, "tan": np.tan, "tanh": np.tanh,
}  # fmt: skip
_SAME: dict[str, np.ufunc] = {
    "neg": np.negative, "ceil": np.ceil, "floor": np.floor, "trunc": np.trunc,
    "bitwise_not": np.invert,
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
TABLE.kernel("aten.erfinv.default", dtypes=WIDE | INT | BOOL)(by_blocks(partial(in_float64, erfinv)))
TABLE.kernel("aten.special_erfcx.default", dtypes=WIDE | INT | BOOL)(by_blocks(partial(in_float64, erfcx)))


@TABLE.kernel("aten.signbit.default")
def signbit(x: Array, *, out: Array) -> None:
    np.signbit(x, out=out) if x.dtype.kind == "f" else np.less(x, 0, out=out)


@TABLE.kernel("aten.sign.default")
def sign(x: Array, *, out: Array) -> None:
    """Compute the sign; as in torch, it is 0 for NaN."""
    if x.dtype.kind == "b":
        np.copyto(out, x)
        return
    for source, target in blocks(x, out):
        np.sign(source, out=target)
        if x.dtype.kind == "f" and (nan := np.isnan(source)).any():
            put(target, 0, nan)


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


@TABLE.kernel("aten.ldexp.Tensor", dtypes=WIDE | COMPLEX | INT | BOOL)
def ldexp(x: Operand, exponent: Operand, *, out: Array) -> None:
    """Compute x * 2 ** exponent."""
    np.multiply(cast(x, out.dtype), np.power(out.dtype.type(2), cast(exponent, out.dtype)), out=out)


@TABLE.kernel("aten._conj.default", "aten._conj_physical.default", dtypes=ANY)
def conjugate(x: Array, *, out: Array) -> None:
    np.conjugate(x, out=out) if x.dtype.kind == "c" else np.copyto(out, x)


@TABLE.kernel("aten._neg_view.default", dtypes=FLOAT | INT | COMPLEX)
def negate(x: Array, *, out: Array) -> None:
    """Negate. Torch uses this lazy operator for the imaginary part of a conjugate."""
    np.negative(x, out=out)


@TABLE.kernel("aten.angle.default", dtypes=WIDE | INT | BOOL | COMPLEX)
def angle(x: Array, *, out: Array) -> None:
    """Compute the argument of a complex number: pi for negative numbers, 0 for others; NaN stays."""
    if x.dtype.kind == "c":
        np.arctan2(x.imag, x.real, out=out)
        return
    np.multiply(x < 0, out.dtype.type(math.pi), out=out)
    if x.dtype.kind == "f" and (nan := np.isnan(x)).any():
        np.copyto(out, x, where=nan)
