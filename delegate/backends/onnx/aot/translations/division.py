"""Division with rounding, and remainders: by ONNX's exact Mod if a provider has it, else by quotients.

A whole quotient that was rounded up is corrected. The remainder is then exact up to quotients of 2^12. Beyond them its
error is the last digit of the dividend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch.fx import Node

from delegate.backends.lowering import every
from delegate.backends.onnx.aot.translations.row import (
    is_integer,
    numbers,
    operand,
    ops,
    promoted,
    row,
    same_dtypes,
    scalar,
)
from delegate.edge.node import arguments
from delegate.verdict import YES, Reason, Verdict, no


def _rounding(node: Node) -> Verdict:
    """The rounding mode is down or towards 0."""
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
    return _divided(x, y, rounding_mode, remainder)


def divide_by_modulo(x: Any, y: Any, *, rounding_mode: str) -> Any:
    """Return the quotient, rounded down or towards 0, computed from the remainder."""
    return _divided(x, y, rounding_mode, floor_modulo)


def _divided(x: Any, y: Any, rounding_mode: str, left_of: Callable[[Any, Any], Any]) -> Any:
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
    whole = op.Floor(op.Add(op.Div(op.Sub(x, left_of(x, y)), y), scalar(0.5, y)))
    return op.Where(op.Equal(y, zero), quotient, whole)


_PARTS = (
    "Abs", "Floor", "Ceil", "Min", "Mul", "Div", "Sub", "Add", "Neg", "Where", "Less", "Greater", "GreaterOrEqual",
    "Equal",
)  # fmt: skip
_OPERANDS = every(numbers, same_dtypes, promoted)
_WAYS: Mapping[str, Mapping[str, Callable[..., Any]]] = {  # ONNX operator -> operator of torch -> by that
    "Mod": {"fmod": modulo, "remainder": floor_modulo, "div": divide_by_modulo},
    "Div": {"fmod": fmod, "remainder": remainder, "div": divide},
}

ROWS = tuple(
    row(f"aten.{name}.{overload}", (onnx,), check, translate=ways[name], between=_PARTS)
    for onnx, ways in _WAYS.items()
    for name, overloads, check in (
        ("fmod", ("Tensor", "Scalar"), _OPERANDS),
        ("remainder", ("Tensor", "Scalar", "Scalar_Tensor"), _OPERANDS),
        ("div", ("Tensor_mode", "Scalar_mode"), every(_OPERANDS, _rounding)),
    )
    for overload in overloads
)
