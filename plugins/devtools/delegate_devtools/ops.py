"""Facts about operators: their properties in torch, kernels with dtypes, backends, decompositions.

Without torch, only the kernels are known.
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from delegate.backend.deviations import Deviation, deviations_of
from delegate.cli import output
from delegate.errors import BackendError, BackendNotFound, DelegateError, did_you_mean
from delegate.kernels.table import KernelTable
from delegate.plugins import PluginState, in_known_spelling
from delegate.program.dtypes import DType
from delegate.registry import Registry

if TYPE_CHECKING:
    from delegate_devtools.operators import Operator

_GROUPS: Mapping[str, frozenset[DType]] = {
    "floats": frozenset({DType.float16, DType.bfloat16, DType.float32, DType.float64}),
    "integers": frozenset({DType.uint8, DType.int8, DType.int16, DType.int32, DType.int64}),
    "bool": frozenset({DType.bool}),
    "complex": frozenset({DType.complex64, DType.complex128}),
    "wide unsigned": frozenset({DType.uint16, DType.uint32, DType.uint64}),
}


@dataclass(frozen=True, slots=True)
class LibraryKernel:
    """The kernels of one library for an operator.

    Args:
        library: the name of the library.
        kind: "out" (writes to a buffer), "view" (strides only, at no cost) or "allocates" (allocates its results).
        dtypes: the supported element types.
        contiguous: some kernels require row-major arrays.
    """

    library: str
    kind: str
    dtypes: tuple[DType, ...]
    contiguous: bool = False


@dataclass(frozen=True, slots=True)
class OperatorFacts:
    """The facts about an operator.

    Args:
        name: e.g. "aten.add.Tensor".
        torch: its properties in torch; None if torch, or the operator in it, is absent.
        kernels: per library, in order of preference.
        backends: backend that supports it -> the conditions; empty if it supports every node.
        deviations: backend -> where its library differs from torch.
        decomposition: the operators that a compound one decomposes to, if requested and available.
    """

    name: str
    torch: Operator | None
    kernels: tuple[LibraryKernel, ...]
    backends: Mapping[str, tuple[str, ...]]
    deviations: Mapping[str, tuple[Deviation, ...]]
    decomposition: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """The kind of the operator: all of "core", "compound", "custom" and "view" that apply."""
        operator = self.torch
        words = {
            "core": operator is not None and operator.core,
            "compound": operator is not None and operator.compound,
            "custom": operator is not None and not operator.native,
            "view": any(k.kind == "view" for k in self.kernels) or (operator is not None and operator.view),
        }
        return ", ".join(word for word, holds in words.items() if holds)

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as plain values for JSON."""
        return {
            "name": self.name,
            "torch": None if self.torch is None else asdict(self.torch),
            "decomposition": list(self.decomposition),
            "kernels": [{**asdict(k), "dtypes": [t.name for t in k.dtypes]} for k in self.kernels],
            "backends": {name: list(conditions) for name, conditions in self.backends.items()},
            "deviations": {name: [asdict(d) for d in rows] for name, rows in self.deviations.items()},
        }


