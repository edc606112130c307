"""Guards: the export's assumptions on sizes beyond their ranges, as expressions over the symbols of a method.

Torch stores the conditions on inputs only as text, such as "((1 + L['x'].size()[0]) // 2) == 3", also in .pt2 files.
Their syntax tree is translated; no part of them is executed.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

from delegate.emit.symbols import MethodSymbols, choose
from delegate.errors import LoweringError
from delegate.program.expr import Expr, Op

_INFIX: dict[type[ast.AST], Op] = {
    ast.Add: Op.ADD,
    ast.Mult: Op.MUL,
    ast.FloorDiv: Op.FLOORDIV,
    ast.Mod: Op.MOD,
    ast.Div: Op.TRUEDIV,
    ast.Pow: Op.POW,
    ast.And: Op.AND,
    ast.Or: Op.OR,
    ast.Eq: Op.EQ,
    ast.NotEq: Op.NE,
    ast.Lt: Op.LT,
    ast.LtE: Op.LE,
}
_SWAPPED: dict[type[ast.AST], Op] = {ast.Gt: Op.LT, ast.GtE: Op.LE}
_CALLS = {
    "max": Op.MAX,
    "min": Op.MIN,
    "torch.sym_max": Op.MAX,  # torch 2.14 writes these two
    "torch.sym_min": Op.MIN,
    "float": Op.TO_FLOAT,
    "torch.sym_float": Op.TO_FLOAT,
    "math.floor": Op.FLOOR,
    "math.ceil": Op.CEIL,
    "math.trunc": Op.TRUNC,
    "round": Op.ROUND,
    "math.sqrt": Op.SQRT,
    "torch._sym_sqrt": Op.SQRT,
    "math.exp": Op.EXP,
    "math.log": Op.LOG,
    "math.log2": Op.LOG2,
}


class _Foreign(Exception):
    """A condition has a term that programs cannot express."""


def guards(
    conditions: Iterable[Any], inputs: Mapping[str, Any], symbols: MethodSymbols, warn: Callable[[str], None]
) -> Iterator[Expr]:
    """Yield the conditions that depend on symbols of the method, each once.

    Args:
        conditions: texts, or symbolic booleans.
        inputs: name -> the fake tensor or the symbolic integer; any other object for a constant of the export.
        symbols: The method's symbols, complete.
        warn: called with a sentence for each condition that cannot be expressed.
    """
    seen: set[Expr] = set()
    for condition in conditions:
        try:
            expr = (
                _Reader(inputs, symbols).read(condition)
                if isinstance(condition, str)
                else _read_assertion(condition, symbols)
            )
        except (_Foreign, LoweringError) as why:
            warn(f"the program does not check this assumption of the export: {condition} ({why})")
            continue
        if expr is not None and expr not in seen and any(True for _ in expr.free_symbols()):
            seen.add(expr)
            yield expr


def _read_assertion(condition: Any, symbols: MethodSymbols) -> Expr | None:
    """Return the model's assertion as an expression; None if its numbers are only in tensors."""
    expr = symbols.number(condition) if symbols.knows(condition) else None
    return expr if isinstance(expr, Expr) else None


class _Reader:
    """A translator of a condition's text to an expression."""

    def __init__(self, inputs: Mapping[str, Any], symbols: MethodSymbols) -> None:
        self._inputs, self._symbols = inputs, symbols

    def read(self, text: str) -> Expr | None:
        """Return the condition; None for one on strides, which programs do not have."""
        if ".stride()" in text or ".storage_offset()" in text:
            return None
        return self._expr(ast.parse(text.strip(), mode="eval").body)

    def _expr(self, node: ast.expr) -> Expr:
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            return Expr(Op.FLOAT if isinstance(node.value, float) else Op.CONST, node.value)
        if isinstance(node, ast.UnaryOp):
            return self._with_sign(node)
        if isinstance(node, ast.BinOp):
            return self._chain(node.op, [node.left, node.right])
        if isinstance(node, ast.BoolOp):
            return self._chain(node.op, node.values)
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            parts = [self._chain(op, sides[i : i + 2]) for i, op in enumerate(node.ops)]
            return reduce(lambda a, b: Expr(Op.AND, 0, (a, b)), parts)
        return self._term(node)

    def _with_sign(self, node: ast.UnaryOp) -> Expr:
        expr = self._expr(node.operand)
        if isinstance(node.op, ast.Not):
            return Expr(Op.NOT, 0, (expr,))
        return _negative(expr)

    def _chain(self, op: ast.AST, operands: list[ast.expr]) -> Expr:
        expr = [self._expr(o) for o in operands]
        if isinstance(op, ast.Sub):
            op, expr = ast.Add(), [expr[0], _negative(expr[1])]
        kind = _INFIX.get(type(op)) or _SWAPPED.get(type(op))
        if kind is None:
            raise _Foreign(f"programs do not support {type(op).__name__}")
        return reduce(lambda a, b: Expr(kind, 0, (a, b)), reversed(expr) if type(op) in _SWAPPED else expr)

    def _term(self, node: ast.expr) -> Expr:
        """Return a function of numbers, a choice of two, or a number of an input."""
        if isinstance(node, ast.IfExp):
            return choose(*map(self._expr, (node.test, node.body, node.orelse)))
        if isinstance(node, ast.Call) and (op := _CALLS.get(ast.unparse(node.func))):
            expr = [self._expr(a) for a in node.args]
            return reduce(lambda a, b: Expr(op, 0, (a, b)), expr) if len(expr) > 1 else Expr(op, 0, (expr[0],))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "abs":
            number = self._expr(node.args[0])
            return Expr(Op.MAX, 0, (number, _negative(number)))
        text = ast.unparse(node)
        path, _, dim = text.partition(".size()")
        matches = [self._inputs[n] for n in _names(path, list(self._inputs)) if n in self._inputs]
        sizes = [x.shape[int(dim.strip("[]"))] if dim else x for x in matches if hasattr(x, "shape") == bool(dim)]
        if not sizes:
            raise _Foreign(f"{text} is not a number or size of an input")
        size = self._symbols.dim(sizes[0])
        return size if isinstance(size, Expr) else Expr(Op.CONST, size)


def _negative(expr: Expr) -> Expr:
    if expr.op in (Op.CONST, Op.FLOAT):
        return Expr(expr.op, -expr.value)
    return Expr(Op.MUL, 0, (Expr(Op.CONST, -1), expr))


def _names(path: str, inputs: Sequence[str]) -> tuple[str, ...]:
    """Return possible names in programs of an input that torch names e.g. "L['batch']['ids']".

    >>> _names("L['batch']['ids']", ()), _names("L['tensors'][0]", ()), _names("L['flat_args'][1]", ("x", "y"))
    (("batch['ids']", 'ids'), ('tensors[0]', 'tensors_0'), ('y',))
    """
    root, _, rest = path.removeprefix("L['").partition("']")
    key = rest[1:-1]
    if root == "flat_args" and key.isdecimal():
        return (inputs[int(key)],)
    if key.isdecimal():  # of *args
        return root + rest, f"{root}_{key}"
    return (root + rest, key.strip("'")) if key else (root,)  # the latter of **kwargs
