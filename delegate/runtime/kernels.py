"""Choosing the kernel of an instruction among the kernel libraries that are here, in order of preference."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from delegate.errors import KernelError
from delegate.kernels.layouts import with_any_layout
from delegate.program.dtypes import DType
from delegate.program.lifetimes import refs
from delegate.program.model import KernelCall, Method, Program, Ref, StorageKind

if TYPE_CHECKING:
    from delegate.kernels.kernel import Kernel
    from delegate.kernels.libraries import KernelRequest
    from delegate.kernels.table import KernelTable
    from delegate.registry import Registry

HOW_TO_GIVE = (
    "write one, `@table.kernel({op!r})` on a delegate.KernelTable, and name the table in kernels=[...], or install a "
    "kernel library that has it (docs/operators.md)"
)


class Kernels:
    """Kernel libraries, the preferred one first.

    Args:
        tables: gives them; asked when the first kernel is wanted, for importing them takes longer than most programs
            without leftovers take to load.
        packages: gives the table for the operators of a package, which is asked last; None where there is none.
    """

    def __init__(
        self,
        tables: Callable[[], Sequence[KernelTable]],
        packages: Callable[[str], KernelTable | None] = lambda _: None,
    ) -> None:
        self._find_tables = tables
        self._tables: tuple[KernelTable, ...] | None = None
        self._package = packages

    @property
    def tables(self) -> tuple[KernelTable, ...]:
        """The libraries."""
        if self._tables is None:  # no cached_property: before Python 3.12 that has a lock, and a fork may leave it held
            self._tables = tuple(self._find_tables())
        return self._tables

    @cached_property
    def torch_free(self) -> Kernels:
        """Those that run wherever programs do: how a program is compiled depends on no others."""
        return Kernels(lambda: [t for t in self.tables if t.torch_free], self._package)

    @cached_property
    def whole_ops(self) -> frozenset[str]:
        """The compound operators that a library runs faster whole than decomposed."""
        return frozenset(kernel.op for table in self.tables for kernel in table if kernel.whole)

    def find(
        self, op: str, dtypes: Iterable[DType], *, in_place: bool = False, allocates: bool = False
    ) -> Kernel | None:
        """The first library's kernel that takes the operator on these dtypes.

        Views go first, whoever has them: they cost nothing, and a saved plan of memory counts on them. So do, if it is
        wished, kernels that run in place: others cost a copy of a whole state.
        """
        wanted = frozenset(dtypes)
        found = [kernel for table in self.tables if (kernel := table.find(op, wanted, allocates=allocates))]
        if not found and (package := self._package(op.partition(".")[0])) is not None:
            found = [kernel for kernel in (package.find(op, wanted, allocates=allocates),) if kernel]
        first = (kernel for kernel in found if kernel.is_view or (in_place and kernel.in_place))
        chosen = next(first, found[0] if found else None)
        if chosen is None or not chosen.contiguous:
            return chosen
        return with_any_layout(chosen, next((kernel for kernel in found if not kernel.contiguous), None))

    def of(self, program: Program, method: Method, call: KernelCall, *, allocates: bool = False) -> Kernel:
        """The kernel of an instruction; raises KernelError naming operator, dtypes and the user's line."""
        op = program.operators[call.operator]
        dtypes = {method.values[i].dtype for i in (*refs(call.args), *call.outputs)}
        updates = any(method.values[o].storage.kind in (StorageKind.STATE, StorageKind.INPUT) for o in call.outputs)
        kernel = self.find(op, dtypes, in_place=updates, allocates=allocates)
        if kernel is None or (not kernel.is_view and _must_be_view(method, call)):
            names = ", ".join(sorted(t.name for t in dtypes))
            raise KernelError(
                f"no {'view' if kernel else 'kernel'} of {op} for {names}",
                where=place(method, call),
                remedy=HOW_TO_GIVE.format(op=op),
            )
        return kernel


def kernels_of(registry: Registry, wanted: KernelRequest | None) -> Kernels:
    """The kernels of these libraries; see `InstalledKernels.tables`. What is named wrong is said at once."""
    tables = None if wanted is None else registry.kernels.tables(wanted)

    def found() -> Sequence[KernelTable]:
        return registry.kernels.tables() if tables is None else tables

    def of_package(package: str) -> KernelTable | None:
        return registry.kernels.of_package(package)

    return Kernels(found, of_package)


def _must_be_view(method: Method, call: KernelCall) -> bool:
    """Whether the plan of memory has no place for a copy."""
    return any(method.values[o].storage.kind is StorageKind.ALIAS for o in call.outputs)


def base_of(method: Method, call: KernelCall) -> int:
    """The value that the results of a view are views of: its first argument; raises KernelError where that is none."""
    first = call.args[0] if call.args else None
    if not isinstance(first, Ref):
        raise KernelError("the first argument of a view is no tensor", where=place(method, call))
    return first.index


def place(method: Method, call: KernelCall) -> str:
    """Where an instruction stands, for messages: the method, the value that it makes, the user's line."""
    made = method.values[call.outputs[0]].name if call.outputs else "no value"
    source = method.sources[call.source] if call.source >= 0 else ""
    return f"method {method.name}, {made}" + (f", at {source}" if source else "")
