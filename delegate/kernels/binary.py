"""Elementwise functions of several tensors: arithmetic, comparisons, logic, and selection by a condition.

Operands of arithmetic are converted to the dtype of the result, as in torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial

import numpy as np

from delegate.errors import KernelError
from delegate.kernels import short_rows
from delegate.kernels.half_precision import HALF, Array, Rounding, exact, stepwise_kernel
from delegate.kernels.operands import WIDE, WIDE_COMPLEX, Operand, by_blocks, cast, level, result_type
from delegate.kernels.table import ANY, BOOL, COMPLEX, INT, REAL, TABLE, UNSIGNED
from delegate.program.dtypes import DType

_PLAIN: dict[str, np.ufunc] = {
    "fmax.default": np.fmax, "fmin.default": np.fmin, "atan2.default": np.arctan2,
    "hypot.default": np.hypot, "copysign.Tensor": np.copysign, "copysign.Scalar": np.copysign,
    "gcd.default": np.gcd, "lcm.default": np.lcm,
    "bitwise_and.Tensor": np.bitwise_and, "bitwise_and.Scalar": np.bitwise_and,
    "bitwise_and.Scalar_Tensor": np.bitwise_and, "bitwise_or.Tensor": np.bitwise_or,
    "bitwise_or.Scalar": np.bitwise_or, "bitwise_or.Scalar_Tensor": np.bitwise_or,
    "bitwise_xor.Tensor": np.bitwise_xor, "bitwise_xor.Scalar": np.bitwise_xor,
    "bitwise_xor.Scalar_Tensor": np.bitwise_xor, "bitwise_left_shift.Tensor": np.left_shift,
    "bitwise_left_shift.Tensor_Scalar": np.left_shift, "bitwise_left_shift.Scalar_Tensor": np.left_shift,
    "bitwise_right_shift.Tensor": np.right_shift, "bitwise_right_shift.Tensor_Scalar": np.right_shift,
    "bitwise_right_shift.Scalar_Tensor": np.right_shift, "__lshift__.Scalar": np.left_shift,
    "__lshift__.Tensor": np.left_shift, "__rshift__.Scalar": np.right_shift, "__rshift__.Tensor": np.right_shift,
}  # fmt: skip
_SCALING: dict[str, np.ufunc] = {
    "mul.Tensor": np.multiply, "mul.Scalar": np.multiply, "div.Tensor": np.divide, "div.Scalar": np.divide,
}  # fmt: skip
_REMAINDERS: dict[str, np.ufunc] = {
    "fmod.Tensor": np.fmod, "fmod.Scalar": np.fmod, "remainder.Tensor": np.remainder, "remainder.Scalar": np.remainder,
    "remainder.Scalar_Tensor": np.remainder,
}  # fmt: skip
_EXTREMA: dict[str, np.ufunc] = {
    "maximum.default": np.maximum, "minimum.default": np.minimum,
}  # fmt: skip
_FLOAT32 = np.dtype(np.float32)
_MIN_SIZE = 1 << 10  # from which six passes are faster than `fmod`
_EXACT = 2.0**20  # quotients of float32 below it, and their remainders, are exact in float64


def _binary(ufunc: np.ufunc, a: Operand, b: Operand, *, out: Array) -> None:
    dtype = out.dtype
    if out.size >= short_rows.LEAST:
        short_rows.apply(ufunc, cast(a, dtype), cast(b, dtype), out)
        return
    if getattr(a, "dtype", None) is not dtype:  # usual case first: a call of `cast` costs a fifth of a small ufunc
        a = cast(a, dtype)
    if getattr(b, "dtype", None) is not dtype:
        b = cast(b, dtype)
    ufunc(a, b, out=out)


for _name, _ufunc in _PLAIN.items():
    # In float16 intermediate results of hypot would overflow.
    _dtypes = WIDE | INT | BOOL if _name == "hypot.default" else REAL | COMPLEX | UNSIGNED
    TABLE.kernel(f"aten.{_name}", dtypes=_dtypes, in_place=True)(partial(_binary, _ufunc))


def _scale(ufunc: np.ufunc, a: Operand, b: Operand, *, out: Array) -> None:
    """Compute a product or quotient; with one number of another dtype than float16, in float32."""
    if out.dtype == np.float16 and (not isinstance(b, np.ndarray) or (b.size == 1 and b.dtype != np.float16)):
        ufunc(a, cast(b, _FLOAT32), out=out, dtype=_FLOAT32, casting="same_kind")
    else:
        _binary(ufunc, a, b, out=out)


for _name, _ufunc in _SCALING.items():
    TABLE.kernel(f"aten.{_name}", dtypes=REAL | COMPLEX | UNSIGNED, in_place=True)(partial(_scale, _ufunc))


def _remainder(ufunc: np.ufunc, a: Operand, b: Operand, *, out: Array) -> None:
    """Compute remainders; float32 is computed in float64, because NumPy's C library takes 20 ns per element."""
    if out.dtype == np.float32 and out.size >= _MIN_SIZE and _write_remainder(ufunc, a, b, out):
        return
    if ufunc is np.fmod or out.dtype.kind != "f":
        _binary(ufunc, a, b, out=out)
        return
    left = cast(a, out.dtype)
    sign = np.copysign(out.dtype.type(0), left)  # before the result, which may be in the same memory
    ufunc(left, cast(b, out.dtype), out=out)
    np.copyto(out, sign, where=out == 0)  # of a zero: the dividend's in torch, the divisor's in NumPy