class Catalogue:
    """The operators of this machine: those with a kernel, those that a backend supports, and core ATen."""

    def __init__(self, registry: Registry) -> None:
        self._tables = list(registry.kernels.tables())
        self.backends: dict[str, Any] = {}  # name -> AOT part
        self.has_torch = importlib.util.find_spec("torch") is not None
        if self.has_torch:
            self._tables += [t for t in registry.kernels.tables(_on_demand(registry)) if t not in self._tables]
            self.backends = dict(_backends(registry))

    @property
    def libraries(self) -> tuple[str, ...]:
        """The kernel libraries, in order of preference."""
        return tuple(table.library for table in self._tables)

    def names(self) -> list[str]:
        """Return the names of all operators, in alphabetical order."""
        operators = {kernel.op for table in self._tables for kernel in table}
        if self.has_torch:
            from delegate_devtools.operators import functional_operators, is_core

            operators.update(n for n in functional_operators() if is_core(n) or self._take(n))
        return sorted(operators)

    def backend(self, name: str) -> str:
        """Return the name of a backend in its own spelling; raise BackendNotFound for an unknown one."""
        known = in_known_spelling(name, self.backends)
        if known not in self.backends:
            what = f"no backend with a table of operators is named {name!r}"
            raise BackendNotFound(what, remedy=did_you_mean(name, self.backends))
        return known

    def _compounds(self) -> list[str]:
        """Return the operators that torch decomposes, most of which no kernel or backend takes; none without torch."""
        if not self.has_torch:
            return []
        from delegate_devtools.operators import functional_operators, is_compound

        return [name for name in functional_operators() if is_compound(name)]

    def _take(self, name: str) -> bool:
        return any(backend.conditions(name) is not None for backend in self.backends.values())

    def matching(self, pattern: str) -> list[str]:
        """Return the operators that match a name or shell pattern: "aten.add.Tensor", "aten::add", "add", "aten.conv*".

        A plain name also has the operators with it in their names that compound ones decompose to: `_softmax` of
        "softmax".

        Raises:
            DelegateError: no operator matches.
        """
        dotted = pattern.replace("::", ".")
        known = sorted({*self.names(), *self._compounds()})
        patterns = dotted, f"{dotted}.*", f"aten.{dotted}.*"
        matches = [n for n in known if any(fnmatchcase(n, p) for p in patterns)]
        matches = matches or [n for n in known if any(fnmatchcase(n.casefold(), p.casefold()) for p in patterns)]
        if not matches and self._operator(dotted) is not None:
            return [dotted]
        if not matches:
            packets = {n.rpartition(".")[0] for n in known}
            similar = get_close_matches(dotted if "." in dotted else f"aten.{dotted}", packets, n=1)
            remedy = f"did you mean {similar[0]!r}?" if similar else "`delegate ops '*'` lists them"
            raise DelegateError(
                f"no operator is named {pattern!r}",
                remedy=f"{remedy} (for a custom operator, --import the module that registers it)",
            )
        if dotted.isidentifier():
            matches += sorted({p for n in matches for p in self._parts(n) if dotted in p}.difference(matches))
        return matches

    def facts(self, name: str, *, expand: bool = False) -> OperatorFacts:
        """Return the facts about an operator; `expand` adds the decomposition of a compound one."""
        facts = self._operator(name)
        parts = self._parts(name) if expand else ()
        kernels = tuple(k for table in self._tables if (k := _kernel(table, name)))
        taken = {n: b.conditions(name) for n, b in self.backends.items()}
        deviations = {n: rows for n, b in self.backends.items() if (rows := deviations_of(b.deviations, name))}
        return OperatorFacts(name, facts, kernels, {n: c for n, c in taken.items() if c is not None}, deviations, parts)

    def _operator(self, name: str) -> Operator | None:
        """Return torch's facts about an operator; None without torch, or if torch has no such operator."""
        if not self.has_torch:
            return None
        from delegate_devtools.operators import operator

        return operator(name)

    def _parts(self, name: str) -> tuple[str, ...]:
        """Return what a compound operator decomposes to; nothing for another operator."""
        facts = self._operator(name)
        if facts is None or not facts.compound:
            return ()
        from delegate_devtools.operators import decomposition

        return decomposition(name)


def dtype_text(dtypes: Iterable[DType]) -> str:
    """Describe element types, e.g. "floats, integers but uint8"."""
    taken = frozenset(dtypes)
    if taken == frozenset(DType):
        return "all"
    words = [word for name, group in _GROUPS.items() if (word := _group_text(name, group, taken))]
    return ", ".join(words)


def _group_text(name: str, group: frozenset[DType], taken: frozenset[DType]) -> str:
    absent = group - taken
    if len(absent) == 1 < len(group) - 1:
        return f"{name} except {next(iter(absent)).name}"
    return name if not absent else ", ".join(t.name for t in DType if t in group & taken)


