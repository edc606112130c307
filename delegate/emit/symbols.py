"""torch's symbolic numbers as expressions over symbols: sizes of inputs, numbers among inputs, numbers from data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import sympy
import torch

from delegate.edge.node import SYMBOLIC
from delegate.edge.torch_private import ConstantSource, bound_sympy
from delegate.edge.torch_private import sympy_functions as F
from delegate.errors import LoweringError
from delegate.program.expr import UNBOUNDED_BELOW, Dim, Expr, Op, Symbol

_BINARY: dict[Any, Op] = {
    F.FloorDiv: Op.FLOORDIV,
    F.CleanDiv: Op.FLOORDIV,
    F.IntTrueDiv: Op.TRUEDIV,
    F.FloatTrueDiv: Op.TRUEDIV,
    F.Mod: Op.MOD,
    F.PythonMod: Op.MOD,
    F.Max: Op.MAX,
    F.Min: Op.MIN,
    F.FloatPow: Op.POW,
    F.PowByNatural: Op.POW,
    sympy.Max: Op.MAX,
    sympy.Min: Op.MIN,
    sympy.Mod: Op.MOD,
    sympy.Add: Op.ADD,
    sympy.Mul: Op.MUL,
    sympy.Pow: Op.POW,
    sympy.Eq: Op.EQ,
    sympy.Ne: Op.NE,
    sympy.Lt: Op.LT,
    sympy.Le: Op.LE,
    sympy.And: Op.AND,
    sympy.Or: Op.OR,
}
_SWAPPED: dict[Any, Op] = {sympy.Gt: Op.LT, sympy.Ge: Op.LE}
_UNARY: dict[Any, Op] = {
    sympy.Not: Op.NOT,
    F.ToFloat: Op.TO_FLOAT,
    F.FloorToInt: Op.FLOOR,
    F.CeilToInt: Op.CEIL,
    F.TruncToInt: Op.TRUNC,
    F.RoundToInt: Op.ROUND,
    F.OpaqueUnaryFn_sqrt: Op.SQRT,
    F.OpaqueUnaryFn_exp: Op.EXP,
    F.OpaqueUnaryFn_log: Op.LOG,
    F.OpaqueUnaryFn_log2: Op.LOG2,
}


class _InputSize(NamedTuple):
    """A symbolic size of an input; a symbolic number among the inputs has the dimension -1."""

    input: int
    dim: int
    number: Any  # torch's symbolic integer

    @property
    def expr(self) -> Any:
        return self.number.node.expr


class MethodSymbols:
    """The symbols of a method: first the symbols of its inputs; symbols from data are added when they are computed.

    A symbol that is a size by itself is that size. A symbol that only occurs as a * s + b is solved: the size becomes
    the program's symbol, and s is (size - b) // a. The check of the input's shape proves that the division is exact. A
    size with symbols that no input determines, such as s0 * s1, is one symbol, which fallbacks of partitions have as
    inputs. A number among the inputs that follows from others is a symbol with a guard that both are equal.

    Args:
        inputs: the fake tensor of each input, or the symbolic integer of a number; None for a literal.
        ranges: torch's range constraints.
        names: Input names, from which symbols without a name get theirs.
    """

    def __init__(
        self,
        inputs: Sequence[torch.Tensor | torch.SymInt | None],
        ranges: Mapping[Any, Any],
        names: Sequence[str] = (),
    ) -> None:
        self.table: list[Symbol] = []
        self.equal: list[Expr] = []  # guards of input numbers that follow from other inputs
        self._ranges = ranges
        self._known: dict[Any, Expr] = {}
        self._pending: dict[Any, Symbol] = {}
        sizes = [_InputSize(i, *sized) for i, value in enumerate(inputs) for sized in _symbolic(value)]
        self._add_plain_sizes(sizes, names)
        self._add_linear_sizes(sizes)
        self._add_other_sizes(sizes)
        self._add_numbers_that_follow(sizes, names)

    def _add_plain_sizes(self, sizes: Iterable[_InputSize], names: Sequence[str]) -> None:
        """Add the symbols that are a size by themselves."""
        for size in sizes:
            if isinstance(size.expr, sympy.Symbol) and size.expr not in self._known:
                name = "" if not names else names[size.input] + (f".shape[{size.dim}]" if size.dim >= 0 else "")
                self._add_size(size, name)

    def _add_linear_sizes(self, sizes: Iterable[_InputSize]) -> None:
        """Solve the sizes a * s + b for their symbols."""
        for size in sizes:
            symbols = size.expr.free_symbols
            if len(symbols) == 1 and not symbols & self._known.keys():
                self._solve(size, *symbols)

    def _add_other_sizes(self, sizes: Iterable[_InputSize]) -> None:
        """Add each size with symbols that are still unknown as one symbol."""
        for size in sizes:
            if size.expr not in self._known and not self.knows(size.number):
                self._add_size(size)

    def _add_numbers_that_follow(self, sizes: Iterable[_InputSize], names: Sequence[str]) -> None:
        """Add a symbol and a guard for each number among the inputs that follows from others."""
        known = {symbol.input for symbol in self.table if symbol.dim < 0}
        for size in sizes:
            if size.dim < 0 and size.input not in known:
                own, follows = Expr(Op.SYMBOL, len(self.table)), self._expr(size.expr, "")
                name = names[size.input] if names else dim_name(size.number)
                self.table.append(Symbol(name, UNBOUNDED_BELOW, None, size.input))
                self.equal.append(Expr(Op.EQ, 0, (own, follows)))

    def dim(self, size: Any, where: str = "") -> Dim:
        """Return torch's size (an int or a SymInt) in the form of programs.

        Raises:
            LoweringError: the size depends on an operation that programs do not have, or on data that is not available.
        """
        dim = self.number(size, where)
        assert isinstance(dim, int | Expr)
        return dim

    def number(self, number: Any, where: str = "") -> Expr | int | float | bool:
        """Return torch's number (a Python number or a symbolic one) in the form of programs; raises like `dim`."""
        if isinstance(number, bool | int | float):
            return number
        expr = sympy.sympify(number.node.expr if isinstance(number, SYMBOLIC) else number)
        if expr in (sympy.true, sympy.false):
            return bool(expr)
        result = self._expr(expr, where)
        return result.value if result.op in (Op.CONST, Op.FLOAT) else result

    def learn_sizes(self, fake: torch.Tensor, value: int) -> bool:
        """Add the new symbols among the sizes of a tensor, which is value `value`; return if there are any."""
        before = len(self.table)
        for dim, size in _symbolic(fake):
            expr = size.node.expr
            if isinstance(expr, sympy.Symbol) and expr not in self._known:
                low, high = self._range(expr, 0)
                self._add(expr, Symbol(str(expr), low, high, dim=dim, value=value), 1, 0)
        return len(self.table) > before

    def learn_same(self, fake: torch.Tensor, shape: Sequence[Dim]) -> None:
        """Map unknown symbols among the sizes of a tensor to the sizes of a shape."""
        for dim, size in _symbolic(fake):
            expr, same = size.node.expr, shape[dim]
            if isinstance(expr, sympy.Symbol):
                self._known.setdefault(expr, same if isinstance(same, Expr) else Expr(Op.CONST, same))

    def register(self, number: Any, value: int) -> None:
        """Register value `value`, of one element, as a number; its symbol is added when an expression needs it."""
        if not isinstance(number, SYMBOLIC):
            return
        expr = number.node.expr
        symbol = expr.args[0] if isinstance(expr, sympy.Eq) and expr.args[1] == 1 else expr  # Eq(u, 1): a boolean
        if isinstance(symbol, sympy.Symbol) and symbol not in self._known:
            low, high = self._range(symbol, UNBOUNDED_BELOW)
            self._pending[symbol] = Symbol(str(symbol), low, high, value=value)

    def knows(self, number: torch.SymInt | torch.SymBool | torch.SymFloat) -> bool:
        """Return if the number follows from symbols of the table."""
        return bool(number.node.expr.free_symbols <= self._known.keys())

    def _add(self, name: Any, symbol: Symbol, factor: int, offset: int) -> None:
        expr = Expr(Op.SYMBOL, len(self.table))
        if offset:
            expr = Expr(Op.ADD, 0, (expr, Expr(Op.CONST, -offset)))
        self._known[name] = expr if factor == 1 else Expr(Op.FLOORDIV, 0, (expr, Expr(Op.CONST, factor)))
        self.table.append(symbol)

    def _add_size(self, size: _InputSize, name: str = "") -> None:
        low, high = self._range(size.expr, 0 if size.dim >= 0 else UNBOUNDED_BELOW)
        self._add(size.expr, Symbol(dim_name(size.number, name), low, high, size.input, size.dim), 1, 0)

    def _solve(self, size: _InputSize, symbol: Any) -> None:
        terms = sympy.Poly(size.expr, symbol) if size.expr.is_polynomial(symbol) else None
        if terms is None or terms.degree() != 1:
            return
        factor, offset = (int(c) for c in terms.all_coeffs())
        if factor < 1:
            return
        low, high = self._range(symbol, 0)
        upper = None if high is None else factor * high + offset
        solved = Symbol(dim_name(size.number), factor * low + offset, upper, size.input, size.dim)
        self._add(symbol, solved, factor, offset)

    def _range(self, expr: Any, least: int) -> tuple[int, int | None]:
        """Return the smallest value, at least `least`, and the largest; None if it is unbounded."""
        bounds = bound_sympy(expr, dict(self._ranges))
        low = int(bounds.lower) if bounds.lower.is_Integer else least
        return max(low, least), int(bounds.upper) if bounds.upper.is_Integer else None

    def _expr(self, expr: Any, where: str) -> Expr:
        if expr in self._pending:
            self._add(expr, self._pending.pop(expr), 1, 0)
        if expr in self._known:
            return self._known[expr]
        if isinstance(expr, sympy.Symbol):
            raise LoweringError(
                f"the number {expr} depends on data that is not available in this graph",
                where=where,
                remedy="compute sizes and numbers that depend on data outside of control flow",
            )
        if expr.is_Number:
            return Expr(Op.CONST, int(expr)) if expr.is_Integer else Expr(Op.FLOAT, float(expr))
        return self._operation(expr, where)

    def _operation(self, expr: Any, where: str) -> Expr:
        kind = type(expr)
        if kind in _BINARY:
            return self._chain(_BINARY[kind], expr.args, where)
        if kind in _SWAPPED:
            return self._chain(_SWAPPED[kind], reversed(expr.args), where)
        if kind in _UNARY:
            return Expr(_UNARY[kind], 0, (self._expr(expr.args[0], where),))
        if kind is sympy.Abs:
            return self._chain(Op.MAX, (expr.args[0], -expr.args[0]), where)
        if kind is sympy.Piecewise:
            return self._choice(expr.args, where)
        raise LoweringError(f"the number {expr} uses {kind.__name__}, which programs do not support", where=where)

    def _choice(self, pieces: Sequence[Any], where: str) -> Expr:
        """Return the first piece whose condition holds."""
        (value, condition), *others = pieces
        chosen = self._expr(value, where)
        return _choose(self._expr(condition, where), chosen, self._choice(others, where)) if others else chosen

    def _chain(self, op: Op, args: Iterable[Any], where: str) -> Expr:
        return reduce(lambda left, right: Expr(op, 0, (left, right)), [self._expr(a, where) for a in args])


