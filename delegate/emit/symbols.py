"""torch's symbolic sizes as expressions over symbols that are read off the inputs' shapes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

import sympy
import torch
from torch.utils._sympy import functions as F

from delegate.errors import LoweringError
from delegate.program.expr import Dim, Expr, Op
from delegate.program.model import Symbol

_BINARY: dict[Any, Op] = {
    F.FloorDiv: Op.FLOORDIV,
    F.CleanDiv: Op.FLOORDIV,
    F.IntTrueDiv: Op.FLOORDIV,
    F.Mod: Op.MOD,
    F.PythonMod: Op.MOD,
    F.Max: Op.MAX,
    F.Min: Op.MIN,
    sympy.Max: Op.MAX,
    sympy.Min: Op.MIN,
    sympy.Mod: Op.MOD,
    sympy.Add: Op.ADD,
    sympy.Mul: Op.MUL,
}


class Symbols:
    """The symbols of a method, found in the shapes of its inputs.

    A symbol that stands alone as a size is that size. One that only occurs as a * s + b is solved for: the size itself
    becomes the program's symbol, and s is (size - b) // a; the check of the input's shape proves that it divides.

    Args:
        inputs: the fake tensor of each input, None for one that is no tensor.
        ranges: torch's range constraints.
    """

    def __init__(self, inputs: Sequence[torch.Tensor | None], ranges: Mapping[Any, Any]) -> None:
        self.table: list[Symbol] = []
        self._known: dict[Any, Expr] = {}
        dims = [(i, d, s.node.expr) for i, t in enumerate(inputs) if t is not None for d, s in _symbolic(t)]
        for position, dim, expr in dims:
            if isinstance(expr, sympy.Symbol) and expr not in self._known:
                low, high = _range(ranges.get(expr))
                self._add(expr, Symbol(str(expr), low, high, position, dim), 1, 0)
        for position, dim, expr in dims:
            unknown = [s for s in expr.free_symbols if s not in self._known]
            if len(unknown) == 1 and expr.free_symbols == set(unknown):
                self._solve(expr, unknown[0], ranges, position, dim)

    def dim(self, size: Any, where: str = "") -> Dim:
        """A size as torch has it (an int or a SymInt) as the program has it.

        Raises:
            LoweringError: it depends on data, or on an operation that programs do not have.
        """
        if isinstance(size, int):
            return size
        return _simplified(self._expr(sympy.sympify(size.node.expr if isinstance(size, torch.SymInt) else size), where))

    def knows(self, number: torch.SymInt | torch.SymBool | torch.SymFloat) -> bool:
        """Whether the number follows from symbols of the table."""
        return bool(number.node.expr.free_symbols <= self._known.keys())

    def _add(self, name: Any, symbol: Symbol, factor: int, offset: int) -> None:
        expr = Expr(Op.SYMBOL, len(self.table))
        if offset:
            expr = Expr(Op.ADD, 0, (expr, Expr(Op.CONST, -offset)))
        self._known[name] = expr if factor == 1 else Expr(Op.FLOORDIV, 0, (expr, Expr(Op.CONST, factor)))
        self.table.append(symbol)

    def _solve(self, expr: Any, name: Any, ranges: Mapping[Any, Any], position: int, dim: int) -> None:
        terms = sympy.Poly(expr, name) if expr.is_polynomial(name) else None
        if terms is None or terms.degree() != 1:
            return
        factor, offset = (int(c) for c in terms.all_coeffs())
        if factor < 1:
            return
        low, high = _range(ranges.get(name))
        symbol = Symbol(
            str(expr), factor * low + offset, None if high is None else factor * high + offset, position, dim
        )
        self._add(name, symbol, factor, offset)

    def _expr(self, expr: Any, where: str) -> Expr:
        if expr.is_Integer:
            return Expr(Op.CONST, int(expr))
        if isinstance(expr, sympy.Symbol):
            if expr in self._known:
                return self._known[expr]
            raise LoweringError(
                f"the size {expr} is known only from data",
                where=where,
                remedy="programs have sizes that follow from the shapes of the inputs",
            )
        if isinstance(expr, sympy.Pow) and expr.exp.is_Integer and int(expr.exp) > 0:
            return self._chain(Op.MUL, [expr.base] * int(expr.exp), where)
        if type(expr) in _BINARY:
            return self._chain(_BINARY[type(expr)], expr.args, where)
        raise LoweringError(f"the size {expr} uses {type(expr).__name__}, which programs do not have", where=where)

    def _chain(self, op: Op, args: Iterable[Any], where: str) -> Expr:
        return reduce(lambda left, right: Expr(op, 0, (left, right)), [self._expr(a, where) for a in args])


def _symbolic(value: torch.Tensor) -> list[tuple[int, Any]]:
    """Dimension and SymInt of each size that is symbolic."""
    return [(d, s) for d, s in enumerate(value.shape) if isinstance(s, torch.SymInt)]


def _simplified(expr: Expr) -> Dim:
    return expr.value if expr.op is Op.CONST else expr


def _range(bounds: Any) -> tuple[int, int | None]:
    """The least and the largest value of torch's ValueRanges; None where it is unbounded."""
    if bounds is None:
        return 0, None
    low = int(bounds.lower) if bounds.lower.is_Integer else 0
    return max(low, 0), int(bounds.upper) if bounds.upper.is_Integer else None
