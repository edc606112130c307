"""Choosing the kernel of an instruction among the kernel libraries that are here, in order of preference."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from delegate.errors import KernelError
from delegate.program.dtypes import DType
from delegate.program.lifetimes import refs
from delegate.program.model import KernelCall, Method, Program

if TYPE_CHECKING:
    from delegate.kernels.table import Kernel, KernelTable


class Kernels:
    """Kernel libraries, the preferred one first.

    Args:
        tables: gives them; asked when the first kernel is wanted, for importing them takes longer than most programs
            without leftovers take to load.
    """

    def __init__(self, tables: Callable[[], Sequence[KernelTable]]) -> None:
        self._find_tables = tables

    @cached_property
    def tables(self) -> tuple[KernelTable, ...]:
        """The libraries."""
        return tuple(self._find_tables())

    def find(self, op: str, dtypes: Iterable[DType]) -> Kernel | None:
        """The first library's kernel that takes the operator on these dtypes."""
        wanted = frozenset(dtypes)
        for table in self.tables:
            if kernel := table.find(op, wanted):
                return kernel
        return None

    def of(self, program: Program, method: Method, call: KernelCall) -> Kernel:
        """The kernel of an instruction; raises KernelError naming operator, dtypes and the user's line."""
        op = program.operators[call.operator]
        dtypes = {method.values[i].dtype for i in (*refs(call.args), *call.outputs)}
        kernel = self.find(op, dtypes)
        if kernel is None:
            names = ", ".join(sorted(t.name for t in dtypes))
            raise KernelError(
                f"no kernel of {op} for {names}",
                where=place(method, call),
                remedy="install a kernel library that has it (entry-point group delegate.kernels)",
            )
        return kernel


def place(method: Method, call: KernelCall) -> str:
    """Where an instruction stands, for messages: the method, the value that it makes, the user's line."""
    made = method.values[call.outputs[0]].name if call.outputs else "no value"
    source = method.sources[call.source] if call.source >= 0 else ""
    return f"method {method.name}, {made}" + (f", at {source}" if source else "")