def _kernel(table: KernelTable, op: str) -> LibraryKernel | None:
    dtypes = tuple(t for t in DType if any(table.find(op, {t}, allocates=a) is not None for a in (False, True)))
    if not dtypes:
        return None
    rows = table.rows(op)
    kind = "view" if any(k.is_view for k in rows) else "allocates" if all(k.allocates for k in rows) else "out"
    return LibraryKernel(table.library, kind, dtypes, any(k.contiguous for k in rows))


def _on_demand(registry: Registry) -> Sequence[str]:
    return [lib.name for lib in registry.kernels.libraries if lib.state is PluginState.OK and lib.table is None]


def _backends(registry: Registry) -> Iterable[tuple[str, Any]]:
    """Yield the AOT parts that can be imported; the libraries that they use may be absent."""
    for name in registry.names():
        if registry.resolve(name) != name:
            continue  # an alias
        try:
            registry.check_part(name, "aot")  # its import may crash, which must not happen in this process
            yield name, registry.aot(name, absent_ok=True)
        except BackendError:
            continue  # `delegate backends` reports the error


_IN_FULL = 4  # up to so many operators are shown with all facts; more as a table


def show_operators(name: str | None, backends: Sequence[str], *, as_json: bool, as_markdown: bool) -> None:
    """Print the facts about operators; see the options of `delegate ops`.

    Raises:
        DelegateError: no operator has the name, or matches it as a pattern.
        BackendNotFound: a backend is unknown, or has no table of operators.
    """
    with output.working("reading the tables of operators"):
        catalogue = Catalogue(Registry())
        wanted = {catalogue.backend(b) for b in backends}
        names = catalogue.names() if name is None else catalogue.matching(name)
        facts = (catalogue.facts(n, expand=name is not None) for n in names)
        operators = [f for f in facts if wanted <= f.backends.keys()]
    if as_json:
        output.print_json([facts.to_dict() for facts in operators])
    elif as_markdown:
        output.print_line(markdown(operators), end="")
    elif name is None and not wanted:
        _summarize(operators, catalogue)
    elif name is not None and len(operators) <= _IN_FULL:
        for i, f in enumerate(operators):
            _show(f, first=i == 0)
    else:
        _list(operators, catalogue)


def _summarize(operators: Sequence[OperatorFacts], catalogue: Catalogue) -> None:
    """Print how many operators each kernel library and backend has."""
    kernels, backends = _counts(operators)
    rows = [(library, "kernel library", str(kernels[library])) for library in catalogue.libraries]
    rows += [(backend, "backend", str(backends[backend])) for backend in catalogue.backends]
    output.table(("name", "kind", "operators"), rows, numbers=(2,))
    output.show(
        "",
        f"{len(operators)} operators are known. To see some of them:",
        "  delegate ops gelu           all facts about one",
        "  delegate ops 'aten.conv*'   those that match a pattern; '*' matches all",
        "  delegate ops -b xnnpack     those that a backend supports",
    )


def _list(operators: Sequence[OperatorFacts], catalogue: Catalogue) -> None:
    rows = [(f.name, f.kind, _kernels(f), ", ".join(f.backends)) for f in operators]
    output.table(("operator", "kind", "kernels", "backends"), rows)
    kernels, backends = _counts(operators)
    counts = [f"{library} has kernels for {kernels[library]}" for library in catalogue.libraries]
    counts += [f"{backend} supports {backends[backend]}" for backend in catalogue.backends]
    output.show("", f"{len(operators)} operators: {', '.join(counts)}")


def _counts(operators: Sequence[OperatorFacts]) -> tuple[Counter[str], Counter[str]]:
    """Return how many operators each kernel library and each backend has."""
    kernels = Counter(kernel.library for facts in operators for kernel in facts.kernels)
    return kernels, Counter(backend for facts in operators for backend in facts.backends)


