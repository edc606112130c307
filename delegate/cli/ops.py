"""`delegate ops`: facts about operators: kernels and dtypes, backends, decompositions."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated

import typer

from delegate.cli import output
from delegate.cli.completions import backend_names
from delegate.cli.operators import Catalogue, OperatorFacts, dtype_text
from delegate.errors import DelegateError
from delegate.plugins import one_line
from delegate.registry import Registry

_IN_FULL = 4  # up to so many operators are shown with all facts; more as a table


def ops(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="An operator or a pattern: aten.add.Tensor, gelu, 'aten.conv*', '*'."),
    ] = None,
    backend: Annotated[
        list[str] | None,
        typer.Option(
            "--backend", "-b", metavar="NAME", autocompletion=backend_names, help="List the operators of this backend."
        ),
    ] = None,
    modules: Annotated[
        list[str] | None, typer.Option("--import", metavar="MODULE", help="Module to import first, for its operators.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all facts as JSON.")] = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the support matrix of the documentation.")
    ] = False,
) -> None:
    """Show the kernels, the dtypes and the backends of operators; without a name or a backend, their numbers."""
    _import(modules or ())
    with output.working("reading the tables of operators"):
        catalogue = Catalogue(Registry())
        wanted = {catalogue.backend(b) for b in backend or ()}
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


def _import(modules: Sequence[str]) -> None:
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:
            raise DelegateError(f"cannot import {module!r}: {one_line(error)}") from error


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
