"""The costs that a machine has measured for the programs of a bundle, as data and as JSON. Without torch."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from delegate.common.field_checks import Amount, build, fault, plain_json, require_format
from delegate.common.files import read_text, write_text
from delegate.errors import PartitionError
from delegate.placement.runtime.elimination import Record
from delegate.report.measured import Objective, cost_text

FORMAT = 3  # 1 had no steps, 2 had rounds beside the digest
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

    objective: Objective
    inputs: tuple[str, ...]
    budget: Amount
    spent: Amount
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
        return json.dumps({"format": FORMAT, **plain_json(self)}, indent=1, allow_nan=False)

    @classmethod
    def from_json(cls, document: str, where: str = "") -> Costs:
        """Return the costs in a text from `to_json`; raises PartitionError for other text.

        `where` is for the message.
        """
        try:
            data = json.loads(document)
            require_format(data, FORMAT)
            return build(cls, data)
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            what = f"these are not measured costs, {fault(error)}"
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
