"""The table of a backend's deviations: where its library differs from torch, and what the backend does about it.

The rows are the source of refusals, of the page "Known differences", of `delegate ops NAME` and of notes in reports.
`make deviations` sweeps the operators of every backend for differences that have no row, and runs the library alone to
find rows that a new version no longer needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from delegate.verdict import Reason, Verdict, no


class Handling(StrEnum):
    """What a backend does about a deviation."""

    REWRITTEN = "computed otherwise"  # results are torch's
    REJECTED = "rejected"  # another backend or a kernel runs such nodes
    KEPT = "kept"  # results are the library's


@dataclass(frozen=True, slots=True)
class Deviation:
    """A difference of a vendor library from torch.

    Args:
        library: the library with the versions in which it was seen, e.g. "ONNX Runtime 1.31.1".
        operators: e.g. "aten.sigmoid" for all its overloads, or "aten.div.Tensor_mode" for one; empty: every operator.
        domain: the inputs that show it, e.g. "float32 below -15".
        behavior: what the library does, e.g. "returns 0"; continues a sentence that starts with its name.
        torch: what torch does, likewise, e.g. "returns 3e-7".
        handling: what the backend does about it.
        test: the test that holds it, e.g. "plugins/onnxruntime/tests/test_relative_errors.py".
        advice: a sentence on what is computed instead, or on how to get torch's result.
        points: For a kept difference, the groups of points, the kinds of differences or the dtypes that show it in
            `make deviations`, e.g. ("tails",), ("signs of zero",) or ("bfloat16",).
        is_noted: a note of each partition with such an operator names it; false for inputs that models hardly have,
            such as -0.0 and products of 1e38, and for one dtype or mode of many.
    """

    library: str
    operators: tuple[str, ...]
    domain: str
    behavior: str
    torch: str
    handling: Handling
    test: str
    advice: str = ""
    points: tuple[str, ...] = ()
    is_noted: bool = True

    @property
    def message(self) -> str:
        """A sentence, e.g. "for float32 below -15, ONNX Runtime 1.31.1 returns 0, but torch returns 3e-7"."""
        return f"for {self.domain}, {self.library} {self.behavior}, but torch {self.torch}"

    def reject(self) -> Verdict:
        """Return the refusal of a node that would show the difference."""
        return no(Reason.INACCURATE, self.message)


def deviations_of(deviations: Iterable[Deviation], operator: str) -> tuple[Deviation, ...]:
    """Return the deviations of an operator, e.g. "aten.sigmoid.default"."""
    return tuple(d for d in deviations if not d.operators or any(_is(operator, name) for name in d.operators))


def deviation_notes(deviations: Iterable[Deviation], operators: Iterable[str]) -> Iterator[str]:
    """Yield the note of a partition with operators whose differences are kept; nothing if there are none."""
    kept = [d for d in deviations if d.handling is Handling.KEPT and d.operators and d.is_noted]
    names = sorted({operator.split(".")[1] for operator in operators if deviations_of(kept, operator)})
    if names:
        yield f"differs from torch for some inputs (`delegate ops NAME`): {', '.join(names)}"


def _is(operator: str, name: str) -> bool:
    return operator == name or operator.startswith(f"{name}.")
