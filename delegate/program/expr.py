"""Symbolic numbers: sizes, and numbers computed from sizes, that are known only when a method is called.

An expression is a small immutable tree, which program files store as data, and which is evaluated by walking. Nothing
in a file is parsed as code, and evaluation of any file gives a number or an `InputError`.

Bounds of sizes are interval arithmetic over the ranges of a method's symbols. They hold for every choice of symbols
within their ranges, even if a size does not grow with its symbols, but they need not be the tightest bounds.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from delegate.errors import InputError

Number = int | float | bool
UNBOUNDED_BELOW = -(2**63)  # the minimum of a symbol that has none


class Op(Enum):
    """Operation of an `Expr`; the value is its stable code in program files."""

    CONST = 0  # value
    SYMBOL = 1  # value: index into the method's symbols
    ADD = 2
    MUL = 3
    FLOORDIV = 4
    MOD = 5
    MAX = 6
    MIN = 7
    FLOAT = 8  # value: a float
    TRUEDIV = 9
    POW = 10
    EQ = 11
    NE = 12
    LT = 13
    LE = 14
    AND = 15
    OR = 16
    NOT = 17
    TO_FLOAT = 18
    FLOOR = 19  # to an integer, as the following three
    CEIL = 20
    TRUNC = 21
    ROUND = 22  # half to even
    SQRT = 23
    EXP = 24
    LOG = 25
    LOG2 = 26


LEAVES = frozenset({Op.CONST, Op.SYMBOL, Op.FLOAT})


def power(base: Number, exponent: Number) -> Number:
    """Raise OverflowError if the result would be an integer of more than 64 bits."""
    if isinstance(base, int) and isinstance(exponent, int) and exponent >= 0:
        if abs(base) > 1 and exponent > 64:
            raise OverflowError("the power is too large")
        return int(base**exponent)
    return math.pow(base, exponent)


_EVALUATE: dict[Op, Callable[..., Number]] = {
    Op.ADD: operator.add,
    Op.MUL: operator.mul,
    Op.FLOORDIV: operator.floordiv,
    Op.MOD: operator.mod,
    Op.MAX: max,
    Op.MIN: min,
    Op.TRUEDIV: operator.truediv,
    Op.POW: power,
    Op.EQ: operator.eq,
    Op.NE: operator.ne,
    Op.LT: operator.lt,
    Op.LE: operator.le,
    Op.AND: lambda left, right: bool(left and right),
    Op.OR: lambda left, right: bool(left or right),
    Op.NOT: operator.not_,
    Op.TO_FLOAT: float,
    Op.FLOOR: math.floor,
    Op.CEIL: math.ceil,
    Op.TRUNC: math.trunc,
    Op.ROUND: round,
    Op.SQRT: math.sqrt,
    Op.EXP: math.exp,
    Op.LOG: math.log,
    Op.LOG2: math.log2,
}
_INFIX = {Op.ADD: "+", Op.MUL: "*", Op.FLOORDIV: "//", Op.MOD: "%", Op.TRUEDIV: "/", Op.POW: "**"}
_INFIX |= {Op.EQ: "==", Op.NE: "!=", Op.LT: "<", Op.LE: "<=", Op.AND: "and", Op.OR: "or"}
_UNARY = frozenset({Op.NOT, Op.TO_FLOAT, Op.FLOOR, Op.CEIL, Op.TRUNC, Op.ROUND, Op.SQRT, Op.EXP, Op.LOG, Op.LOG2})
_LARGEST = 2**63 - 1


_LONGEST = 256  # characters of a text in a message
_MOST_NAMED = 8  # symbols in a message


def shorten(pieces: Iterable[str]) -> str:
    """Join the pieces up to a maximum length. Pieces beyond it are not even computed."""
    if isinstance(pieces, str):
        return pieces if len(pieces) <= _LONGEST else f"{pieces[:_LONGEST]}..."
    parts, size = [], 0
    for piece in pieces:
        parts.append(piece)
        size += len(piece)
        if size > _LONGEST:
            return f"{''.join(parts)[:_LONGEST]}..."
    return "".join(parts)


class SymbolValues(dict[int, Number]):
    """The numbers of symbols, with a cache for the values of expressions over them. Many sizes share one expression.

    Symbols may be added, but not changed.
    """

    __slots__ = ("values_of",)

    def __init__(self, numbers: Mapping[int, Number] | Iterable[tuple[int, Number]] = ()) -> None:
        super().__init__(numbers)
        self.values_of: dict[int, tuple[Expr, Number]] = {}  # by identity; the expression is kept, so that it stays


def operands(op: Op) -> int:
    """Return the number of operands that an operation takes."""
    return 0 if op in LEAVES else 1 if op in _UNARY else 2


@dataclass(frozen=True, slots=True)
class Expr:
    """An expression over the symbols of a method. Sizes are integers; arguments may be floats and booleans too.

    Args:
        op: the operation.
        value: the constant of CONST (an integer) and FLOAT, the symbol's index of SYMBOL, else 0.
        args: the operands, `operands(op)` in number.
    """

    op: Op
    value: int | float = 0
    args: tuple[Expr, ...] = ()

    def evaluate(self, symbols: Mapping[int, Number]) -> Number:
        """Return the value if symbol i has the value `symbols[i]`. `SymbolValues` cache it.

        Raises:
            InputError: the expression has no value, e.g. after a division by zero, or its value exceeds 64 bits.
        """
        cache = symbols.values_of if isinstance(symbols, SymbolValues) else {}
        if (cached := cache.get(id(self))) is not None:
            return cached[1]
        try:
            value = self._evaluate(symbols)
        except (ArithmeticError, ValueError) as error:
            named = sorted(set(self.free_symbols()))[:_MOST_NAMED]
            raise InputError(
                f"the number {self} cannot be computed for these inputs: {error}",
                where=", ".join(f"s{i} = {symbols[i]}" for i in named),
                remedy="pass other sizes, or guard the computation in the model",
            ) from error
        cache[id(self)] = self, value
        return value

    def _evaluate(self, symbols: Mapping[int, Number]) -> Number:
        if self.op is Op.SYMBOL:
            return symbols[int(self.value)]
        if self.op in LEAVES:
            return self.value
        result = _EVALUATE[self.op](*[arg._evaluate(symbols) for arg in self.args])
        if isinstance(result, int) and abs(result) > _LARGEST:
            raise OverflowError("it exceeds 64 bits")
        return result

    def free_symbols(self) -> Iterator[int]:
        """Yield the indices of the symbols in the expression, with repetitions."""
        if self.op is Op.SYMBOL:
            yield int(self.value)
        for arg in self.args:
            yield from arg.free_symbols()

    def text(self, names: Sequence[str]) -> str:
        """Return the expression with the name `names[i]` for symbol i, or "s<i>" without a name. A long text is cut."""
        return shorten(self._pieces(names))

    def _pieces(self, names: Sequence[str]) -> Iterator[str]:
        if self.op is Op.SYMBOL:
            index = int(self.value)
            yield names[index] if 0 <= index < len(names) else f"s{index}"
            return
        if self.op in LEAVES:
            yield str(self.value)
            return
        yield "(" if self.op in _INFIX else f"{self.op.name.lower()}("
        for position, arg in enumerate(self.args):
            if position:
                yield f" {_INFIX[self.op]} " if self.op in _INFIX else ", "
            yield from arg._pieces(names)
        yield ")"

    def __str__(self) -> str:
        return self.text(())


Dim = int | Expr


def evaluate(dim: Dim, symbols: Mapping[int, Number]) -> int:
    """Return a dimension's size if symbol i has the value `symbols[i]`; raise InputError if it is not a size."""
    if isinstance(dim, int):
        return dim
    size = dim.evaluate(symbols)
    if type(size) is not int or size < 0:
        raise InputError(f"the size {dim} is {size} for these inputs", remedy="pass inputs whose sizes fit the model")
    return size


