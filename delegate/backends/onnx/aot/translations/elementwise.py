"""Element by element: arithmetic, comparisons, conversions, functions of angles, division with rounding, remainders.

Functions of angles and the like are computed by other functions, for providers that lack them. They are exact within
the precision of float16. Division uses ONNX's exact Mod if a provider has it, else quotients. A whole quotient that was
rounded up is corrected. The remainder is then exact up to quotients of 2^12. Beyond them its error is the last digit of
the dividend.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import Node

from delegate.backends.lowering import anything, every, no_nan
from delegate.backends.onnx.aot.translations.logic import truth
from delegate.backends.onnx.aot.translations.row import (
    BOOL,
    cast_like,
    floating,
    floating_inputs,
    is_integer,
    keeps_dtype,
    numbers,
    operand,
    ops,
    row,
    same_dtypes,
    scalar,
    set_dtype,
)
from delegate.edge.node import arguments, tensor
from delegate.verdict import YES, Reason, Verdict, no


def _bounds(node: Node) -> Verdict:
    """Bounds do not change the dtype."""
    dtype = tensor(node).dtype
    if tensor(node.all_input_nodes[0]).dtype is dtype:
        return YES
    return no(Reason.DTYPE, f"the bounds change the dtype to {str(dtype).removeprefix('torch.')}")


def clamp(x: Any, min: float | None = None, max: float | None = None) -> Any:
    """Bound x in its own dtype; with one bound by Min or Max, since ONNX Runtime's Clip then also bounds infinity."""
    op = ops()
    if min is None:
        return x if max is None else op.Min(x, scalar(max, x))
    return op.Max(x, scalar(min, x)) if max is None else op.Clip(x, scalar(min, x), scalar(max, x))


def power(x: Any, exponent: float) -> Any:
    """Return a power; roots by their own operators, since Pow(-inf, 0.5) is inf as in C, where torch returns NaN."""
    op = ops()
    if abs(exponent) == 0.5:
        return op.Sqrt(x) if exponent > 0 else op.Reciprocal(op.Sqrt(x))
    return op.Reciprocal(x) if exponent == -1 else op.Pow(x, scalar(exponent, x))


def sign(x: Any) -> Any:
    """Return 1 above 0, -1 below 0, else 0."""
    op, zero = ops(), scalar(0.0, x)
    return op.Sub(*(cast_like(compare(x, zero), x) for compare in (op.Greater, op.Less)))


def trunc(x: Any) -> Any:
    """Round towards 0."""
    op = ops()
    return op.Where(op.Less(x, scalar(0.0, x)), op.Ceil(x), op.Floor(x))


def round_ties_to_even(x: Any) -> Any:
    """Round to the nearest whole number, and a tie to the even one."""
    op, half = ops(), scalar(0.5, x)
    low = op.Floor(x)
    above = op.Sub(x, low)
    remainder = op.Sub(low, op.Mul(op.Floor(op.Mul(low, half)), scalar(2.0, x)))
    up = cast_like(op.Greater(above, half), x)
    return op.Add(low, op.Where(op.Equal(above, half), remainder, up))


def expm1(x: Any) -> Any:
    """Return exp(x) - 1; near 0, where the difference would lose digits, sum its series."""
    op, series = ops(), scalar(1.0, x)
    for divisor in range(15 if x.dtype.name == "DOUBLE" else 9, 1, -1):
        series = op.Add(op.Mul(op.Mul(series, x), scalar(1 / divisor, x)), scalar(1.0, x))
    is_small = op.Less(op.Abs(x), scalar(0.5, x))
    return op.Where(is_small, op.Mul(series, x), op.Sub(op.Exp(x), scalar(1.0, x)))


def log1p(x: Any) -> Any:
    """Return log(1 + x); near 0, where the sum would lose digits, the series of 2 atanh(x / (x + 2))."""
    op = ops()
    is_small = op.Less(op.Abs(x), scalar(0.5, x))
    series = log1p_series(x, 33 if x.dtype.name == "DOUBLE" else 15)
    return op.Where(is_small, series, op.Log(op.Add(x, scalar(1.0, x))))


