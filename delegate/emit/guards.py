"""Guards: the export's assumptions on sizes beyond their ranges, as expressions over the symbols of a method.

Torch stores the conditions on inputs only as text, such as "((1 + L['x'].size()[0]) // 2) == 3", also in .pt2 files.
Their syntax tree becomes a number of sympy, as torch has it for sizes; no part of them is executed.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import sympy

from delegate.edge.node import SYMBOLIC
from delegate.edge.torch_private import sympy_functions as F
from delegate.emit.symbols import MethodSymbols
from delegate.errors import LoweringError
from delegate.program.expr import Expr

_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.USub: operator.neg,
    ast.Not: sympy.Not,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: F.FloorDiv,
    ast.Mod: F.PythonMod,
    ast.Div: F.FloatTrueDiv,
    ast.Pow: sympy.Pow,
    ast.And: sympy.And,
    ast.Or: sympy.Or,
    ast.Eq: sympy.Eq,
    ast.NotEq: sympy.Ne,
    ast.Lt: sympy.Lt,
    ast.LtE: sympy.Le,
    ast.Gt: sympy.Gt,
    ast.GtE: sympy.Ge,
}
_CALLS: dict[str, Callable[..., Any]] = {
    "abs": sympy.Abs,
    "max": F.Max,
    "min": F.Min,
    "torch.sym_max": F.Max,  # torch 2.14 writes these two
    "torch.sym_min": F.Min,
    "float": F.ToFloat,
    "torch.sym_float": F.ToFloat,
    "math.floor": F.FloorToInt,
    "math.ceil": F.CeilToInt,
    "math.trunc": F.TruncToInt,
    "round": F.RoundToInt,
    "math.sqrt": F.OpaqueUnaryFn_sqrt,
    "torch._sym_sqrt": F.OpaqueUnaryFn_sqrt,
    "math.exp": F.OpaqueUnaryFn_exp,
    "math.log": F.OpaqueUnaryFn_log,
    "math.log2": F.OpaqueUnaryFn_log2,
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
            number = _read(condition, inputs) if isinstance(condition, str) else condition
            if number is None or (isinstance(number, SYMBOLIC) and not symbols.knows(number)):
                continue  # an assertion of the model whose numbers are only in tensors
            expr = symbols.number(number)
        except (_Foreign, LoweringError) as why:
            warn(f"the program does not check this assumption of the export: {condition} ({why})")
            continue
        if isinstance(expr, Expr) and expr not in seen and any(True for _ in expr.free_symbols()):
            seen.add(expr)
            yield expr


def _read(text: str, inputs: Mapping[str, Any]) -> Any:
    """Return the condition of a text as sympy's; None for one on strides, which programs do not have."""
    if ".stride()" in text or ".storage_offset()" in text:
        return None
    return _to_sympy(ast.parse(text.strip(), mode="eval").body, inputs)


def _to_sympy(node: ast.expr, inputs: Mapping[str, Any]) -> Any:
    """Return a number or a condition as sympy's; raises _Foreign."""
    match node:
        case ast.Constant(value=int() | float() as value):
            number = sympy.sympify(+value)  # a boolean is 0 or 1
        case ast.UnaryOp():
            number = _apply(node.op, [node.operand], inputs)
        case ast.BinOp():
            number = _apply(node.op, [node.left, node.right], inputs)
        case ast.BoolOp():
            number = _apply(node.op, node.values, inputs)
        case ast.Compare():
            sides = pairwise([node.left, *node.comparators])
            number = sympy.And(*(_apply(op, pair, inputs) for op, pair in zip(node.ops, sides, strict=True)))
        case ast.IfExp():
            test, body, other = (_to_sympy(part, inputs) for part in (node.test, node.body, node.orelse))
            number = sympy.Piecewise((body, test), (other, True))
        case ast.Call() if function := _CALLS.get(ast.unparse(node.func)):
            number = function(*(_to_sympy(argument, inputs) for argument in node.args))
        case _:
            number = _size(ast.unparse(node), inputs)
    return number


def _apply(op: ast.AST, operands: Iterable[ast.expr], inputs: Mapping[str, Any]) -> Any:
    if type(op) not in _OPERATORS:
        raise _Foreign(f"programs do not support {type(op).__name__}")
    return _OPERATORS[type(op)](*(_to_sympy(operand, inputs) for operand in operands))


def _size(text: str, inputs: Mapping[str, Any]) -> Any:
    """Return the size of an input, or a number among the inputs, that a text names."""
    path, _, dim = text.partition(".size()")
    matches = [inputs[n] for n in _names(path, list(inputs)) if n in inputs]
    sizes = [x.shape[int(dim.strip("[]"))] if dim else x for x in matches if hasattr(x, "shape") == bool(dim)]
    if not sizes:
        raise _Foreign(f"{text} is not a number or size of an input")
    return sizes[0].node.expr if isinstance(sizes[0], SYMBOLIC) else sympy.sympify(sizes[0])


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
