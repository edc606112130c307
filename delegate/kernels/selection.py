"""Selection of an instruction's kernel among the available kernel libraries, in order of preference."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from delegate.errors import KernelError
from delegate.kernels.table import with_any_layout
from delegate.plugins import PORTABLE
from delegate.program.dtypes import DType
from delegate.program.instructions import refs
from delegate.program.model import KernelCall, MethodDefinition, Program, Ref, StorageKind

if TYPE_CHECKING:
    from delegate.kernels.libraries import KernelRequest
    from delegate.kernels.table import Kernel, KernelTable
    from delegate.registry import Registry


def how_to_give(op: str, *, allocates: bool = False) -> str:
    """Return the remedy for an operator without a kernel; `allocates`: the sizes of its results depend on data."""
    decorator = f"@table.{'allocating' if allocates else 'kernel'}({op!r})"
    own = f"write a kernel (`{decorator}` of a delegate.KernelTable) and pass the table in kernels=[...]"
    if op.startswith("aten."):
        return f"`pip install ./plugins/kernels-extra` in a checkout of delegate, which has rare operators; or {own}"
    return f"{own}, or install a kernel library that has it"


class Kernels:
    """Kernel libraries, the preferred one first.

    Args:
        tables: returns the libraries. It is called for the first kernel, because importing them takes longer than
            loading most programs without portable kernels.
    """

    def __init__(self, tables: Callable[[], Sequence[KernelTable]]) -> None:
        self._find_tables = tables
        self._tables: tuple[KernelTable, ...] | None = None

    @property
    def tables(self) -> tuple[KernelTable, ...]:
        """The libraries, the preferred one first."""
        if self._tables is None:  # no cached_property: before Python 3.12 that has a lock, and a fork may leave it held
            self._tables = tuple(self._find_tables())
        return self._tables

    @cached_property
    def torch_free(self) -> Kernels:
        """The libraries that run without torch. The compilation of a program depends on no others."""
        return Kernels(lambda: [t for t in self.tables if t.torch_free])

    @cached_property
    def whole_ops(self) -> frozenset[str]:
        """The compound operators that a library runs faster preserved than decomposed."""
        return frozenset(kernel.op for table in self.tables for kernel in table if kernel.whole)

    def notes_on(self, operators: Iterable[str]) -> list[str]:
        """Return a note on each library that operators of a program need beside the portable kernels."""
        needed: dict[str, list[str]] = {}
        for op in operators:
            libraries = [table.library for table in self.tables if op in table]
            if libraries and PORTABLE not in libraries:
                needed.setdefault(libraries[0], []).append(op)
        return [
            f"kernel library {library!r} is needed wherever the program runs: it has {', '.join(sorted(ops))}"
            for library, ops in needed.items()
        ]

    def find(
        self, op: str, dtypes: Iterable[DType], *, in_place: bool = False, allocates: bool = False
    ) -> Kernel | None:
        """Return the first library's kernel that supports the operator for these dtypes.

        Views are preferred, from any library: they cost nothing, and a saved memory plan relies on them. If requested,
        kernels that run in place are preferred too: others cost a copy of a complete state.
        """
        required = frozenset(dtypes)
        kernels = [kernel for table in self.tables if (kernel := table.find(op, required, allocates=allocates))]
        first = (kernel for kernel in kernels if kernel.is_view or (in_place and kernel.in_place))
        chosen = next(first, kernels[0] if kernels else None)
        if chosen is None or not chosen.contiguous:
            return chosen
        return with_any_layout(chosen, next((kernel for kernel in kernels if not kernel.contiguous), None))

    def of(self, program: Program, method: MethodDefinition, call: KernelCall, *, allocates: bool = False) -> Kernel:
        """Return the kernel of an instruction; raise KernelError with operator, dtypes and the user's line."""
        op = program.operators[call.operator]
        dtypes = {method.values[i].dtype for i in (*refs(call.args), *call.outputs)}
        updates = any(method.values[o].storage.kind in (StorageKind.STATE, StorageKind.INPUT) for o in call.outputs)
        kernel = self.find(op, dtypes, in_place=updates, allocates=allocates)
        if kernel is None or (not kernel.is_view and _must_be_view(method, call)):
            names = ", ".join(sorted(t.name for t in dtypes))
            raise KernelError(
                f"no {'view' if kernel else 'kernel'} of {op} for {names}",
                where=place(method, call),
                remedy=how_to_give(op),
            )
        return kernel


def kernels_of(registry: Registry, requested: KernelRequest | None) -> Kernels:
    """Return the kernels of these libraries; see `InstalledKernels.tables`; unknown names are errors."""
    tables = None if requested is None else registry.kernels.tables(requested)

    return Kernels(lambda: registry.kernels.tables() if tables is None else tables)


def _must_be_view(method: MethodDefinition, call: KernelCall) -> bool:
    """Return True if the memory plan has no place for a copy."""
    return any(method.values[o].storage.kind is StorageKind.ALIAS for o in call.outputs)


def base_of(method: MethodDefinition, call: KernelCall) -> int:
    """Return the value that the results of a view alias: its first argument.

    Raise KernelError if that is not a tensor.
    """
    first = call.args[0] if call.args else None
    if not isinstance(first, Ref):
        raise KernelError("the first argument of a view is not a tensor", where=place(method, call))
    return first.index


def place(method: MethodDefinition, call: KernelCall) -> str:
    """Return the location of an instruction for messages: the method, its result, the user's line."""
    name = f", {method.values[call.outputs[0]].name}" if call.outputs else ""
    source = method.sources[call.source] if call.source >= 0 else ""
    return f"method {method.name}{name}" + (f", at {source}" if source else "")
