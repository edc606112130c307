"""What all parts of the verifier share: how a fault is told, and the checks of indices, shapes and expressions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NoReturn

from delegate.errors import ProgramError
from delegate.program.dtypes import DType
from delegate.program.expr import Dim, Expr, Op, operands
from delegate.program.limits import MAX_RANK, MAX_TENSOR_BYTES
from delegate.program.model import Method, Program

_REMEDY = "lower the model again; if that does not help, report it"


def fail(what: str, where: str) -> NoReturn:
    """Raise ProgramError."""
    raise ProgramError(what, where=where, remedy=_REMEDY)


def check_index(index: int, table: Sequence[object], what: str, where: str) -> None:
    """An index is one of a table."""
    if not 0 <= index < len(table):
        fail(f"there is no {what} {index}, only {len(table)}", where)


def check_shape(shape: Sequence[Dim], dtype: DType, where: str) -> None:
    """A shape is one that an array can have; symbolic sizes are checked when they are known."""
    if len(shape) > MAX_RANK:
        fail(f"it has {len(shape)} dimensions, more than {MAX_RANK}", where)
    sizes = [d for d in shape if isinstance(d, int)]
    if any(d < 0 for d in sizes):
        fail(f"the size {min(sizes)} is negative", where)
    if dtype.itemsize * math.prod(d for d in sizes if d) > MAX_TENSOR_BYTES:
        fail(f"no memory holds {dtype.name}{sizes_text(shape)}", where)


def sizes_text(shape: Iterable[Dim]) -> str:
    """A shape for people."""
    return f"[{', '.join(map(str, shape))}]"


class Checker:
    """Looks at one method.

    Attributes:
        where: what is looked at, for the message.
    """

    def __init__(self, program: Program, method: Method) -> None:
        self.program, self.method = program, method
        self.where = self.name = f"method {method.name!r}"
        self._checked: set[int] = set()  # identities of expressions: parts are shared, each is walked once

    def fail(self, what: str) -> NoReturn:
        """Raise ProgramError."""
        fail(what, self.where)

    def index(self, index: int, table: Sequence[object], what: str) -> None:
        """An index is one of a table."""
        check_index(index, table, what, self.where)

    def expr(self, expr: Expr) -> None:
        """Its operators have their operands, and its symbols are there."""
        if id(expr) in self._checked:
            return
        if expr.op is Op.SYMBOL:
            self.index(int(expr.value), self.method.symbols, "symbol")
        if len(expr.args) != operands(expr.op):
            self.fail(f"{expr.op.name} has {len(expr.args)} operands")
        for arg in expr.args:
            self.expr(arg)
        self._checked.add(id(expr))