def _choose(condition: Expr, chosen: Expr, other: Expr) -> Expr:
    """Return chosen * condition + other * not condition."""
    rest = Expr(Op.MUL, 0, (other, Expr(Op.NOT, 0, (condition,))))
    return Expr(Op.ADD, 0, (Expr(Op.MUL, 0, (chosen, condition)), rest))


def _symbolic(value: torch.Tensor | torch.SymInt | None) -> list[tuple[int, Any]]:
    """Return dimension and SymInt of each symbolic size; the dimension of a symbolic number is -1."""
    if isinstance(value, torch.SymInt):
        return [(-1, value)]
    sizes = [] if value is None else value.shape
    return [(d, s) for d, s in enumerate(sizes) if isinstance(s, torch.SymInt)]


def dim_name(size: Any, default: str = "") -> str:
    """Return the name of a symbolic size: with the names of `torch.export.Dim` if torch still has them, else torch's.

    A program that was saved as .pt2 and loaded again has lost them.

    Args:
        size: the symbolic size.
        default: the name of a symbol without a name, e.g. "x.shape[0]".
    """
    expr = size.node.expr
    shape_env = size.node.shape_env
    names = {s: _symbol_name(s, shape_env) for s in expr.free_symbols}
    if default and names.get(expr) == str(expr):
        return default
    return str(expr.xreplace({s: sympy.Symbol(name) for s, name in names.items()}))


def _symbol_name(symbol: Any, shape_env: Any) -> str:
    names = getattr(shape_env, "source_name_to_debug_name", {})
    for source in getattr(shape_env, "var_to_sources", {}).get(symbol, ()):
        if isinstance(source, ConstantSource):  # the root of a derived dimension, e.g. `half` of 2 * half
            return source.source_name
        if source.name in names:
            return str(names[source.name])
    return str(symbol)
