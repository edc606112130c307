"""Truth values: compared, of numbers, chosen and joined; by And and Not, since providers lack the rest."""

from __future__ import annotations

import math
from typing import Any

from torch.fx import Node

from delegate.backend.lowering import anything
from delegate.edge.node import tensors
from delegate.verdict import YES, Verdict
from delegate_onnxruntime.onnx.aot.translations.row import (
    BOOL,
    cast_like,
    floating_inputs,
    is_bool,
    operand,
    ops,
    row,
    same_dtypes,
    scalar,
    truths,
)


def truth(x: Any) -> Any:
    """Return booleans unchanged, and numbers compared with 0."""
    op = ops()
    return x if is_bool(x) else op.Not(op.Equal(x, scalar(0, x)))


def both(x: Any, y: Any) -> Any:
    """Return x and y."""
    return ops().And(truth(x), truth(y))


def either(x: Any, y: Any) -> Any:
    """Return x or y."""
    op = ops()
    return op.Not(op.And(op.Not(truth(x)), op.Not(truth(y))))


def one(x: Any, y: Any) -> Any:
    """Return x or y, but not both."""
    op = ops()
    x, y = truth(x), truth(y)
    return op.And(op.Not(op.And(x, y)), op.Not(op.And(op.Not(x), op.Not(y))))


def negation(x: Any) -> Any:
    """Return not x."""
    op = ops()
    return op.Not(x) if is_bool(x) else op.Equal(x, scalar(0, x))


def equal(x: Any, y: Any) -> Any:
    """Return x == y."""
    op = ops()
    return op.Not(one(x, y)) if is_bool(x) else op.Equal(x, operand(y, x))


def different(x: Any, y: Any) -> Any:
    """Return x != y."""
    op = ops()
    return one(x, y) if is_bool(x) else op.Not(op.Equal(x, operand(y, x)))


def chosen(condition: Any, x: Any, y: Any) -> Any:
    """Return x where the condition is true, else y."""
    op = ops()
    if not is_bool(x):
        return op.Where(condition, x, y)
    return op.Not(op.And(op.Not(op.And(condition, x)), op.Not(op.And(op.Not(condition), y))))


def is_nan(x: Any) -> Any:
    """Return true for NaN, the only number that differs from itself."""
    op = ops()
    return op.Not(op.Equal(x, x))


def is_infinite(x: Any) -> Any:
    """Return true for inf and -inf."""
    op = ops()
    return op.Equal(op.Abs(x), scalar(math.inf, x))


def product(x: Any, y: Any) -> Any:
    """Return x * y; `and` for two booleans. Beside numbers, booleans are 0 and 1."""
    op = ops()
    x, y = operand(x, y), operand(y, x)
    if is_bool(x) and is_bool(y):
        return op.And(x, y)
    return op.Mul(*(cast_like(a, b) if is_bool(a) else a for a, b in ((x, y), (y, x))))


def _same_dtypes_or_truths(node: Node) -> Verdict:
    """All operands have one dtype, or are booleans."""
    dtypes = {t.dtype for source in node.all_input_nodes for t in tensors(source)} - BOOL
    return YES if len(dtypes) <= 1 else same_dtypes(node)


_JOINED = {"and": both, "or": either, "xor": one}
_JOIN = ("And", "Not")

ROWS = (
    row("aten.logical_not.default", ("Equal",), anything, translate=negation, also=BOOL, between=("Not",)),
    row("aten.bitwise_not.default", ("Not",), truths),
    *(
        row(f"aten.logical_{name}.default", ("Equal",), anything, translate=join, also=BOOL, between=_JOIN)
        for name, join in _JOINED.items()
    ),
    *(row(f"aten.bitwise_{name}.Tensor", ("And", "Not"), truths, translate=join) for name, join in _JOINED.items()),
    row("aten.eq.Tensor", ("Equal",), same_dtypes, translate=equal, also=BOOL, between=_JOIN),
    row("aten.ne.Tensor", ("Equal",), same_dtypes, translate=different, also=BOOL, between=_JOIN),
    row("aten.where.self", ("Where",), anything, translate=chosen, also=BOOL, between=_JOIN),
    row("aten.mul.Tensor", ("Mul",), _same_dtypes_or_truths, translate=product, also=BOOL, between=("And", "Cast")),
    row("aten.isnan.default", ("Equal",), floating_inputs, translate=is_nan, also=BOOL, between=("Not",)),
    row("aten.isinf.default", ("Abs",), floating_inputs, translate=is_infinite, also=BOOL, between=("Equal",)),
)