def _write_remainder(ufunc: np.ufunc, a: Operand, b: Operand, out: Array) -> bool:
    """Write remainders if all quotients are small; return if they are written."""
    left, divisor = (cast(x, out.dtype).astype(np.float64) for x in (a, b))
    quotient = np.asarray(left / divisor)
    (np.floor if ufunc is np.remainder else np.trunc)(quotient, out=quotient)
    if not (quotient.max() < _EXACT and quotient.min() > -_EXACT):  # also false for NaN
        return False
    quotient *= divisor
    np.subtract(left, quotient, out=quotient)
    if ufunc is np.fmod:
        np.copysign(quotient, left, out=quotient)
    elif not quotient.all():
        np.copysign(quotient, left, out=quotient, where=quotient == 0)
    np.copyto(out, quotient, casting="same_kind")
    return True


def _extremum(ufunc: np.ufunc, a: Operand, b: Operand, *, out: Array) -> None:
    a, b = cast(a, out.dtype), cast(b, out.dtype)
    if a.ndim == 0:
        a, b = b, a
    if b.ndim == 0 and a.shape == out.shape:
        _with_number(a, ufunc, b.item(), out=out)
    else:
        short_rows.apply(ufunc, a, b, out)


@by_blocks
def _with_number(x: Array, ufunc: np.ufunc, number: float, *, out: Array) -> None:
    ufunc(x, level(number, out), out=out)


def _add_logarithms(exp: np.ufunc, per_natural: float, a: Operand, b: Operand, *, out: Array) -> None:
    """Compute log(exp(a) + exp(b)) as max(a, b) + log(1 + exp(-|a - b|)), also to another base."""
    a, b = cast(a, out.dtype), cast(b, out.dtype)
    less = np.asarray(np.subtract(a, b))
    if np.isnan(less).any():  # perhaps of two equal infinities
        np.copyto(less, 0, where=a == b)
    np.negative(np.abs(less, out=less), out=less)
    np.log1p(exp(less, out=less), out=less)
    np.add(np.maximum(a, b, out=out), np.multiply(less, per_natural, out=less), out=out)


for _name, _ufunc in _REMAINDERS.items():
    TABLE.kernel(f"aten.{_name}", dtypes=WIDE | INT | BOOL, in_place=True)(partial(_remainder, _ufunc))
for _name, _ufunc in _EXTREMA.items():
    TABLE.kernel(f"aten.{_name}", dtypes=REAL | UNSIGNED, in_place=True)(partial(_extremum, _ufunc))
for _name, _exp, _per_natural in (("logaddexp", np.exp, 1.0), ("logaddexp2", np.exp2, 1 / math.log(2))):
    TABLE.kernel(f"aten.{_name}.default", dtypes=WIDE, in_place=True, whole=True)(
        partial(_add_logarithms, _exp, _per_natural)
    )


@TABLE.kernel("aten.add.Tensor", "aten.add.Scalar", dtypes=REAL | COMPLEX | UNSIGNED, in_place=True)
def add(a: Operand, b: Operand, alpha: int | float | complex, *, out: Array) -> None:
    """Compute a + alpha * b."""
    _multiply_add(np.add, a, b, alpha, out=out)


@TABLE.kernel("aten.sub.Tensor", "aten.sub.Scalar", dtypes=REAL | COMPLEX | UNSIGNED, in_place=True)
def sub(a: Operand, b: Operand, alpha: int | float | complex, *, out: Array) -> None:
    """Compute a - alpha * b."""
    _multiply_add(np.subtract, a, b, alpha, out=out)


def _multiply_add(ufunc: np.ufunc, a: Operand, b: Operand, alpha: int | float | complex, *, out: Array) -> None:
    if alpha != 1 and out.dtype == np.float16:
        scaled = np.multiply(cast(b, _FLOAT32), cast(alpha, _FLOAT32))
        ufunc(cast(a, _FLOAT32), scaled, out=out, dtype=_FLOAT32, casting="same_kind")
        return
    if alpha != 1:
        b = np.multiply(cast(b, out.dtype), cast(alpha, out.dtype), out=None if a is out else out)
    _binary(ufunc, a, b, out=out)


