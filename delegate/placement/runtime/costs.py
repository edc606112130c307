"""Measured costs as data: of segments and programs, and the costs that another machine measured. Without torch.

`Segment`, `Record` and `SegmentCosts` are stable.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from delegate.errors import PartitionError
from delegate.field_checks import amount, items, mapping, number, require_format, text, texts
from delegate.files import read_text, write_text
from delegate.measured import UNITS
from delegate.plugins import one_line

FORMAT = 2  # 1 had no steps
_AGAIN = "measure a bundle again: `delegate measure BUNDLE -o FILE`"


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive nodes of a method between two narrow places.

    Args:
        graph: the method.
        name: the modules that it goes through, e.g. "layer1.0 to layer2.1".
        nodes: identities of the compute nodes, in order, without those in control-flow graphs.
        names: names of all its nodes in the planned graph. Values of the program and timings have the same names.
        graphs: names of the control-flow graphs that its nodes call.
        bytes_in: bytes that come in from earlier segments.
        after: numbers of the segments whose results it uses.
    """

    graph: str
    name: str
    nodes: tuple[str, ...]
    names: tuple[str, ...]
    graphs: tuple[str, ...] = ()
    bytes_in: int = 0
    after: tuple[int, ...] = ()


@dataclass(slots=True)
class Record:
    """The rounds of one program. Round i of two records of one measurement is a pair.

    Args:
        rounds: seconds per call, or bytes: the median of the calls of each round.
        steps: for each watched round, seconds per step. A step has the name of its first value or of its partition.
        failure: why the program stopped, e.g. "was killed by SIGSEGV". Earlier rounds stay.
        busy: number of rounds that do not count, since other processes used the cores.
        is_quiet: True if no other process used the cores in the rounds that count.
    """

    rounds: list[float] = field(default_factory=list)
    steps: list[Mapping[str, float]] = field(default_factory=list)
    failure: str = ""
    busy: int = 0
    is_quiet: bool = True

    @property
    def cost(self) -> float | None:
        """The median of the rounds, or None without rounds."""
        return median(self.rounds) if self.rounds else None

    def to_data(self) -> dict[str, Any]:
        """Return the record as plain JSON values."""
        return {"rounds": self.rounds, "steps": [dict(s) for s in self.steps], "failure": self.failure}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Record:
        """Return the record of the result of `to_data`; raises KeyError, TypeError or ValueError for other data."""
        steps = [{name: amount(step, name) for name in step} for step in items(data, "steps")]
        rounds = [amount({"rounds": each}, "rounds") for each in data["rounds"]]
        return cls(rounds, list(steps), text(data, "failure"))


@dataclass(frozen=True, slots=True)
class SegmentCosts:
    """Costs for a choice by segments. The key of a pair is (candidate before, candidate after).

    Args:
        segments: candidate -> seconds of every segment as a partition of its own, by round.
        savings: candidate -> seconds saved per border if both sides are one partition of that candidate.
        crossing: pair of candidates -> extra seconds per border for the change from one to the other.
    """

    segments: Mapping[str, Sequence[Sequence[float]]]
    savings: Mapping[str, Sequence[float]]
    crossing: Mapping[tuple[str, str], float]

    def rounds(self, candidate: str, members: Sequence[int]) -> list[float]:
        """Return the seconds of consecutive segments as one partition, by round."""
        saved = sum(self.savings[candidate][border] for border in members[:-1])
        rounds = (self.segments[candidate][number] for number in members)
        return [max(sum(each) - saved, 0.0) for each in zip(*rounds, strict=False)]

    def of(self, candidate: str, segment: int) -> float:
        """Return the median cost of a segment on a candidate."""
        return median(self.segments[candidate][segment])


@dataclass(frozen=True, slots=True)
class ProgramCosts:
    """The measurement of one program.

    Args:
        digest: of its bytes.
        record: its rounds, with their steps if these were timed.
        sqnr_db: the SQNR of its results; None if they were not compared.
    """

    digest: str
    record: Record
    sqnr_db: float | None = None


@dataclass(frozen=True, slots=True)
class MethodCosts:
    """The measurement of the programs of one method.

    Args:
        objective: a key of `delegate.measured.UNITS`.
        inputs: a short description of each argument of the calls.
        budget: seconds for the measurement.
        spent: seconds that it took.
        programs: by name of the plan.
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
        methods: by name.
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
                        **p.record.to_data(),
                    }
                    for plan, p in m.programs.items()
                },
            }
            for name, m in self.methods.items()
        }
        return json.dumps({"format": FORMAT, "machine": self.machine, "methods": methods}, indent=1, allow_nan=False)

    @classmethod
    def from_json(cls, document: str, where: str = "") -> Costs:
        """Return the costs of the result of `to_json`; raises PartitionError for other text.

        `where` is for the message.
        """
        try:
            data = json.loads(document)
            require_format(data, FORMAT)
            methods = mapping(data, "methods")
            return cls(text(data, "machine"), {name: _method(mapping(methods, name)) for name in methods})
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            what = f"these are no costs that were measured, {one_line(error)}"
            raise PartitionError(what, where=where, remedy=_AGAIN) from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file; raises PartitionError if it cannot be written."""
        write_text(path, self.to_json() + "\n", "costs")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Costs:
        """Read a file; raises PartitionError if it has no costs."""
        return cls.from_json(read_text(path, "costs", _AGAIN), str(path))


def _method(data: Mapping[str, Any]) -> MethodCosts:
    objective, programs = text(data, "objective"), mapping(data, "programs")
    if objective not in UNITS:
        raise ValueError(f"{objective!r} is no objective")
    return MethodCosts(
        objective=objective,
        inputs=texts(data, "inputs"),
        budget=amount(data, "budget"),
        spent=amount(data, "spent"),
        programs={name: _program(mapping(programs, name)) for name in programs},
    )


def _program(data: Mapping[str, Any]) -> ProgramCosts:
    sqnr = None if data["sqnr_db"] is None else number(data, "sqnr_db")
    return ProgramCosts(text(data, "digest"), Record.from_data(data), sqnr)
