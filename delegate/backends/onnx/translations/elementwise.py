"""Element by element: arithmetic, comparisons, truth values, conversions.

Missing on purpose: expm1 and log1p, whose precision near 0 the exporter's exp(x) - 1 and log(1 + x) lose; fmod and
floor division, which ONNX rounds otherwise.
"""

from __future__ import annotations

from torch.fx import Node

from delegate.backends.lowering import anything, every
from delegate.backends.onnx.translations.row import (
    BOOL,
    Translation,
    floating,
    floating_inputs,
    numbers,
    same_dtypes,
    truths,
)
from delegate.edge.node import arguments, tensor
from delegate.verdict import YES, Reason, Verdict, no


def _bounds(node: Node) -> Verdict:
    """Bounds of one kind: the exporter finds no overload for an integer beside a float."""
    given = arguments(node)
    kinds = {type(b) for b in (given["min"], given["max"]) if b is not None}
    return YES if len(kinds) == 1 else no(Reason.ATTRIBUTE, f"min={given['min']} and max={given['max']}")


def _number_result(node: Node) -> Verdict:
    """The result is not of truth values."""
    return YES if tensor(node).dtype not in BOOL else no(Reason.DTYPE, "ONNX Runtime chooses among numbers alone")


_UNARY = {
    "abs": "Abs", "acos": "Acos", "acosh": "Acosh", "asin": "Asin", "asinh": "Asinh", "atan": "Atan", "atanh": "Atanh",
    "ceil": "Ceil", "cos": "Cos", "cosh": "Cosh", "erf": "Erf", "exp": "Exp", "floor": "Floor", "log": "Log",
    "neg": "Neg", "reciprocal": "Reciprocal", "round": "Round", "sigmoid": "Sigmoid", "sign": "Sign", "sin": "Sin",
    "sinh": "Sinh", "sqrt": "Sqrt", "tan": "Tan", "tanh": "Tanh",
}  # fmt: skip
_COMPARE = {"eq": "Equal", "ne": "Equal", "gt": "Greater", "lt": "Less", "ge": "GreaterOrEqual", "le": "LessOrEqual"}
_TRUTHS = {"and": "And", "or": "Or", "xor": "Xor"}
_COMPARABLE = every(numbers, same_dtypes)

ROWS = (
    *(Translation(f"aten.{name}.default", (onnx,), floating) for name, onnx in _UNARY.items()),
    Translation("aten.exp2.default", ("Pow",), floating),
    Translation("aten.log2.default", ("Log", "Div"), floating),
    Translation("aten.log10.default", ("Log", "Div"), floating),
    Translation("aten.rsqrt.default", ("Sqrt", "Reciprocal"), floating),
    Translation("aten.trunc.default", ("Abs", "Floor", "Sign", "Mul"), floating),
    *(
        Translation(f"aten.{name}.{overload}", (onnx,), every(numbers, same_dtypes))
        for name, onnx in {"add": "Add", "sub": "Sub", "mul": "Mul"}.items()
        for overload in ("Tensor", "Scalar")
    ),
    Translation("aten.div.Scalar", ("Div",), every(floating, floating_inputs)),
    Translation("aten.div.Tensor", ("Div",), every(floating, floating_inputs, same_dtypes)),
    Translation("aten.remainder.Scalar", ("Div", "Floor", "Mul", "Sub"), floating),
    Translation("aten.remainder.Tensor", ("Div", "Floor", "Mul", "Sub"), every(floating, same_dtypes)),
    Translation("aten.pow.Tensor_Scalar", ("Pow", "Mul", "Sqrt", "Reciprocal"), floating),
    Translation("aten.pow.Tensor_Tensor", ("Pow",), every(floating, same_dtypes)),
    Translation("aten.pow.Scalar", ("Pow",), floating),
    Translation("aten.maximum.default", ("Max",), _COMPARABLE),
    Translation("aten.minimum.default", ("Min",), _COMPARABLE),
    Translation("aten.clamp.default", ("Clip",), every(floating, _bounds)),
    Translation("aten.clamp.Tensor", ("Max", "Min"), _COMPARABLE),
    *(
        Translation(
            f"aten.{name}.{overload}", (onnx,), _COMPARABLE, beside=BOOL, between=("Not",) if name == "ne" else ()
        )
        for name, onnx in _COMPARE.items()
        for overload in ("Tensor", "Scalar")
    ),
    Translation("aten.logical_not.default", ("Not",), truths),
    Translation("aten.bitwise_not.default", ("Not",), truths),
    *(Translation(f"aten.logical_{name}.default", (onnx,), truths) for name, onnx in _TRUTHS.items()),
    *(Translation(f"aten.bitwise_{name}.Tensor", (onnx,), truths) for name, onnx in _TRUTHS.items()),
    Translation("aten.where.self", ("Where",), _number_result, beside=BOOL),
    Translation("aten._to_copy.default", ("Cast",), anything),
)