def log1p_series(x: Any, last: int) -> Any:
    """Return log(1 + x) by the series of 2 atanh(x / (x + 2)) up to an exponent, which has no sum close to 1."""
    op = ops()
    s = op.Div(x, op.Add(x, scalar(2.0, x)))
    square, series = op.Mul(s, s), scalar(2 / last, x)
    for exponent in range(last - 2, 0, -2):
        series = op.Add(op.Mul(series, square), scalar(2 / exponent, x))
    return op.Mul(series, s)


def erfc(x: Any) -> Any:
    """Return erfc by a polynomial whose relative error is below 1.2e-7 (Numerical Recipes in C, 6.2).

    exp(-x^2) is in two parts: a multiple of 1/16 has an exact square, and what is left is small.
    """
    op = ops()
    size = op.Min(op.Abs(x), scalar(_ERFC_END, x))
    t = op.Reciprocal(op.Add(op.Mul(size, scalar(0.5, x)), scalar(1.0, x)))
    series = scalar(_ERFC[-1], x)
    for factor in reversed(_ERFC[:-1]):
        series = op.Add(op.Mul(series, t), scalar(factor, x))
    near = op.Mul(op.Floor(op.Mul(size, scalar(16.0, x))), scalar(1 / 16, x))
    left = op.Mul(op.Sub(size, near), op.Add(size, near))
    tail = op.Mul(op.Mul(t, op.Exp(op.Sub(series, left))), op.Exp(op.Neg(op.Mul(near, near))))
    return op.Where(op.Less(x, scalar(0.0, x)), op.Sub(scalar(2.0, x), tail), tail)


def erf(x: Any) -> Any:
    """Return 1 - erfc(x)."""
    return ops().Sub(scalar(1.0, x), erfc(x))


def convert(x: Any, *, dtype: int, **_: Any) -> Any:
    """Cast to a dtype; to booleans by a comparison, since QNN's cast of integers is wrong."""
    import onnx_ir

    return truth(x) if dtype == onnx_ir.DataType.BOOL else ops().Cast(x, to=dtype)


_ERFC_END = 12.0  # where erfc is 0 in float32
_ERFC = (
    -1.26551223,
    1.00002368,
    0.37409196,
    0.09678418,
    -0.18628806,
    0.27886807,
    -1.13520398,
    1.48851587,
    -0.82215223,
    0.17087277,
)
_UNARY = {
    "abs": "Abs", "acos": "Acos", "acosh": "Acosh", "asin": "Asin", "asinh": "Asinh", "atan": "Atan", "atanh": "Atanh",
    "ceil": "Ceil", "cos": "Cos", "cosh": "Cosh", "erf": "Erf", "exp": "Exp", "floor": "Floor", "log": "Log",
    "neg": "Neg", "reciprocal": "Reciprocal", "round": "Round", "sign": "Sign", "sin": "Sin",
    "sinh": "Sinh", "sqrt": "Sqrt", "tan": "Tan", "tanh": "Tanh",
}  # fmt: skip
_ORDER = {"gt": "Greater", "lt": "Less", "ge": "GreaterOrEqual", "le": "LessOrEqual"}
_COMPARABLE = every(numbers, same_dtypes)
_POLYNOMIAL = ("Abs", "Mul", "Add", "Sub", "Where")
_ERFC_PARTS = (*_POLYNOMIAL, "Min", "Reciprocal", "Floor", "Exp", "Neg")


def tan(x: Any) -> Any:
    """Return sin(x) / cos(x)."""
    op = ops()
    return op.Div(op.Sin(x), op.Cos(x))


def sinh(x: Any) -> Any:
    """Return (exp(x) - exp(-x)) / 2."""
    op = ops()
    return op.Mul(op.Sub(op.Exp(x), op.Exp(op.Neg(x))), scalar(0.5, x))


def cosh(x: Any) -> Any:
    """Return (exp(x) + exp(-x)) / 2."""
    op = ops()
    return op.Mul(op.Add(op.Exp(x), op.Exp(op.Neg(x))), scalar(0.5, x))


def asin(x: Any) -> Any:
    """Return atan2(x, sqrt(1 - x * x)), whose second argument is never negative."""
    op, one = ops(), scalar(1.0, x)
    return atan2(x, set_dtype(op.Sqrt(op.Mul(op.Sub(one, x), op.Add(one, x))), x))


def acos(x: Any) -> Any:
    """Return pi / 2 - asin(x)."""
    return ops().Sub(scalar(math.pi / 2, x), asin(x))


