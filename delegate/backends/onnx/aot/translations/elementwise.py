"""Element by element: arithmetic, comparisons, conversions."""

from __future__ import annotations

from typing import Any

from torch.fx import Node

from delegate.backends.lowering import anything, every, no_nan
from delegate.backends.onnx.aot.translations.logic import truth
from delegate.backends.onnx.aot.translations.row import (
    BOOL,
    cast_like,
    floating,
    floating_inputs,
    numbers,
    ops,
    row,
    same_dtypes,
    scalar,
)
from delegate.edge.node import tensor
from delegate.verdict import YES, Reason, Verdict, no


def _bounds(node: Node) -> Verdict:
    """Bounds do not change the dtype."""
    dtype = tensor(node).dtype
    if tensor(node.all_input_nodes[0]).dtype is dtype:
        return YES
    return no(Reason.DTYPE, f"the bounds make it {str(dtype).removeprefix('torch.')}")


def clamp(x: Any, min: float | None = None, max: float | None = None) -> Any:
    """Bounds in the dtype of x; ONNX Runtime's Clip of one bound also bounds infinity by the largest number."""
    op = ops()
    if min is None:
        return x if max is None else op.Min(x, scalar(max, x))
    return op.Max(x, scalar(min, x)) if max is None else op.Clip(x, scalar(min, x), scalar(max, x))


def power(x: Any, exponent: float) -> Any:
    """Roots by their own operators: Pow(-inf, 0.5) is inf, as C's, where torch gives NaN."""
    op = ops()
    if abs(exponent) == 0.5:
        return op.Sqrt(x) if exponent > 0 else op.Reciprocal(op.Sqrt(x))
    return op.Reciprocal(x) if exponent == -1 else op.Pow(x, scalar(exponent, x))


def sign(x: Any) -> Any:
    """1 above 0, less 1 below 0."""
    op, zero = ops(), scalar(0.0, x)
    return op.Sub(*(cast_like(compare(x, zero), x) for compare in (op.Greater, op.Less)))


def trunc(x: Any) -> Any:
    """Towards 0."""
    op = ops()
    return op.Where(op.Less(x, scalar(0.0, x)), op.Ceil(x), op.Floor(x))


def rounded(x: Any) -> Any:
    """To the nearest whole number, of two to the even one."""
    op, half = ops(), scalar(0.5, x)
    low = op.Floor(x)
    above = op.Sub(x, low)
    remainder = op.Sub(low, op.Mul(op.Floor(op.Mul(low, half)), scalar(2.0, x)))
    up = cast_like(op.Greater(above, half), x)
    return op.Add(low, op.Where(op.Equal(above, half), remainder, up))


def expm1(x: Any) -> Any:
    """exp(x) - 1; near 0, where that would lose digits, its series."""
    op, series = ops(), scalar(1.0, x)
    for divisor in range(9, 1, -1):
        series = op.Add(op.Mul(op.Mul(series, x), scalar(1 / divisor, x)), scalar(1.0, x))
    is_small = op.Less(op.Abs(x), scalar(0.5, x))
    return op.Where(is_small, op.Mul(series, x), op.Sub(op.Exp(x), scalar(1.0, x)))


def log1p(x: Any) -> Any:
    """log(1 + x); near 0, where that would lose digits, 2 atanh(x / (x + 2)) as a series."""
    op = ops()
    is_small = op.Less(op.Abs(x), scalar(0.5, x))
    s = op.Div(x, op.Add(x, scalar(2.0, x)))
    square, series = op.Mul(s, s), scalar(1 / 15, x)
    for exponent in range(13, 0, -2):
        series = op.Add(op.Mul(series, square), scalar(1 / exponent, x))
    return op.Where(is_small, op.Mul(op.Add(s, s), series), op.Log(op.Add(x, scalar(1.0, x))))


def erfc(x: Any) -> Any:
    """By a polynomial whose relative error is below 1.2e-7 everywhere (Numerical Recipes in C, 6.2)."""
    op = ops()
    size = op.Abs(x)
    t = op.Reciprocal(op.Add(op.Mul(size, scalar(0.5, x)), scalar(1.0, x)))
    series = scalar(_ERFC[-1], x)
    for factor in reversed(_ERFC[:-1]):
        series = op.Add(op.Mul(series, t), scalar(factor, x))
    tail = op.Mul(t, op.Exp(op.Sub(series, op.Mul(size, size))))
    return op.Where(op.Less(x, scalar(0.0, x)), op.Sub(scalar(2.0, x), tail), tail)


def erf(x: Any) -> Any:
    """1 - erfc(x)."""
    return ops().Sub(scalar(1.0, x), erfc(x))


def converted(x: Any, *, dtype: int, **_: Any) -> Any:
    """A cast; to truth values by comparing, since QNN's cast of integers is wrong."""
    import onnx_ir

    return truth(x) if dtype == onnx_ir.DataType.BOOL else ops().Cast(x, to=dtype)


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
    "neg": "Neg", "reciprocal": "Reciprocal", "round": "Round", "sigmoid": "Sigmoid", "sign": "Sign", "sin": "Sin",
    "sinh": "Sinh", "sqrt": "Sqrt", "tan": "Tan", "tanh": "Tanh",
}  # fmt: skip
_ORDER = {"gt": "Greater", "lt": "Less", "ge": "GreaterOrEqual", "le": "LessOrEqual"}
_COMPARABLE = every(numbers, same_dtypes)
_POLYNOMIAL = ("Abs", "Mul", "Add", "Sub", "Where")

ROWS = (
    *(row(f"aten.{name}.default", (onnx,), floating) for name, onnx in _UNARY.items()),
    row("aten.sign.default", ("Sub",), floating, translate=sign, between=("Greater", "Less", "Cast")),
    row(
        "aten.round.default", ("Floor", "Sub", "Mul", "Add", "Where"), floating, translate=rounded,
        between=("Greater", "Equal", "Cast"),
    ),
    row("aten.trunc.default", ("Where", "Ceil", "Floor"), floating, translate=trunc, between=("Less",)),
    row("aten.expm1.default", (*_POLYNOMIAL, "Exp"), floating, translate=expm1, between=("Less",)),
    row("aten.log1p.default", (*_POLYNOMIAL, "Log", "Div"), floating, translate=log1p, between=("Less",)),
    row("aten.erfc.default", (*_POLYNOMIAL, "Reciprocal", "Exp"), floating, translate=erfc, between=("Less",)),
    row("aten.erf.default", (*_POLYNOMIAL, "Reciprocal", "Exp"), floating, translate=erf, between=("Less",)),
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
    row("aten._to_copy.default", ("Cast",), anything, translate=converted, between=("Equal", "Not")),
)  # fmt: skip
