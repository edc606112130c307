"""Functions of angles and the like by other functions, for providers that lack them; exact as far as float16 goes."""

from __future__ import annotations

import math
from typing import Any

import torch

from delegate.backends.lowering import every
from delegate.backends.onnx.aot.translations.row import floating, ops, row, same_dtypes, scalar, typed


def tan(x: Any) -> Any:
    """sin(x) / cos(x)."""
    op = ops()
    return op.Div(op.Sin(x), op.Cos(x))


def sinh(x: Any) -> Any:
    """(exp(x) - exp(-x)) / 2."""
    op = ops()
    return op.Mul(op.Sub(op.Exp(x), op.Exp(op.Neg(x))), scalar(0.5, x))


def cosh(x: Any) -> Any:
    """(exp(x) + exp(-x)) / 2."""
    op = ops()
    return op.Mul(op.Add(op.Exp(x), op.Exp(op.Neg(x))), scalar(0.5, x))


def asin(x: Any) -> Any:
    """atan2(x, sqrt(1 - x * x)): the second is never negative."""
    op, one = ops(), scalar(1.0, x)
    return atan2(x, typed(op.Sqrt(op.Mul(op.Sub(one, x), op.Add(one, x))), x))


def acos(x: Any) -> Any:
    """A right angle less asin(x)."""
    return ops().Sub(scalar(math.pi / 2, x), asin(x))


def asinh(x: Any) -> Any:
    """log(|x| + sqrt(x * x + 1)), with the sign of x."""
    op = ops()
    size = op.Abs(x)
    logarithm = op.Log(op.Add(size, op.Sqrt(op.Add(op.Mul(size, size), scalar(1.0, x)))))
    return op.Where(op.Less(x, scalar(0.0, x)), op.Neg(logarithm), logarithm)


def acosh(x: Any) -> Any:
    """log(x + sqrt(x * x - 1))."""
    op, one = ops(), scalar(1.0, x)
    return op.Log(op.Add(x, op.Sqrt(op.Mul(op.Sub(x, one), op.Add(x, one)))))


def atanh(x: Any) -> Any:
    """log((1 + x) / (1 - x)) / 2."""
    op, one = ops(), scalar(1.0, x)
    return op.Mul(op.Log(op.Div(op.Add(one, x), op.Sub(one, x))), scalar(0.5, x))


def atan2(y: Any, x: Any) -> Any:
    """The angle of the smaller side to the larger one, turned to where the point lies; zeros have signs."""
    op = ops()
    height, width = op.Abs(y), op.Abs(x)
    angle = op.Atan(_ratio(height, width, x))
    angle = op.Where(op.Greater(height, width), op.Sub(scalar(math.pi / 2, x), angle), angle)
    angle = op.Where(_is_negative(x), op.Sub(scalar(math.pi, x), angle), angle)
    return op.Where(_is_negative(y), op.Neg(angle), angle)


def _ratio(first: Any, second: Any, like: Any) -> Any:
    """The smaller of two sizes over the larger one: 0 of two zeros, 1 of two infinities."""
    op, most = ops(), scalar(65504.0 if like.dtype.name == "FLOAT16" else torch.finfo(torch.float32).max, like)
    smaller, larger = (op.Min(extreme(first, second), most) for extreme in (op.Min, op.Max))
    return op.Div(smaller, op.Where(op.Equal(larger, scalar(0.0, like)), scalar(1.0, like), larger))


def _is_negative(x: Any) -> Any:
    """Below 0, or the zero that is."""
    op, zero = ops(), scalar(0.0, x)
    return op.Less(op.Where(op.Equal(x, zero), op.Div(scalar(1.0, x), x), x), zero)


def hypot(x: Any, y: Any) -> Any:
    """The longer side times sqrt(1 + ratio * ratio), which does not overflow."""
    op = ops()
    first, second = op.Abs(x), op.Abs(y)
    ratio = _ratio(first, second, x)
    return op.Mul(op.Max(first, second), op.Sqrt(op.Add(op.Mul(ratio, ratio), scalar(1.0, x))))


_ATAN2 = ("Abs", "Max", "Min", "Div", "Atan", "Where", "Sub", "Neg")
_SINH, _LOG = ("Exp", "Neg", "Mul"), ("Log", "Sqrt", "Mul", "Add")
_TWO = every(floating, same_dtypes)

ROWS = (
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
)  # fmt: skip