class SymbolSets:
    """The symbols in arguments, as sets of their indices. Each expression is read once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Expr, frozenset[int]]] = {}  # by identity; keeps the expression

    def of(self, arg: Any) -> frozenset[int]:
        """Return the symbols in a size, a number, or nested tuples of these."""
        if isinstance(arg, tuple):
            return frozenset[int]().union(*map(self.of, arg))
        if not isinstance(arg, Expr):
            return frozenset()
        cached = self._known.get(id(arg))
        if cached is None:
            cached = self._known[id(arg)] = arg, frozenset(arg.free_symbols())
        return cached[1]


class Symbol(NamedTuple):
    """A symbolic number of a method: a size, a number among the inputs, or an element of a tensor.

    Args:
        name: A name for people, e.g. "s0" or the Dim's name "batch".
        minimum, maximum: the range of integers that is allowed, inclusive; maximum None: unbounded.
        input, dim: the symbol is the size of that dimension of that input; dim -1: the input itself, a number.
            Input -1: known only from data.
        value, dim: if input is -1, the symbol is the size of that dimension of that value; dim -1: its only element.
    """

    name: str
    minimum: int
    maximum: int | None
    input: int = -1
    dim: int = -1
    value: int = -1


Interval = tuple[float, float]  # no value is less than the first or more than the second

_LARGEST_BOUND = 2**63
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
        interval = -math.inf if low < -_LARGEST_BOUND else low, math.inf if high > _LARGEST_BOUND else high
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
