"""Checks that all parts of the verifier share: error reports, indices, shapes and expressions."""

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
    """Raise ProgramError unless the index is one of the table."""
    if not 0 <= index < len(table):
        fail(f"there is no {what} {index}, only {len(table)}", where)


def check_shape(shape: Sequence[Dim], dtype: DType, where: str) -> None:
    """Raise ProgramError unless an array can have the shape. Symbolic sizes are checked when they are known."""
    if len(shape) > MAX_RANK:
        fail(f"it has {len(shape)} dimensions, more than {MAX_RANK}", where)
    sizes = [d for d in shape if isinstance(d, int)]
    if any(d < 0 for d in sizes):
        fail(f"the size {min(sizes)} is negative", where)
    if dtype.itemsize * math.prod(d for d in sizes if d) > MAX_TENSOR_BYTES:
        fail(f"no memory holds {dtype.name}{sizes_text(shape)}", where)


def sizes_text(shape: Iterable[Dim]) -> str:
    """Return a shape as text for messages."""
    return f"[{', '.join(map(str, shape))}]"


class Checker:
    """Checks one method.

    Attributes:
        where: the thing being checked, for messages.
    """

    def __init__(self, program: Program, method: Method) -> None:
        self.program, self.method = program, method
        self.where = self.name = f"method {method.name!r}"
        self._checked: set[int] = set()  # identities of expressions: parts are shared, each is walked once

    def fail(self, what: str) -> NoReturn:
        """Raise ProgramError."""
        fail(what, self.where)

    def index(self, index: int, table: Sequence[object], what: str) -> None:
        """Raise ProgramError unless the index is one of the table."""
        check_index(index, table, what, self.where)

    def expr(self, expr: Expr) -> None:
        """Raise ProgramError unless operators have their operands and symbols exist."""
        if id(expr) in self._checked:
            return
        if expr.op is Op.SYMBOL:
            self.index(int(expr.value), self.method.symbols, "symbol")
        if len(expr.args) != operands(expr.op):
            self.fail(f"{expr.op.name} has {len(expr.args)} operands")
        for arg in expr.args:
            self.expr(arg)
        self._checked.add(id(expr))