def asinh(x: Any) -> Any:
    """Return log(|x| + sqrt(x * x + 1)) with the sign of x."""
    op = ops()
    size = op.Abs(x)
    logarithm = op.Log(op.Add(size, op.Sqrt(op.Add(op.Mul(size, size), scalar(1.0, x)))))
    return op.Where(op.Less(x, scalar(0.0, x)), op.Neg(logarithm), logarithm)


def acosh(x: Any) -> Any:
    """Return log(x + sqrt(x * x - 1))."""
    op, one = ops(), scalar(1.0, x)
    return op.Log(op.Add(x, op.Sqrt(op.Mul(op.Sub(x, one), op.Add(x, one)))))


def atanh(x: Any) -> Any:
    """Return log((1 + x) / (1 - x)) / 2."""
    op, one = ops(), scalar(1.0, x)
    return op.Mul(op.Log(op.Div(op.Add(one, x), op.Sub(one, x))), scalar(0.5, x))


def atan2(y: Any, x: Any) -> Any:
    """Return the angle of the point (x, y), with signs of zeros: the arctangent up to 45 degrees, then mirrored."""
    op = ops()
    height, width = op.Abs(y), op.Abs(x)
    angle = op.Atan(_ratio(height, width, x))
    angle = op.Where(op.Greater(height, width), op.Sub(scalar(math.pi / 2, x), angle), angle)
    angle = op.Where(_is_negative(x), op.Sub(scalar(math.pi, x), angle), angle)
    return op.Where(_is_negative(y), op.Neg(angle), angle)


def _ratio(first: Any, second: Any, like: Any) -> Any:
    """Return the smaller of two sizes divided by the larger one: 0 for two zeros, 1 for two infinities."""
    op, most = ops(), scalar(65504.0 if like.dtype.name == "FLOAT16" else torch.finfo(torch.float32).max, like)
    smaller, larger = (op.Min(extreme(first, second), most) for extreme in (op.Min, op.Max))
    return op.Div(smaller, op.Where(op.Equal(larger, scalar(0.0, like)), scalar(1.0, like), larger))


def _is_negative(x: Any) -> Any:
    """Return true for numbers below 0 and for -0.0."""
    op, zero = ops(), scalar(0.0, x)
    return op.Less(op.Where(op.Equal(x, zero), op.Div(scalar(1.0, x), x), x), zero)


def hypot(x: Any, y: Any) -> Any:
    """Return the longer side times sqrt(1 + ratio * ratio), which does not overflow."""
    op = ops()
    first, second = op.Abs(x), op.Abs(y)
    ratio = _ratio(first, second, x)
    return op.Mul(op.Max(first, second), op.Sqrt(op.Add(op.Mul(ratio, ratio), scalar(1.0, x))))


_ATAN2 = ("Abs", "Max", "Min", "Div", "Atan", "Where", "Sub", "Neg")
_SINH, _LOG = ("Exp", "Neg", "Mul"), ("Log", "Sqrt", "Mul", "Add")
_TWO = every(floating, same_dtypes)


def _not_double(node: Node) -> Verdict:
    """The polynomial has the digits of float32."""
    return YES if tensor(node).dtype is not torch.float64 else no(Reason.DTYPE, "its polynomial is not for float64")


def _rounding(node: Node) -> Verdict:
    """The rounding mode is down or towards 0."""
    mode = arguments(node)["rounding_mode"]
    return YES if mode is not None else no(Reason.ATTRIBUTE, "without a rounding mode")


def _both(x: Any, y: Any) -> tuple[Any, Any]:
    return operand(x, y), operand(y, x)


def _high(x: Any, like: Any) -> Any:
    """Return the upper half of the digits, whose product with a small whole number is exact (Veltkamp, Dekker)."""
    op = ops()
    factor, largest = (2.0**6 + 1, 2.0**9) if like.dtype.name == "FLOAT16" else (2.0**12 + 1, 2.0**100)
    part = op.Min(x, scalar(largest, like))  # so that the next product does not overflow
    wide = op.Mul(part, scalar(factor, like))
    return op.Sub(wide, op.Sub(wide, part))


