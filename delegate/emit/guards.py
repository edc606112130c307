"""What the export assumed of sizes beyond their ranges, as expressions over the symbols of a method.

Torch keeps the conditions on inputs as text alone (so they are in .pt2 files too), such as
"((1 + L['x'].size()[0]) // 2) == 3". Their syntax tree is walked; nothing of them is run.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

from delegate.emit.symbols import Symbols
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
    """A condition speaks of what a program does not have."""


def guards(
    conditions: Iterable[Any], inputs: Mapping[str, Any], symbols: Symbols, tell: Callable[[str], None]
) -> Iterator[Expr]:
    """Those of the conditions that depend on symbols of the method, each once.

    Args:
        conditions: texts, or symbolic truth values.
        inputs: name -> the fake tensor or the symbolic integer; anything else for one that export made a constant.
        symbols: of the method, complete.
        tell: is given a sentence on each that cannot be kept.
    """
    seen: set[Expr] = set()
    for condition in conditions:
        try:
            made = (
                _Reader(inputs, symbols).read(condition) if isinstance(condition, str) else _known(condition, symbols)
            )
        except (_Foreign, LoweringError) as why:
            tell(f"the program does not check what the export assumed: {condition} ({why})")
            continue
        if made is not None and made not in seen and any(True for _ in made.free_symbols()):
            seen.add(made)
            yield made


def _known(condition: Any, symbols: Symbols) -> Expr | None:
    """What the model asserts of numbers that the method reads; None where it reads them only in tensors."""
    made = symbols.number(condition) if symbols.knows(condition) else None
    return made if isinstance(made, Expr) else None


class _Reader:
    """Makes an expression of the text of a condition."""

    def __init__(self, inputs: Mapping[str, Any], symbols: Symbols) -> None:
        self._inputs, self._symbols = inputs, symbols

    def read(self, text: str) -> Expr | None:
        """The condition; None where it is about strides, which programs do not have."""
        if ".stride()" in text or ".storage_offset()" in text:
            return None
        return self._expr(ast.parse(text.strip(), mode="eval").body)

    def _expr(self, node: ast.expr) -> Expr:
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            return Expr(Op.FLOAT if isinstance(node.value, float) else Op.CONST, node.value)
        if isinstance(node, ast.UnaryOp):
            return self._signed(node)
        if isinstance(node, ast.BinOp):
            return self._joined(node.op, [node.left, node.right])
        if isinstance(node, ast.BoolOp):
            return self._joined(node.op, node.values)
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            parts = [self._joined(op, sides[i : i + 2]) for i, op in enumerate(node.ops)]
            return reduce(lambda a, b: Expr(Op.AND, 0, (a, b)), parts)
        return self._told(node)

    def _signed(self, node: ast.UnaryOp) -> Expr:
        made = self._expr(node.operand)
        if isinstance(node.op, ast.Not):
            return Expr(Op.NOT, 0, (made,))
        if made.op in (Op.CONST, Op.FLOAT):
            return Expr(made.op, -made.value)
        return Expr(Op.MUL, 0, (Expr(Op.CONST, -1), made))

    def _joined(self, op: ast.AST, operands: list[ast.expr]) -> Expr:
        made = [self._expr(o) for o in operands]
        if isinstance(op, ast.Sub):
            op, made = ast.Add(), [made[0], Expr(Op.MUL, 0, (Expr(Op.CONST, -1), made[1]))]
        kind = _INFIX.get(type(op)) or _SWAPPED.get(type(op))
        if kind is None:
            raise _Foreign(f"programs have no {type(op).__name__}")
        return reduce(lambda a, b: Expr(kind, 0, (a, b)), reversed(made) if type(op) in _SWAPPED else made)

    def _told(self, node: ast.expr) -> Expr:
        """A function of numbers, or a number that an input tells."""
        if isinstance(node, ast.Call) and (op := _CALLS.get(ast.unparse(node.func))):
            made = [self._expr(a) for a in node.args]
            return reduce(lambda a, b: Expr(op, 0, (a, b)), made) if len(made) > 1 else Expr(op, 0, (made[0],))
        text = ast.unparse(node)
        path, _, dim = text.partition(".size()")
        found = [self._inputs[n] for n in _names(path, list(self._inputs)) if n in self._inputs]
        sizes = [x.shape[int(dim.strip("[]"))] if dim else x for x in found if hasattr(x, "shape") == bool(dim)]
        if not sizes:
            raise _Foreign(f"{text} is no number that an input tells")
        size = self._symbols.dim(sizes[0])
        return size if isinstance(size, Expr) else Expr(Op.CONST, size)


def _names(path: str, inputs: Sequence[str]) -> tuple[str, ...]:
    """How programs may call an input that torch calls e.g. "L['batch']['ids']".

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
