"""Arguments and expressions as program files hold them: pairs of numbers in pre-order, over pools of texts and sizes.

`ArgPool` writes them; `ArgReader` and `read_exprs` read them. The data they read is untrusted, see `decode`.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from delegate.errors import ProgramError
from delegate.program.dtypes import DType
from delegate.program.expr import LEAVES, Dim, Expr, Op, operands
from delegate.program.limits import MAX_ALL_EXPR_NODES, MAX_DEPTH, MAX_EXPR_NODES, MAX_TEXT, check_name
from delegate.program.model import Arg, Ref
from delegate.program.schema_generated import ArgKind

T = TypeVar("T")
_DOUBLE, _LONG = struct.Struct("<d"), struct.Struct("<q")
_DTYPES = {t.value: t for t in DType}
_OPS = {o.value: o for o in Op}
_SIMPLIFY = "simplify the sizes of the model"
_TOO_DEEP = "the expression of a size is nested too deeply"


class _Placed(NamedTuple):
    """An expression in the pool with its index, its number of nodes and its height. Keeping it keeps its identity."""

    expr: Expr
    place: int
    nodes: int
    height: int


class ArgPool:
    """The expressions and texts that the arguments of one method refer to by index, each stored once."""

    def __init__(self) -> None:
        self._exprs: dict[tuple[int, int, int], int] = {}
        self._placed: dict[int, _Placed] = {}  # by identity
        self.expr_nodes = 0  # of all expressions, counted as often as they occur
        self._texts: dict[str, int] = {}
        self._scalars: dict[type, tuple[int, Callable[[Any], int]]] = {
            type(None): (ArgKind.NONE, lambda _: 0),
            Ref: (ArgKind.REF, lambda ref: ref.index),
            Expr: (ArgKind.EXPR, self.expr),
            DType: (ArgKind.DTYPE, lambda dtype: dtype.value),
            int: (ArgKind.INT, int),
            float: (ArgKind.FLOAT, _bits),
            bool: (ArgKind.BOOL, int),
            str: (ArgKind.TEXT, self._text),
        }

    @property
    def exprs(self) -> Iterable[tuple[int, int, int]]:
        """The operation, first and second operand of each expression."""
        return self._exprs

    @property
    def texts(self) -> Iterable[str]:
        return self._texts

    def dim(self, dim: Dim) -> int:
        """Return a size as it is stored in Value.shape."""
        if isinstance(dim, Expr):
            return -1 - self.expr(dim)
        if dim < 0:
            raise ProgramError(f"a size cannot be {dim}")
        return dim

    def expr(self, expr: Expr) -> int:
        """Return the index of an expression."""
        return self._expr(expr, MAX_DEPTH).place

    def _expr(self, expr: Expr, depth: int) -> _Placed:
        pooled = self._placed.get(id(expr))  # many sizes share one expression, which is walked once
        if pooled is None:
            if depth == 0:
                raise ProgramError(_TOO_DEEP, remedy=_SIMPLIFY)
            pooled = self._placed[id(expr)] = self._place(expr, depth)
        return pooled

    def _place(self, expr: Expr, depth: int) -> _Placed:
        if expr.op in LEAVES:
            key = (expr.op.value, _bits(expr.value) if expr.op is Op.FLOAT else int(expr.value), 0)
            nodes = height = 1
        else:
            below = [self._expr(a, depth - 1) for a in expr.args]
            left, right, *_ = *(part.place for part in below), 0
            key = (expr.op.value, left, right)
            nodes, height = 1 + sum(part.nodes for part in below), 1 + max(part.height for part in below)
        if nodes > MAX_EXPR_NODES:
            raise ProgramError("the expression of a size is too large", remedy=_SIMPLIFY)
        if height > MAX_DEPTH:
            raise ProgramError(_TOO_DEEP, remedy=_SIMPLIFY)
        if key not in self._exprs:
            self._exprs[key] = len(self._exprs)
            self.expr_nodes += nodes
        return _Placed(expr, self._exprs[key], nodes, height)

    def flatten(self, arg: Arg, depth: int = MAX_DEPTH) -> list[tuple[int, int]]:
        """Return the kind and the value of an argument, followed by those of its items."""
        if depth == 0:
            raise ProgramError(f"an argument is nested deeper than {MAX_DEPTH}")
        if isinstance(arg, tuple):
            return [(ArgKind.LIST, len(arg)), *(pair for item in arg for pair in self.flatten(item, depth - 1))]
        if isinstance(arg, complex):
            return [(ArgKind.COMPLEX, _bits(arg.real)), (ArgKind.FLOAT, _bits(arg.imag))]
        scalar = self._scalars.get(type(arg))
        if scalar is None:
            raise ProgramError(f"an argument cannot be a {type(arg).__name__}: {arg!r}")
        kind, value = scalar
        return [(kind, value(arg))]

    def _text(self, text: str) -> int:
        check_name(text, MAX_TEXT)
        return self._texts.setdefault(text, len(self._texts))


def read_exprs(*columns: Sequence[int]) -> tuple[tuple[Expr, ...], int]:
    """Return all expressions, and their number of nodes, counted as often as they occur.

    Sizes and depths are counted during reading because expressions may share parts without limit.
    """
    exprs: list[Expr] = []
    sizes: list[int] = []
    depths: list[int] = []
    total = 0
    for code, first, second in zip(*columns, strict=True):
        op = _OPS[code]
        if op in LEAVES:
            exprs.append(Expr(op, _double(first) if op is Op.FLOAT else first))
            sizes.append(1)
            depths.append(1)
            total += 1
            continue
        used = (first, second)[: operands(op)]
        if not all(0 <= i < len(exprs) for i in used):
            raise ValueError("an expression uses one that does not stand before it")
        exprs.append(Expr(op, 0, tuple(exprs[i] for i in used)))
        sizes.append(1 + sum(sizes[i] for i in used))
        depths.append(1 + max(depths[i] for i in used))
        total += sizes[-1]
        if sizes[-1] > MAX_EXPR_NODES or depths[-1] > MAX_DEPTH or total > MAX_ALL_EXPR_NODES:
            raise ValueError("an expression is too large")
    return tuple(exprs), total


class ArgReader:
    """Turns the parallel vectors of Args into arguments."""

    def __init__(self, texts: tuple[str, ...], exprs: tuple[Expr, ...]) -> None:
        self._scalars: dict[int, Callable[[int], Arg]] = {
            ArgKind.NONE: lambda _: None,
            ArgKind.REF: Ref,
            ArgKind.EXPR: lambda value: exprs[_index(value)],
            ArgKind.DTYPE: _DTYPES.__getitem__,
            ArgKind.INT: int,
            ArgKind.FLOAT: _double,
            ArgKind.BOOL: lambda value: (False, True)[_index(value)],
            ArgKind.TEXT: lambda value: texts[_index(value)],
        }

    def read(self, kinds: Sequence[int], values: tuple[int, ...]) -> tuple[Arg, ...]:
        pairs = zip(kinds, values, strict=True)
        return tuple(self._one(kind, value, pairs, MAX_DEPTH) for kind, value in pairs)

    def _one(self, kind: int, value: int, rest: Iterator[tuple[int, int]], depth: int) -> Arg:
        if kind == ArgKind.LIST:
            return self._list(value, rest, depth)
        if kind == ArgKind.COMPLEX:
            imaginary, bits = next(rest, (-1, 0))
            if imaginary != ArgKind.FLOAT:
                raise ValueError("a complex number is incomplete")
            return complex(_double(value), _double(bits))
        return self._scalars[kind](value)

    def _list(self, count: int, rest: Iterator[tuple[int, int]], depth: int) -> tuple[Arg, ...]:
        if depth == 0:
            raise ValueError("an argument is nested too deeply")
        items: list[Arg] = []
        while len(items) < count:
            (pair,) = take(1, rest)
            items.append(self._one(*pair, rest, depth - 1))
        return tuple(items)


def take(count: int, rest: Iterator[T]) -> tuple[T, ...]:
    """Return the next `count` parts; raise ValueError if there are fewer."""
    taken = tuple(itertools.islice(rest, count))
    if len(taken) < count:
        raise ValueError("a list is incomplete")
    return taken


def require_exhausted(items: list[T], *rests: Iterator[object]) -> tuple[T, ...]:
    """Return the items; raise ValueError if an iterator that they were built from has parts left."""
    if any(True for rest in rests for _ in rest):
        raise ValueError("a list has more parts than are used")
    return tuple(items)


def _bits(number: float) -> int:
    """Return a double's bits. Every NaN has the same bits, so that equal programs give equal bytes."""
    return int(_LONG.unpack(_DOUBLE.pack(math.nan if math.isnan(number) else number))[0])


def _index(value: int) -> int:
    """Return the value; raise IndexError if it is negative."""
    if value < 0:
        raise IndexError(f"the index {value} is negative")
    return value


def _double(bits: int) -> float:
    return float(_DOUBLE.unpack(_LONG.pack(bits))[0])
