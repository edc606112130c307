"""Symbolic integers: sizes that are known only when a method is called.

An expression is a small immutable tree. It is stored in program files as data and evaluated by walking;
nothing of a file is ever parsed as code.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum


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


_EVALUATE: dict[Op, Callable[[int, int], int]] = {
    Op.ADD: operator.add,
    Op.MUL: operator.mul,
    Op.FLOORDIV: operator.floordiv,
    Op.MOD: operator.mod,
    Op.MAX: max,
    Op.MIN: min,
}
_INFIX = {Op.ADD: "+", Op.MUL: "*", Op.FLOORDIV: "//", Op.MOD: "%"}


@dataclass(frozen=True, slots=True)
class Expr:
    """An integer expression over the symbols of a method.

    Args:
        op: the operation.
        value: the constant of CONST, the symbol's index of SYMBOL, else 0.
        args: the two operands of a binary operation, else empty.
    """

    op: Op
    value: int = 0
    args: tuple[Expr, ...] = ()

    def evaluate(self, symbols: Mapping[int, int]) -> int:
        """Its value where symbol i has the value `symbols[i]`; raises ZeroDivisionError as Python does."""
        if self.op is Op.CONST:
            return self.value
        if self.op is Op.SYMBOL:
            return symbols[self.value]
        left, right = self.args
        return _EVALUATE[self.op](left.evaluate(symbols), right.evaluate(symbols))

    def free_symbols(self) -> Iterator[int]:
        """The indices of the symbols in it, with repetitions."""
        if self.op is Op.SYMBOL:
            yield self.value
        for arg in self.args:
            yield from arg.free_symbols()

    def __str__(self) -> str:
        if self.op is Op.CONST:
            return str(self.value)
        if self.op is Op.SYMBOL:
            return f"s{self.value}"
        left, right = map(str, self.args)
        if self.op in _INFIX:
            return f"({left} {_INFIX[self.op]} {right})"
        return f"{self.op.name.lower()}({left}, {right})"


Dim = int | Expr


def evaluate(dim: Dim, symbols: Mapping[int, int]) -> int:
    """A dimension's size where symbol i has the value `symbols[i]`."""
    return dim if isinstance(dim, int) else dim.evaluate(symbols)