def fmod(x: Any, y: Any) -> Any:
    """Return the remainder of x, with the sign of x."""
    op = ops()
    x, y = _both(x, y)
    zero = scalar(0, y)
    if is_integer(y):
        return op.Sub(x, op.Mul(op.Div(x, y), y))
    size, step = op.Abs(x), op.Abs(y)
    times, high = op.Floor(op.Div(size, step)), _high(step, y)
    left = op.Sub(op.Sub(size, op.Mul(times, high)), op.Mul(times, op.Sub(step, high)))
    left = op.Where(op.Less(left, zero), op.Add(left, step), left)
    left = op.Where(op.GreaterOrEqual(left, step), op.Sub(left, step), left)
    return op.Where(op.Less(x, zero), op.Neg(left), left)


def modulo(x: Any, y: Any) -> Any:
    """Return the remainder of x, with the sign of x; of floats, by ONNX's Mod, which computes integers in float64."""
    x, y = _both(x, y)
    return fmod(x, y) if is_integer(y) else ops().Mod(x, y, fmod=1)


def _with_sign_of(y: Any, left: Any) -> Any:
    """Return a remainder with the sign of y: y is added if the signs differ."""
    op, zero = ops(), scalar(0, y)
    moved = op.Add(left, y)
    across = op.Where(op.Less(y, zero), op.Where(op.Greater(left, zero), moved, left), left)
    return op.Where(op.Greater(y, zero), op.Where(op.Less(left, zero), moved, left), across)


def remainder(x: Any, y: Any) -> Any:
    """Return the remainder of x, with the sign of y."""
    x, y = _both(x, y)
    return _with_sign_of(y, fmod(x, y))


def floor_modulo(x: Any, y: Any) -> Any:
    """Return the remainder of x, with the sign of y; of integers, by ONNX's Mod."""
    x, y = _both(x, y)
    return ops().Mod(x, y) if is_integer(y) else _with_sign_of(y, modulo(x, y))


def divide(x: Any, y: Any, *, rounding_mode: str) -> Any:
    """Return the quotient, rounded down or towards 0."""
    return _divide(x, y, rounding_mode, fmod)


def divide_by_modulo(x: Any, y: Any, *, rounding_mode: str) -> Any:
    """Return the quotient, rounded down or towards 0, computed from the remainder."""
    return _divide(x, y, rounding_mode, modulo)


def _divide(x: Any, y: Any, rounding_mode: str, left_of: Callable[[Any, Any], Any]) -> Any:
    """Return the quotient: down is one below the whole quotient if a remainder has another sign than the divisor."""
    op = ops()
    x, y = _both(x, y)
    zero = scalar(0, y)
    quotient = op.Div(x, y)
    if rounding_mode == "trunc":
        return quotient if is_integer(y) else op.Where(op.Less(quotient, zero), op.Ceil(quotient), op.Floor(quotient))
    if is_integer(y):
        whole, left = quotient, op.Sub(x, op.Mul(quotient, y))
    else:
        left = left_of(x, y)
        whole = op.Floor(op.Add(op.Div(op.Sub(x, left), y), scalar(0.5, y)))
    less = op.Sub(whole, scalar(1, y))
    down = op.Where(op.Less(y, zero), op.Where(op.Greater(left, zero), less, whole), whole)
    down = op.Where(op.Greater(y, zero), op.Where(op.Less(left, zero), less, whole), down)
    return down if is_integer(y) else op.Where(op.Equal(y, zero), quotient, down)


_SINGLE = every(floating, _not_double)
_PARTS = (
    "Abs", "Floor", "Ceil", "Min", "Mul", "Div", "Sub", "Add", "Neg", "Where", "Less", "Greater", "GreaterOrEqual",
    "Equal",
)  # fmt: skip
_OPERANDS = every(numbers, same_dtypes, keeps_dtype)
_WAYS: Mapping[str, Mapping[str, Callable[..., Any]]] = {  # ONNX operator -> operator of torch -> by that
    "Mod": {"fmod": modulo, "remainder": floor_modulo, "div": divide_by_modulo},
    "Div": {"fmod": fmod, "remainder": remainder, "div": divide},
}


