"""Symbolic numbers: sizes, and what is computed from sizes, that are known only when a method is called.

An expression is a small immutable tree. It is stored in program files as data and evaluated by walking; nothing of a
file is ever parsed as code. Evaluation is total: whatever a file holds gives a number or an `InputError`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from delegate.errors import InputError

Number = int | float | bool


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


def _pow(base: Number, exponent: Number) -> Number:
    """Raises OverflowError where an integer of more than 64 bits would be the result."""
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
    Op.POW: _pow,
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


def operands(op: Op) -> int:
    """How many operands an operation takes."""
    return 0 if op in LEAVES else 1 if op in _UNARY else 2


@dataclass(frozen=True, slots=True)
class Expr:
    """An expression over the symbols of a method. Sizes are integers; arguments may be floats and truth values too.

    Args:
        op: the operation.
        value: the constant of CONST (an integer) and FLOAT, the symbol's index of SYMBOL, else 0.
        args: the operands, as many as `operands(op)` says.
    """

    op: Op
    value: int | float = 0
    args: tuple[Expr, ...] = ()

    def evaluate(self, symbols: Mapping[int, Number]) -> Number:
        """Its value where symbol i has the value `symbols[i]`.

        Raises:
            InputError: it has no value for these symbols, e.g. for a division by zero, or it exceeds 64 bits.
        """
        try:
            return self._evaluate(symbols)
        except (ArithmeticError, ValueError) as error:
            raise InputError(
                f"the number {self} cannot be computed for these inputs: {error}",
                where=", ".join(f"s{i} = {symbols[i]}" for i in sorted(set(self.free_symbols()))),
                remedy="give other sizes, or guard the computation in the model",
            ) from error

    def _evaluate(self, symbols: Mapping[int, Number]) -> Number:
        if self.op is Op.SYMBOL:
            return symbols[int(self.value)]
        if self.op in LEAVES:
            return self.value
        made = _EVALUATE[self.op](*[arg._evaluate(symbols) for arg in self.args])
        if isinstance(made, int) and abs(made) > _LARGEST:
            raise OverflowError("it exceeds 64 bits")
        return made

    def free_symbols(self) -> Iterator[int]:
        """The indices of the symbols in it, with repetitions."""
        if self.op is Op.SYMBOL:
            yield int(self.value)
        for arg in self.args:
            yield from arg.free_symbols()

    def text(self, names: Sequence[str]) -> str:
        """The expression with the name `names[i]` for symbol i; "s<i>" for a symbol beyond them."""
        if self.op is Op.SYMBOL:
            index = int(self.value)
            return names[index] if 0 <= index < len(names) else f"s{index}"
        if self.op in LEAVES:
            return str(self.value)
        parts = [arg.text(names) for arg in self.args]
        if self.op in _INFIX:
            return f"({f' {_INFIX[self.op]} '.join(parts)})"
        return f"{self.op.name.lower()}({', '.join(parts)})"

    def __str__(self) -> str:
        return self.text(())


Dim = int | Expr


def evaluate(dim: Dim, symbols: Mapping[int, Number]) -> int:
    """A dimension's size where symbol i has the value `symbols[i]`; raises InputError where that is no size."""
    if isinstance(dim, int):
        return dim
    size = dim.evaluate(symbols)
    if type(size) is not int or size < 0:
        raise InputError(f"the size {dim} is {size} for these inputs", remedy="give inputs whose sizes fit the model")
    return size


def symbols_of(dim: Any) -> Iterator[int]:
    """The indices of the symbols in an argument (a size, a number, nested tuples of these), with repetitions."""
    if isinstance(dim, Expr):
        yield from dim.free_symbols()
    elif isinstance(dim, tuple):
        for item in dim:
            yield from symbols_of(item)
