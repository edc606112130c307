"""The support matrix of the documentation, in Markdown: operators, their kernels, the backends that take them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from delegate.operators import OperatorFacts, dtype_text

_HEAD = """\
# Support matrix

Made by `make docs-ops` from the tables of kernels and lowerings; `delegate ops NAME` shows more of one operator.

- **kind**: *core* ATen; *compound*: torch decomposes it where neither a kernel nor a backend wants it whole; a *view*
  costs nothing at run time.
- **portable**: the element types that its portable kernel takes. *floats* are float16, bfloat16, float32 and float64;
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
    numbers = _numbered(c for facts in operators for name in backends for c in facts.backends.get(name, ()))
    lines = [
        _HEAD,
        f"| operator | kind | portable | {' | '.join(backends)} |",
        "|---|---|---|" + "---|" * len(backends),
    ]
    for facts in operators:
        cells = [_taken(facts.backends.get(name), numbers) for name in backends]
        lines.append(" | ".join((f"| `{facts.name}`", facts.kind, _portable(facts), *cells)) + " |")
    lines += ["", "## Conditions", "", *(f"{number}. {text}" for text, number in numbers.items())]
    return "\n".join(lines) + "\n"


def _numbered(conditions: Iterable[str]) -> dict[str, int]:
    return {text: i for i, text in enumerate(dict.fromkeys(conditions), 1)}


def _taken(conditions: Sequence[str] | None, numbers: dict[str, int]) -> str:
    if conditions is None:
        return ""
    return f"if {', '.join(str(numbers[c]) for c in conditions)}" if conditions else "yes"


def _portable(facts: OperatorFacts) -> str:
    return next((dtype_text(k.dtypes) for k in facts.kernels if k.library == "portable"), "")
