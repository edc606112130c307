"""The bounds of symbolic sizes: interval arithmetic over the ranges of a method's symbols.

The bounds hold for every choice of symbols within their ranges, even if a size does not grow with its symbols, but they
need not be the tightest bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from delegate.program.expr import Dim, Expr, Op
from delegate.program.model import Symbol

Interval = tuple[float, float]  # no value is less than the first or more than the second

_LARGEST = 2**63
_ALL: Interval = (-math.inf, math.inf)


def _add(a: Interval, b: Interval) -> Interval:
    return a[0] + b[0], a[1] + b[1]


def _mul(a: Interval, b: Interval) -> Interval:
    corners = [0 if 0 in (x, y) else x * y for x in a for y in b]
    return min(corners), max(corners)


def _floordiv(a: Interval, b: Interval) -> Interval:
    if b[0] <= 0:
        return _ALL
    corners = [x if math.isinf(x) else (-1 if x < 0 else 0) if math.isinf(y) else x // y for x in a for y in b]
    return min(corners), max(corners)


def _mod(a: Interval, b: Interval) -> Interval:
    if b[0] <= 0:
        return _ALL
    return 0, min(b[1], a[1]) if a[0] >= 0 else b[1]  # of floats, the remainder may come near to the divisor


def _truediv(a: Interval, b: Interval) -> Interval:
    if b[0] <= 0:
        return _ALL
    corners = [x if math.isinf(x) else x / y for x in a for y in b]
    return min(corners), max(corners)


def _max(a: Interval, b: Interval) -> Interval:
    return max(a[0], b[0]), max(a[1], b[1])


def _min(a: Interval, b: Interval) -> Interval:
    return min(a[0], b[0]), min(a[1], b[1])


_BINARY: dict[Op, Callable[[Interval, Interval], Interval]] = {
    Op.ADD: _add,
    Op.MUL: _mul,
    Op.FLOORDIV: _floordiv,
    Op.MOD: _mod,
    Op.MAX: _max,
    Op.MIN: _min,
    Op.TRUEDIV: _truediv,
}
_MONOTONE: dict[Op, Callable[[float], float]] = {
    Op.TO_FLOAT: float,
    Op.FLOOR: math.floor,
    Op.CEIL: math.ceil,
    Op.TRUNC: math.trunc,
    Op.ROUND: round,
}


class ExpressionBounds:
    """The bounds of expressions over some symbols. Each expression is evaluated once, however many sizes share it."""

    def __init__(self, symbols: Sequence[Symbol]) -> None:
        self._symbols = symbols
        self._known: dict[int, tuple[Expr, Interval]] = {}  # by identity; the expression is kept, so that it stays

    def interval(self, expr: Expr) -> Interval:
        """Return bounds on an expression's values; infinite if none is known."""
        if (known := self._known.get(id(expr))) is not None:
            return known[1]
        try:
            low, high = self._interval(expr)
            if math.isnan(low) or math.isnan(high):
                low, high = _ALL
        except OverflowError:
            low, high = _ALL
        # what exceeds 64 bits is an error when it is evaluated
        interval = -math.inf if low < -_LARGEST else low, math.inf if high > _LARGEST else high
        self._known[id(expr)] = expr, interval
        return interval

    def _interval(self, expr: Expr) -> Interval:
        if expr.op in (Op.CONST, Op.FLOAT):
            return expr.value, expr.value
        if expr.op is Op.SYMBOL:
            symbol = self._symbols[int(expr.value)]
            return symbol.minimum, math.inf if symbol.maximum is None else symbol.maximum
        if expr.op in _BINARY:
            left, right = map(self.interval, expr.args)
            return _BINARY[expr.op](left, right)
        if expr.op in _MONOTONE:
            low, high = (x if math.isinf(x) else _MONOTONE[expr.op](x) for x in self.interval(expr.args[0]))
            return low, high
        return _ALL

    def largest(self, dim: Dim) -> int | None:
        """Return the size that a dimension never exceeds; None without a known bound."""
        if isinstance(dim, int):
            return dim
        bound = self.interval(dim)[1]
        return None if math.isinf(bound) else max(int(bound), 0)

    def largest_count(self, shape: Iterable[Dim]) -> int | None:
        """Return the number of elements that a shape never exceeds; None without a known bound."""
        sizes = [self.largest(dim) for dim in shape]
        return None if None in sizes else math.prod(size for size in sizes if size is not None)
