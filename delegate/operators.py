"""What is known of operators: what torch says, which kernels run them, which backends take them and when.

Without torch, only kernels are known.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from delegate.errors import BackendError, DelegateError
from delegate.kernels.table import KernelTable
from delegate.plugins import State
from delegate.program.dtypes import DType

if TYPE_CHECKING:
    from delegate.edge.operators import Operator
    from delegate.registry import Registry

_GROUPS: Mapping[str, frozenset[DType]] = {
    "floats": frozenset({DType.float16, DType.bfloat16, DType.float32, DType.float64}),
    "integers": frozenset({DType.uint8, DType.int8, DType.int16, DType.int32, DType.int64}),
    "bool": frozenset({DType.bool}),
    "complex": frozenset({DType.complex64, DType.complex128}),
    "wide unsigned": frozenset({DType.uint16, DType.uint32, DType.uint64}),
}


@dataclass(frozen=True, slots=True)
class LibraryKernel:
    """What one kernel library has for an operator.

    Args:
        library: its name.
        kind: "out" (it computes into given memory), "view" (strides, at no cost) or "allocates" (it makes its results).
        dtypes: element types that it takes.
        contiguous: some of it is for row-major arrays alone.
    """

    library: str
    kind: str
    dtypes: tuple[DType, ...]
    contiguous: bool = False


@dataclass(frozen=True, slots=True)
class OperatorFacts:
    """All that is known of an operator.

    Args:
        name: e.g. "aten.add.Tensor".
        torch: what torch says; None where torch, or the operator in it, is absent.
        kernels: per library, in the order in which they are asked.
        backends: those that take it -> the conditions; none for any node.
        decomposition: what a compound one becomes, where it was asked for and could be found.
    """

    name: str
    torch: Operator | None
    kernels: tuple[LibraryKernel, ...]
    backends: Mapping[str, tuple[str, ...]]
    decomposition: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """What sort of operator it is: of "core", "compound", "custom" and "view" what holds."""
        said = self.torch
        words = {
            "core": said is not None and said.core,
            "compound": said is not None and said.compound,
            "custom": said is not None and not said.native,
            "view": any(k.kind == "view" for k in self.kernels) or (said is not None and said.view),
        }
        return ", ".join(word for word, holds in words.items() if holds)

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values for JSON."""
        return {
            "name": self.name,
            "torch": None if self.torch is None else asdict(self.torch),
            "decomposition": list(self.decomposition),
            "kernels": [{**asdict(k), "dtypes": [t.name for t in k.dtypes]} for k in self.kernels],
            "backends": {name: list(conditions) for name, conditions in self.backends.items()},
        }


class Catalogue:
    """The operators of this machine: those with a kernel, those that a backend takes, and core ATen."""

    def __init__(self, registry: Registry) -> None:
        self._tables = list(registry.kernels.tables())
        self.backends: dict[str, Any] = {}  # name -> AOT half
        self.has_torch = importlib.util.find_spec("torch") is not None
        if self.has_torch:
            self._tables += [t for t in registry.kernels.tables(_on_demand(registry)) if t not in self._tables]
            self.backends = dict(_backends(registry))

    @property
    def libraries(self) -> tuple[str, ...]:
        """The kernel libraries, in the order in which they are asked."""
        return tuple(table.library for table in self._tables)

    def names(self) -> list[str]:
        """All operators, in alphabetical order."""
        found = {kernel.op for table in self._tables for kernel in table}
        if self.has_torch:
            from delegate.edge.operators import functional_operators, is_core

            found.update(n for n in functional_operators() if is_core(n) or self._taken(n))
        return sorted(found)

    def _taken(self, name: str) -> bool:
        return any(backend.conditions(name) is not None for backend in self.backends.values())

    def matching(self, pattern: str) -> list[str]:
        """The operators that a name or shell pattern means: "aten.add.Tensor", "aten::add", "add", "aten.conv*".

        Raises:
            DelegateError: there is none.
        """
        wanted = pattern.replace("::", ".")
        known = self.names()
        found = [n for n in known if any(fnmatchcase(n, p) for p in (wanted, f"{wanted}.*", f"aten.{wanted}.*"))]
        if not found and self._exists(wanted):
            return [wanted]
        if not found:
            packets = {n.rpartition(".")[0] for n in known}
            near = get_close_matches(wanted if "." in wanted else f"aten.{wanted}", packets, n=1)
            remedy = f"did you mean {near[0]!r}?" if near else "`delegate ops` lists them"
            raise DelegateError(
                f"no operator is named {pattern!r}",
                remedy=f"{remedy} (a custom one: --import the module that registers it)",
            )
        return found

    def facts(self, name: str, *, expand: bool = False) -> OperatorFacts:
        """All that is known of an operator; with `expand`, torch is asked to decompose a compound one."""
        said: Operator | None = None
        parts: tuple[str, ...] = ()
        if self.has_torch:
            from delegate.edge import operators

            said = operators.operator(name)
            parts = operators.decomposition(name) if expand and said is not None and said.compound else ()
        kernels = tuple(k for table in self._tables if (k := _kernel(table, name)))
        taken = {n: b.conditions(name) for n, b in self.backends.items()}
        return OperatorFacts(name, said, kernels, {n: c for n, c in taken.items() if c is not None}, parts)

    def _exists(self, name: str) -> bool:
        if not self.has_torch:
            return False
        from delegate.edge.operators import operator

        return operator(name) is not None


def dtype_text(dtypes: Iterable[DType]) -> str:
    """Element types in few words, e.g. "floats, integers but uint8"."""
    taken = frozenset(dtypes)
    if taken == frozenset(DType):
        return "all"
    words = [word for name, group in _GROUPS.items() if (word := _group_text(name, group, taken))]
    return ", ".join(words)


def _group_text(name: str, group: frozenset[DType], taken: frozenset[DType]) -> str:
    absent = group - taken
    if len(absent) == 1 < len(group) - 1:
        return f"{name} but {next(iter(absent)).name}"
    return name if not absent else ", ".join(t.name for t in DType if t in group & taken)


def _kernel(table: KernelTable, op: str) -> LibraryKernel | None:
    dtypes = tuple(t for t in DType if any(table.find(op, {t}, allocates=a) is not None for a in (False, True)))
    if not dtypes:
        return None
    rows = table.rows(op)
    kind = "view" if any(k.is_view for k in rows) else "allocates" if all(k.allocates for k in rows) else "out"
    return LibraryKernel(table.library, kind, dtypes, any(k.contiguous for k in rows))


def _on_demand(registry: Registry) -> Sequence[str]:
    return [lib.name for lib in registry.kernels.libraries if lib.state is State.OK and lib.table is None]


def _backends(registry: Registry) -> Iterable[tuple[str, Any]]:
    """The AOT halves that can be imported; the libraries that they drive may be absent."""
    for name in registry.names():
        if registry.resolve(name) != name:
            continue  # an alias
        try:
            registry.half(name, "aot")  # one that crashes when it is imported must not do so here
            yield name, registry.aot(name, absent_ok=True)
        except BackendError:
            continue  # `delegate backends` says what is wrong with it
