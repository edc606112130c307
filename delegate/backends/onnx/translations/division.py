"""Division with rounding, and what it leaves: by whole quotients, put right where a quotient was rounded up to one."""

from __future__ import annotations

from typing import Any

from torch.fx import Node

from delegate.backends.lowering import every
from delegate.backends.onnx.translations.own import is_integer, operand, ops, scalar
from delegate.backends.onnx.translations.row import numbers, promoted, row, same_dtypes
from delegate.edge.node import arguments
from delegate.verdict import YES, Reason, Verdict, no


def _rounding(node: Node) -> Verdict:
    """Rounded down or towards 0."""
    mode = arguments(node)["rounding_mode"]
    return YES if mode is not None else no(Reason.ATTRIBUTE, "not rounded")


def _both(x: Any, y: Any) -> tuple[Any, Any]:
    return operand(x, y), operand(y, x)


def _high(x: Any, like: Any) -> Any:
    """The upper half of the digits, whose product with a small whole number is exact (Veltkamp, Dekker)."""
    op = ops()
    factor, largest = (2.0**6 + 1, 2.0**9) if like.dtype.name == "FLOAT16" else (2.0**12 + 1, 2.0**100)
    part = op.Min(x, scalar(largest, like))  # so that the next product does not overflow
    wide = op.Mul(part, scalar(factor, like))
    return op.Sub(wide, op.Sub(wide, part))


def fmod(x: Any, y: Any) -> Any:
    """What is left of x, with its sign."""
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


def remainder(x: Any, y: Any) -> Any:
    """What is left of x, with the sign of y."""
    op = ops()
    x, y = _both(x, y)
    zero, left = scalar(0, y), fmod(x, y)
    moved = op.Add(left, y)
    across = op.Where(op.Less(y, zero), op.Where(op.Greater(left, zero), moved, left), left)
    return op.Where(op.Greater(y, zero), op.Where(op.Less(left, zero), moved, left), across)


def divide(x: Any, y: Any, *, rounding_mode: str) -> Any:
    """The quotient, rounded down or towards 0."""
    op = ops()
    x, y = _both(x, y)
    zero = scalar(0, y)
    quotient = op.Div(x, y)
    if is_integer(y):
        if rounding_mode == "trunc":
            return quotient
        left = op.Sub(x, op.Mul(quotient, y))
        less = op.Sub(quotient, scalar(1, y))
        down = op.Where(op.Less(y, zero), op.Where(op.Greater(left, zero), less, quotient), quotient)
        return op.Where(op.Greater(y, zero), op.Where(op.Less(left, zero), less, quotient), down)
    if rounding_mode == "trunc":
        return op.Where(op.Less(quotient, zero), op.Ceil(quotient), op.Floor(quotient))
    whole = op.Floor(op.Add(op.Div(op.Sub(x, remainder(x, y)), y), scalar(0.5, y)))
    return op.Where(op.Equal(y, zero), quotient, whole)


_LEFT = ("Div",)
_PARTS = (
    "Abs", "Floor", "Ceil", "Min", "Mul", "Sub", "Add", "Neg", "Where", "Less", "Greater", "GreaterOrEqual", "Equal",
)  # fmt: skip
_OPERANDS = every(numbers, same_dtypes, promoted)

ROWS = (
    *(
        row(f"aten.{name}.{overload}", _LEFT, _OPERANDS, translate=function, between=_PARTS)
        for name, function in {"fmod": fmod, "remainder": remainder}.items()
        for overload in ("Tensor", "Scalar")
    ),
    row("aten.remainder.Scalar_Tensor", _LEFT, _OPERANDS, translate=remainder, between=_PARTS),
    *(
        row(f"aten.div.{overload}", _LEFT, every(_OPERANDS, _rounding), translate=divide, between=_PARTS)
        for overload in ("Tensor_mode", "Scalar_mode")
    ),
)
