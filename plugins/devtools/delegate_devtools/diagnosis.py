"""The result of the debugger: faults, their kinds and operators, and the error along the depth of the program."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from delegate.common.field_checks import Amount, build, fault, plain_json
from delegate.common.text_table import Table
from delegate.errors import InputError
from delegate.report.rows import Accuracy, LayerAccuracy

REFUSAL = "refusal"  # the kind of operators that no library ran, so that they are not wrong
_ROWS = 20  # of a table of layers in the text


@dataclass(frozen=True, slots=True)
class FaultKind:
    """The kind of a fault.

    Args:
        name: "wrong values", "precision", "rounding" (of float32, which is not a fault), "overflow", "NaN", "infinity",
            "saturation", "non-determinism", "failure" or "refusal" (which is not a fault).
        explanation: a sentence with the numbers; empty if nothing more is known.
    """

    name: str
    explanation: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.explanation}" if self.explanation else self.name


@dataclass(frozen=True, slots=True)
class FaultyNode:
    """A node at fault: its name, operator, module path and the user's line; the last two are empty if unknown."""

    name: str
    operator: str
    module: str = ""
    source: str = ""

    def __str__(self) -> str:
        return "  ".join(filter(None, (self.name, self.operator, self.module, self.source)))


@dataclass(frozen=True, slots=True)
class Fault:
    """A smallest set of operators that is wrong by itself, or that its backend refuses.

    Args:
        method: the name of the method.
        place: what runs the operators: a backend, "portable kernels" or "quantization".
        partition: the name of the partition; empty outside of partitions.
        nodes: the operators.
        kind: wrong values, precision, overflow and so on.
        figures: their error, on the inputs that they have in the program; None if they failed.
        size: the number of operators in the partition.
        tests: the number of sub-regions that were tried.
        rejected: the number of those that the library rejected, so that smaller sets may be wrong too.
        is_minimal: no operator at a border of the set can be left out, or False if the budget was over.
        is_confirmed: the partition without these operators is right.
        is_hidden: the results of the partition are within the bounds, or the default ones of an accuracy check.
        remedy: the configuration that runs them elsewhere, or keeps them in float.
        reproduction: path of the script that shows the fault without this project; empty if there is none.
    """

    method: str
    place: str
    partition: str
    nodes: tuple[FaultyNode, ...]
    kind: FaultKind
    figures: Accuracy | None
    size: int = 1
    tests: int = 0
    rejected: int = 0
    is_minimal: bool = True
    is_confirmed: bool = False
    is_hidden: bool = False
    remedy: str = ""
    reproduction: str = ""

    def lines(self) -> Iterator[str]:
        """Return the lines for people."""
        where = f" (partition {self.partition})" if self.partition else ""
        yield f"{self.kind.name}: {len(self.nodes)} of {self.size} operators on {self.place}{where} in {self.method}"
        yield from (f"  {node}" for node in self.nodes)
        if self.kind.explanation:
            yield f"  {self.kind.explanation}"
        if self.figures is not None:
            yield f"  by themselves: {self.figures}"
        if self.partition:
            state = "the smallest set" if self.is_minimal else "the smallest set so far: the budget is over"
            is_part = self.is_confirmed and len(self.nodes) < self.size
            rest = "; the rest of the partition is right" if is_part else ""
            rejected = f" ({self.rejected} of these rejected by the library)" if self.rejected else ""
            yield f"  {state}, of {self.tests} tested{rejected}{rest}"
        if self.is_hidden:
            yield "  the results of the partition hardly depend on them: they pass an accuracy check"
        if self.remedy:
            yield "  to run them elsewhere:" if self.partition else "  to keep these layers in float:"
            yield from (f"    {line}" for line in self.remedy.splitlines())
        if self.reproduction:
            yield f"  reproduction: {self.reproduction}"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result of the debugger.

    Args:
        figures: Method and reference in words -> the method's figures against that reference.
        bounds: a result that misses these is wrong, in words.
        faults: the faults and refusals, in the order of execution.
        instructions: the number of partitions and kernels that ran.
        errors: the error along the depth, by partition and kernel; `node` is the partition or the kernel's result.
        layers: the error along the depth by quantized layer, against the float reference.
        not_finite: sentences on the first NaN and the first infinity, here and in torch.
        is_complete: the search has ended within its budget.
        notes: what was not compared, and what went wrong.
        seconds: the time of the search.
    """

    figures: Mapping[str, Accuracy | None]
    faults: tuple[Fault, ...]
    instructions: int
    errors: tuple[LayerAccuracy, ...] = ()
    layers: tuple[LayerAccuracy, ...] = ()
    not_finite: tuple[str, ...] = ()
    is_complete: bool = True
    notes: tuple[str, ...] = ()
    seconds: Amount = 0.0
    bounds: str = ""

    def __str__(self) -> str:
        return "\n".join(map(str, self.blocks()))

    def blocks(self) -> Iterator[str | Table]:
        """Yield the lines and tables for people."""
        for name, figures in self.figures.items():
            yield f"{name}: {figures or 'nothing to compare'}"
        refusals = sum(fault.kind.name == REFUSAL for fault in self.faults)
        count = len(self.faults) - refusals
        none = "no operator is wrong by itself" if self.is_complete else "no fault so far: the budget is over"
        found = f"{count} fault{'s' * (count > 1)}" if count else none
        found += f", {refusals} refusal{'s' * (refusals > 1)}" if refusals else ""
        ran = "1 partition or kernel" if self.instructions == 1 else f"{self.instructions} partitions and kernels"
        yield f"{ran} ran, {self.seconds:.1f} s: {found}"
        if self.bounds:
            yield f"right is {self.bounds}"
        for number, entry in enumerate(self.faults, 1):
            first, *others = entry.lines()
            yield f"{number}. {first}"
            yield from others
        yield from self.not_finite
        for header, rows in ((("where", "operator or backend"), self.errors), (("layer", "operator"), self.layers)):
            if len(rows) > 1:
                yield ""
                worst = sorted(sorted(rows, key=lambda r: r.added_db)[:_ROWS], key=rows.index)
                has_several = len({row.method for row in rows}) > 1
                places = (f"{r.place} in method {r.method}" if has_several else r.place for r in worst)
                cells = tuple((_db(r.added_db), _db(r.total_db), r.node, p) for r, p in zip(worst, places, strict=True))
                yield Table(("added", "total", *header), cells, numbers=frozenset({0, 1}))
                if len(rows) > len(worst):
                    yield f"the {len(worst)} noisiest of {len(rows)}"
        yield from (f"note: {note}" for note in self.notes)

    def to_json(self) -> str:
        """Return the diagnosis as JSON; figures that are not finite are texts."""
        return json.dumps(plain_json(self), indent=2)

    @classmethod
    def from_json(cls, text: str, where: str = "") -> Diagnosis:
        """Return the diagnosis in a text from `to_json`, from the file `where`; raises InputError for other texts."""
        try:
            return build(cls, json.loads(text))
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            what = f"the diagnosis cannot be read, {fault(error)}"
            raise InputError(what, where=where, remedy="write it again: `delegate debug MODEL --json`") from error


def _db(decibels: float | None) -> str:
    return "-" if decibels is None else "exact" if decibels == math.inf else f"{decibels:.1f} dB"