ROWS = (
    *(row(f"aten.{name}.default", (onnx,), floating) for name, onnx in _UNARY.items()),
    row("aten.sign.default", ("Sub",), floating, translate=sign, between=("Greater", "Less", "Cast")),
    row(
        "aten.round.default", ("Floor", "Sub", "Mul", "Add", "Where"), floating, translate=round_ties_to_even,
        between=("Greater", "Equal", "Cast"),
    ),
    row("aten.trunc.default", ("Where", "Ceil", "Floor"), floating, translate=trunc, between=("Less",)),
    row("aten.expm1.default", (*_POLYNOMIAL, "Exp"), floating, translate=expm1, between=("Less",)),
    row("aten.log1p.default", (*_POLYNOMIAL, "Log", "Div"), floating, translate=log1p, between=("Less",)),
    row("aten.erfc.default", _ERFC_PARTS, _SINGLE, translate=erfc, between=("Less",)),
    row("aten.erf.default", _ERFC_PARTS, _SINGLE, translate=erf, between=("Less",)),
    row("aten.exp2.default", ("Pow",), floating),
    row("aten.log2.default", ("Log", "Div"), floating),
    row("aten.log10.default", ("Log", "Div"), floating),
    row("aten.rsqrt.default", ("Sqrt", "Reciprocal"), floating),
    *(
        row(f"aten.{name}.{overload}", (onnx,), every(numbers, same_dtypes))
        for name, onnx in {"add": "Add", "sub": "Sub"}.items()
        for overload in ("Tensor", "Scalar")
    ),
    row("aten.mul.Scalar", ("Mul",), _COMPARABLE),
    row("aten.div.Scalar", ("Div",), every(floating, floating_inputs)),
    row("aten.div.Tensor", ("Div",), every(floating, floating_inputs, same_dtypes)),
    row("aten.pow.Tensor_Scalar", ("Pow", "Sqrt", "Reciprocal"), floating, translate=power),
    row("aten.pow.Tensor_Tensor", ("Pow",), every(floating, same_dtypes)),
    row("aten.pow.Scalar", ("Pow",), floating),
    row("aten.maximum.default", ("Max",), _COMPARABLE),
    row("aten.minimum.default", ("Min",), _COMPARABLE),
    row("aten.clamp.default", ("Clip", "Max", "Min"), every(numbers, _bounds, no_nan), translate=clamp),
    row("aten.clamp.Tensor", ("Max", "Min"), _COMPARABLE),
    row("aten.eq.Scalar", ("Equal",), _COMPARABLE, also=BOOL),
    row("aten.ne.Scalar", ("Equal",), _COMPARABLE, also=BOOL, between=("Not",)),
    *(
        row(f"aten.{name}.{overload}", (onnx,), _COMPARABLE, also=BOOL)
        for name, onnx in _ORDER.items()
        for overload in ("Tensor", "Scalar")
    ),
    row("aten._to_copy.default", ("Cast",), anything, translate=convert, between=("Equal", "Not")),
    row("aten.tan.default", ("Sin", "Cos", "Div"), floating, translate=tan),
    row("aten.sinh.default", (*_SINH, "Sub"), floating, translate=sinh),
    row("aten.cosh.default", (*_SINH, "Add"), floating, translate=cosh),
    row(
        "aten.asin.default", (*_ATAN2, "Sqrt", "Mul", "Add"), floating, translate=asin,
        between=("Equal", "Less", "Greater"),
    ),
    row(
        "aten.acos.default", (*_ATAN2, "Sqrt", "Mul", "Add"), floating, translate=acos,
        between=("Equal", "Less", "Greater"),
    ),
    row(
        "aten.asinh.default", (*_LOG, "Abs", "Where", "Neg"), floating, translate=asinh, between=("Less",)
    ),
    row("aten.acosh.default", (*_LOG, "Sub"), floating, translate=acosh),
    row("aten.atanh.default", ("Log", "Add", "Sub", "Div", "Mul"), floating, translate=atanh),
    row(
        "aten.atan2.default", _ATAN2, _TWO, translate=atan2, between=("Equal", "Less", "Greater")
    ),
    row(
        "aten.hypot.default", ("Abs", "Max", "Min", "Div", "Where", "Mul", "Sqrt", "Add"), _TWO, translate=hypot,
        between=("Equal",),
    ),
    *(
        row(f"aten.{name}.{overload}", (onnx,), check, translate=ways[name], between=_PARTS)
        for onnx, ways in _WAYS.items()
        for name, overloads, check in (
            ("fmod", ("Tensor", "Scalar"), _OPERANDS),
            ("remainder", ("Tensor", "Scalar", "Scalar_Tensor"), _OPERANDS),
            ("div", ("Tensor_mode", "Scalar_mode"), every(_OPERANDS, _rounding)),
        )
        for overload in overloads
    ),
)  # fmt: skip