def _kernels(facts: OperatorFacts) -> str:
    """Return the kernel libraries with the element types of each, e.g. "portable: floats; aten: all"."""
    return "; ".join(f"{k.library}: {dtype_text(k.dtypes)}" for k in facts.kernels)


def _show(facts: OperatorFacts, *, first: bool) -> None:
    if not first:
        output.show("")
    output.show(facts.name, *(f"  {key + ':' if key else '':<15}{value}" for key, value in _lines(facts)))


def _lines(facts: OperatorFacts) -> list[tuple[str, str]]:
    operator = facts.torch
    lines: list[tuple[str, str]] = []
    if operator is not None:
        core = "core ATen" if operator.core else "not core ATen"
        lines.append(
            ("operator", f"{'native' if operator.native else 'custom'}, {core}{', a view' if operator.view else ''}")
        )
        parts = " ".join(facts.decomposition) or "torch decomposes it"
        leaf = "core ATen, or without a decomposition: it is never decomposed"
        lines.append(("compound", parts) if operator.compound else ("leaf", leaf))
        variants = [f"out= {operator.out}"] * bool(operator.out) + [f"in place {operator.in_place}"] * bool(
            operator.in_place
        )
        lines.append(("other forms", ", ".join(variants) or "none"))
    for kernel in facts.kernels:
        words = f"{dtype_text(kernel.dtypes)}{' (a view)' if kernel.kind == 'view' else ''}"
        lines.append((kernel.library, words + (", faster for row-major arrays" if kernel.contiguous else "")))
    if not facts.kernels:
        lines.append(("kernels", "none"))
    for backend, conditions in facts.backends.items():
        lines.append((backend, "supports it" + (" if:" if conditions else "")))
        lines += [("", c) for c in conditions]
    for backend, rows in facts.deviations.items():
        for row in rows:
            lines.append((backend, f"{row.message} ({row.handling})"))
            lines += [("", row.advice)] if row.advice else []
    return lines


_HEAD = """\
# Support matrix

Which kernels and backends run an operator; `delegate ops NAME` shows more about one.

- **kind**: *core* ATen; *compound*: torch decomposes it where neither a kernel nor a backend supports it; a *view*
  costs nothing at run time.
- **portable**: the element types of its portable kernel. *floats* are float16, bfloat16, float32 and float64;
  *integers* are uint8 and int8 to int64.
- ATen mode (`kernels=["aten"]`) has a kernel of every operator that torch has.
"""


def markdown(operators: Sequence[OperatorFacts]) -> str:
    """Return the page; the conditions of backends are numbered, since many operators share them.

    Operators of other packages that only ATen mode runs are left out, since they depend on the imports of this process.
    """
    operators = [
        facts for facts in operators if facts.backends or _portable(facts) or (facts.torch and facts.torch.core)
    ]
    backends = sorted({name for facts in operators for name in facts.backends})
    numbers = _number(c for facts in operators for name in backends for c in facts.backends.get(name, ()))
    lines = [
        _HEAD,
        f"| operator | kind | portable | {' | '.join(backends)} |",
        "|---|---|---|" + "---|" * len(backends),
    ]
    for facts in operators:
        cells = [_describe_support(facts.backends.get(name), numbers) for name in backends]
        lines.append(" | ".join((f"| `{facts.name}`", facts.kind, _portable(facts), *cells)) + " |")
    lines += ["", "## Conditions", "", *(f"{number}. {text}" for text, number in numbers.items())]
    return "\n".join(lines) + "\n"


def _number(conditions: Iterable[str]) -> dict[str, int]:
    return {text: i for i, text in enumerate(dict.fromkeys(conditions), 1)}


def _describe_support(conditions: Sequence[str] | None, numbers: dict[str, int]) -> str:
    if conditions is None:
        return ""
    return f"if {', '.join(str(numbers[c]) for c in conditions)}" if conditions else "yes"


def _portable(facts: OperatorFacts) -> str:
    return next((dtype_text(k.dtypes) for k in facts.kernels if k.library == "portable"), "")