def _stepwise(
    *ops: str, dtypes: Iterable[DType], whole: bool = False, in_place: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function whose intermediate results torch rounds to float16 and bfloat16; see `stepwise_kernel`."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        TABLE.kernel(*ops, dtypes=dtypes, whole=whole, in_place=in_place)(function)
        for half in sorted(HALF, key=str):
            TABLE.kernel(*ops, dtypes={half}, whole=whole, in_place=in_place)(stepwise_kernel(function, half))
        return function

    return register


@_stepwise("aten.div.Tensor_mode", "aten.div.Scalar_mode", dtypes=WIDE | INT | BOOL)
def div_mode(a: Operand, b: Operand, rounding_mode: str | None, *, out: Array, rounded: Rounding = exact) -> None:
    """Divide and round: mode None, "floor" or "trunc"."""
    if rounding_mode == "floor":
        floor_divide(a, b, out=out, rounded=rounded)
        return
    a, b = cast(a, out.dtype), cast(b, out.dtype)
    if rounding_mode is None:
        np.divide(a, b, out=out)
    elif out.dtype.kind == "f":
        quotient = np.divide(a if b.size == 1 else rounded(a), b, out=out)
        np.trunc(quotient if b.size == 1 else rounded(quotient), out=out)
    else:  # subtract the remainder, which has the sign of a: the quotient is then exact
        np.floor_divide(np.subtract(a, np.fmod(a, b), out=out), b, out=out)


def floor_divide(a: Operand, b: Operand, *, out: Array, rounded: Rounding = exact) -> None:
    """Compute the floor of quotients; torch rounds no intermediate result if there is one divisor."""
    a, b = cast(a, out.dtype), cast(b, out.dtype)
    if rounded is exact or b.size == 1:
        np.floor_divide(a, b, out=out)
        return
    a = rounded(a)  # perhaps a number
    remainder = np.fmod(a, b)
    quotient = rounded(rounded(a - remainder) / b)
    is_above = (remainder != 0) & ((b < 0) != (remainder < 0))
    quotient = np.where(is_above, rounded(quotient - 1), quotient)
    floor = np.floor(quotient)
    floor = np.where(quotient - floor > 0.5, floor + 1, floor)
    np.divide(a, b, out=out)
    np.copyto(out, np.where(quotient == 0, np.copysign(0, out), floor), where=b != 0)


_POWERS: dict[float, np.ufunc] = {0.5: np.sqrt, 1: np.positive, 2: np.square, -1: np.reciprocal}


@TABLE.kernel("aten.pow.Tensor_Scalar", dtypes=WIDE_COMPLEX | INT | BOOL | UNSIGNED)
def pow_scalar(base: Array, exponent: int | float | complex, *, out: Array) -> None:
    x = cast(base, out.dtype)
    ufunc = _POWERS.get(exponent) if not isinstance(exponent, complex) else None
    if ufunc is not None and out.dtype.kind != "b" and (out.dtype.kind in "fc" or exponent in (1, 2)):
        ufunc(x, out=out)
    elif exponent == -0.5 and out.dtype.kind in "fc":
        np.reciprocal(np.sqrt(x, out=out), out=out)
    elif exponent == 3 and out.dtype.kind == "f":
        np.multiply(np.square(x, out=out), x, out=out)
    else:
        power(x, exponent, out=out)


@TABLE.kernel("aten.pow.Tensor_Tensor", "aten.pow.Scalar", dtypes=WIDE_COMPLEX | INT | BOOL | UNSIGNED)
def power(base: Operand, exponent: Operand, *, out: Array) -> None:
    """Compute base ** exponent; for integers with a negative exponent, the truncated quotient 1 / base ** -exponent."""
    base, exponent = cast(base, out.dtype), cast(exponent, out.dtype)
    if out.dtype.kind != "i" or (negative := exponent < 0).sum() == 0:
        np.power(base, exponent, out=out)
        return
    np.power(base, np.where(negative, exponent & 1, exponent), out=out)  # +-1 keep their parity
    np.copyto(out, 0, where=negative & (np.abs(base) != 1))


def _times_logarithm(log: np.ufunc, a: Operand, b: Operand, *, out: Array, rounded: Rounding = exact) -> None:
    """Compute a * log(b): 0 where a is 0, NaN where b is NaN."""
    a, b = (cast(x, out.dtype) if isinstance(x, np.ndarray) else rounded(cast(x, out.dtype)) for x in (a, b))
    np.multiply(a, rounded(log(b)), out=out)
    np.copyto(out, 0, where=(a == 0) & ~np.isnan(b))


_xlogy, _xlog1py = partial(_times_logarithm, np.log), partial(_times_logarithm, np.log1p)
_dtypes = WIDE | INT | BOOL
_stepwise("aten.xlogy.Tensor", "aten.xlogy.Scalar_Self", "aten.xlogy.Scalar_Other", dtypes=_dtypes, whole=True)(_xlogy)
_stepwise(
    "aten.special_xlog1py.default",
    "aten.special_xlog1py.self_scalar",
    "aten.special_xlog1py.other_scalar",
    dtypes=_dtypes,
    whole=True,
)(_xlog1py)


@TABLE.kernel("aten.addcmul.default", dtypes=WIDE_COMPLEX | INT, whole=True)
def addcmul(x: Array, a: Array, b: Array, value: int | float, *, out: Array) -> None:
    """Compute x + value * a * b."""
    _add_combined(np.multiply, x, a, b, value, out=out)


@TABLE.kernel("aten.addcdiv.default", dtypes=WIDE_COMPLEX, whole=True)
def addcdiv(x: Array, a: Array, b: Array, value: int | float, *, out: Array) -> None:
    """Compute x + value * a / b."""
    _add_combined(np.divide, x, a, b, value, out=out)


def _add_combined(ufunc: np.ufunc, x: Array, a: Array, b: Array, value: int | float, *, out: Array) -> None:
    a, b = cast(a, out.dtype), cast(b, out.dtype)
    ufunc(a if value == 1 else np.multiply(a, cast(value, out.dtype)), b, out=out)  # torch's order, which may overflow
    np.add(out, cast(x, out.dtype), out=out)


@TABLE.kernel("aten.lerp.Scalar", "aten.lerp.Tensor", dtypes=WIDE_COMPLEX, whole=True)
def lerp(start: Array, end: Array, weight: float | Array, *, out: Array) -> None:
    """Compute start + weight * (end - start) from the nearer end: weight 1 gives end exactly."""
    difference = np.subtract(end, start)
    weight = cast(weight, out.dtype)
    far = np.abs(weight) >= 0.5
    if not far.any():
        np.add(np.multiply(difference, weight, out=out), start, out=out)
    elif far.all():
        np.subtract(end, np.multiply(difference, 1 - weight, out=out), out=out)
    else:
        np.add(np.multiply(difference, weight, out=out), start, out=out)
        np.copyto(out, end - difference * (1 - weight), where=far)


@TABLE.kernel("aten.clamp.default", "aten.clamp.Tensor", dtypes=REAL | UNSIGNED, in_place=True)
def clamp(x: Array, low: Operand | None, high: Operand | None, *, out: Array) -> None:
    """Compute min(max(x, low), high), where either bound may be None. NaN in x or in a bound stays."""
    if low is None and high is None:
        raise KernelError("clamp has no bound", remedy="pass min, max or both")
    if not isinstance(low, np.ndarray) and not isinstance(high, np.ndarray):
        _clamp_numbers(x, low, high, out=out)
        return
    x = cast(x, out.dtype)
    if low is not None:
        x = np.maximum(x, cast(low, out.dtype), out=out)
    if high is not None:
        np.minimum(x, cast(high, out.dtype), out=out)


@by_blocks
def _clamp_numbers(x: Array, low: float | None, high: float | None, *, out: Array) -> None:
    if low is not None:
        x = np.maximum(x, level(low, out), out=out)
    if high is not None:
        np.minimum(x, level(high, out), out=out)


_COMPARISONS: dict[str, np.ufunc] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
_LOGICAL: dict[str, np.ufunc] = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def _compare(ufunc: np.ufunc, a: Operand, b: Operand, *, out: Array) -> None:
    dtype = result_type(a, b)
    short_rows.apply(ufunc, cast(a, dtype), cast(b, dtype), out)


for _name, _ufunc in _COMPARISONS.items():
    TABLE.kernel(f"aten.{_name}.Tensor", f"aten.{_name}.Scalar", dtypes=REAL | COMPLEX | UNSIGNED)(
        partial(_compare, _ufunc)
    )
for _name, _ufunc in _LOGICAL.items():
    TABLE.kernel(f"aten.logical_{_name}.default", dtypes=REAL | COMPLEX | UNSIGNED)(partial(_compare, _ufunc))


@TABLE.kernel("aten.where.self", dtypes=ANY - {DType.bfloat16})
def where(condition: Array, a: Operand, b: Operand, *, out: Array) -> None:
    """Select a where the condition is true, else b."""
    np.copyto(out, cast(b, out.dtype))
    np.copyto(out, cast(a, out.dtype), where=condition.astype(np.bool_, copy=False))
