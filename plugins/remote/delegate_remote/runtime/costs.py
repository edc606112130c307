"""The costs that a machine has measured for the programs of a bundle, as data and as JSON. Without torch."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from delegate.common.field_checks import amount, items, mapping, number, require_format, text, texts
from delegate.common.files import read_text, write_text
from delegate.errors import PartitionError
from delegate.placement.runtime.elimination import Record
from delegate.plugins import one_line
from delegate.report.measured import UNITS, cost_text

FORMAT = 2  # 1 had no steps
_AGAIN = "measure a bundle again: `delegate measure BUNDLE -o FILE`"


@dataclass(frozen=True, slots=True)
class ProgramCosts:
    """The measurement of one program.

    Args:
        digest: A checksum of its bytes.
        record: its rounds, with their steps if these were timed.
        sqnr_db: the SQNR of its results; None if they were not compared.
    """

    digest: str
    record: Record
    sqnr_db: float | None = None


@dataclass(frozen=True, slots=True)
class MethodCosts:
    """The measurement of one method's programs.

    Args:
        objective: a key of `delegate.report.measured.UNITS`.
        inputs: a short description of each argument of the calls.
        budget: seconds for the measurement.
        spent: seconds that it took.
        programs: Name of a plan -> its program's costs.
    """

    objective: str
    inputs: Sequence[str]
    budget: float
    spent: float
    programs: Mapping[str, ProgramCosts]


@dataclass(frozen=True, slots=True)
class Costs:
    """The measurements of a machine.

    Args:
        machine: description of the machine.
        methods: Method name -> its costs.
    """

    machine: str
    methods: Mapping[str, MethodCosts]

    def to_json(self) -> str:
        """Return the costs as JSON."""
        methods = {
            name: {
                "objective": m.objective,
                "inputs": list(m.inputs),
                "budget": m.budget,
                "spent": round(m.spent, 3),
                "programs": {
                    plan: {
                        "digest": p.digest,
                        "sqnr_db": p.sqnr_db if p.sqnr_db is None or math.isfinite(p.sqnr_db) else str(p.sqnr_db),
                        "rounds": p.record.rounds,
                        "steps": [dict(step) for step in p.record.steps],
                        "failure": p.record.failure,
                    }
                    for plan, p in m.programs.items()
                },
            }
            for name, m in self.methods.items()
        }
        return json.dumps({"format": FORMAT, "machine": self.machine, "methods": methods}, indent=1, allow_nan=False)

    @classmethod
    def from_json(cls, document: str, where: str = "") -> Costs:
        """Return the costs in a text from `to_json`; raises PartitionError for other text.

        `where` is for the message.
        """
        try:
            data = json.loads(document)
            require_format(data, FORMAT)
            methods = mapping(data, "methods")
            return cls(text(data, "machine"), {name: _method(mapping(methods, name)) for name in methods})
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            what = f"these are not measured costs, {one_line(error)}"
            raise PartitionError(what, where=where, remedy=_AGAIN) from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file; raises PartitionError if it cannot be written."""
        write_text(path, self.to_json() + "\n", "costs")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Costs:
        """Read a file; raises PartitionError if it has no costs."""
        return cls.from_json(read_text(path, "costs", _AGAIN), str(path))

    def tables(self) -> Iterator[tuple[str, list[tuple[str, str, str, str]]]]:
        """Yield a sentence on each method, and the rows of its table: candidate, cost, rounds, failure."""
        for name, m in self.methods.items():
            records = {plan: p.record for plan, p in m.programs.items()}
            rows = [
                (plan, cost_text(r.cost, m.objective), str(len(r.rounds)), r.failure) for plan, r in records.items()
            ]
            yield f"{name}: measured by {m.objective} in {m.spent:.1f} s of {m.budget:g} s", rows


def _method(data: Mapping[str, Any]) -> MethodCosts:
    objective, programs = text(data, "objective"), mapping(data, "programs")
    if objective not in UNITS:
        raise ValueError(f"{objective!r} is not an objective")
    return MethodCosts(
        objective=objective,
        inputs=texts(data, "inputs"),
        budget=amount(data, "budget"),
        spent=amount(data, "spent"),
        programs={name: _program(mapping(programs, name)) for name in programs},
    )


def _program(data: Mapping[str, Any]) -> ProgramCosts:
    sqnr = None if data["sqnr_db"] is None else number(data, "sqnr_db")
    return ProgramCosts(text(data, "digest"), _record(data), sqnr)


def _record(data: Mapping[str, Any]) -> Record:
    steps = [{name: amount(step, name) for name in step} for step in items(data, "steps")]
    rounds = [amount({"rounds": each}, "rounds") for each in data["rounds"]]
    return Record(rounds, list(steps), text(data, "failure"))
