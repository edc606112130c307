"""Element by element: arithmetic, comparisons, conversions, functions of angles, division with rounding, remainders.

Remainders of floats need ONNX's exact Mod. Remainders of integers, which a provider may compute without it, come from
quotients.
"""

from __future__ import annotations

from typing import Any

from torch.fx import Node

from delegate.backend.lowering import anything, every, no_nan
from delegate.edge.node import arguments, tensor
from delegate.verdict import YES, Reason, Verdict, no
from delegate_onnxruntime.onnx.aot.translations.logic import truth
from delegate_onnxruntime.onnx.aot.translations.row import (
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
)


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
    for divisor in range(9, 1, -1):
        series = op.Add(op.Mul(op.Mul(series, x), scalar(1 / divisor, x)), scalar(1.0, x))
    is_small = op.Less(op.Abs(x), scalar(0.5, x))
    return op.Where(is_small, op.Mul(series, x), op.Sub(op.Exp(x), scalar(1.0, x)))


def log1p(x: Any) -> Any:
    """Return log(1 + x); near 0, where the sum would lose digits, the series of 2 atanh(x / (x + 2))."""
    op = ops()
    is_small = op.Less(op.Abs(x), scalar(0.5, x))
    series = log1p_series(x, 15)
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


def _rounding(node: Node) -> Verdict:
    """The rounding mode is down or towards 0."""
    mode = arguments(node)["rounding_mode"]
    return YES if mode is not None else no(Reason.ATTRIBUTE, "without a rounding mode")


def _both(x: Any, y: Any) -> tuple[Any, Any]:
    return operand(x, y), operand(y, x)


def fmod(x: Any, y: Any) -> Any:
    """Return the remainder of x, with the sign of x; of integers by quotients, since Mod computes them in float64."""
    op = ops()
    x, y = _both(x, y)
    return op.Sub(x, op.Mul(op.Div(x, y), y)) if is_integer(y) else op.Mod(x, y, fmod=1)


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


def divide(x: Any, y: Any, *, rounding_mode: str) -> Any:
    """Return the quotient rounded towards 0; or down: one less if a remainder has another sign than the divisor."""
    op = ops()
    x, y = _both(x, y)
    zero = scalar(0, y)
    quotient = op.Div(x, y)
    if rounding_mode == "trunc":
        return quotient if is_integer(y) else op.Where(op.Less(quotient, zero), op.Ceil(quotient), op.Floor(quotient))
    left = fmod(x, y)
    whole = quotient if is_integer(y) else op.Floor(op.Add(op.Div(op.Sub(x, left), y), scalar(0.5, y)))
    less = op.Sub(whole, scalar(1, y))
    down = op.Where(op.Less(y, zero), op.Where(op.Greater(left, zero), less, whole), whole)
    down = op.Where(op.Greater(y, zero), op.Where(op.Less(left, zero), less, whole), down)
    return down if is_integer(y) else op.Where(op.Equal(y, zero), quotient, down)


def _integers(node: Node) -> Verdict:
    """The operands are integers: quotients of floats may be rounded to the next whole number."""
    is_float = tensor(node).dtype.is_floating_point
    return no(Reason.INACCURATE, "quotients of floats may be rounded to the next whole number") if is_float else YES


_PARTS = ("Floor", "Ceil", "Mul", "Div", "Sub", "Add", "Where", "Less", "Greater", "Equal")
_OPERANDS = every(numbers, same_dtypes, keeps_dtype)
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
    row("aten.erfc.default", _ERFC_PARTS, floating, translate=erfc, between=("Less",)),
    row("aten.erf.default", _ERFC_PARTS, floating, translate=erf, between=("Less",)),
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
    *(
        row(f"aten.{name}.{overload}", onnx, check, translate=translate, between=_PARTS)
        for onnx, operands in ((("Mod",), _OPERANDS), (("Div",), every(_OPERANDS, _integers)))
        for name, overloads, check, translate in (
            ("fmod", ("Tensor", "Scalar"), operands, fmod),
            ("remainder", ("Tensor", "Scalar", "Scalar_Tensor"), operands, remainder),
            ("div", ("Tensor_mode", "Scalar_mode"), every(operands, _rounding), divide),
        )
        for overload in overloads
    ),
)  # fmt: skip
