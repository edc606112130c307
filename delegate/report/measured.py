"""The report of a measured placement: plans, and what was not tried. Plain data, without torch.

All of it is stable. The report's JSON, the lockfile and bundles contain it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from delegate.common.field_checks import Amount, build, round_measurements
from delegate.common.text_table import Table

UNITS = {"latency": "ms", "memory": "MiB", "file size": "MiB"}  # objective -> of a cost, for people
_EXACT_DB = 100.0


def _objective(data: Mapping[str, Any], key: str) -> str:
    if data[key] not in UNITS:
        raise ValueError(f"{data[key]!r} is not an objective")
    return str(data[key])


Objective = Annotated[str, _objective]  # a key of `UNITS`, which `build` reads
_SCALES = {"ms": 1e3, "MiB": 2.0**-20}


def cost_text(cost: float | None, objective: str) -> str:
    """Return a cost with its unit, e.g. "1.250 ms"; empty for None.

    Args:
        cost: The cost in seconds per call, or in bytes.
        objective: a key of `UNITS`.
    """
    unit = UNITS[objective]
    return "" if cost is None else f"{cost * _SCALES[unit]:.3f} {unit}"


@dataclass(frozen=True, slots=True)
class Interval:
    """A ratio of two costs with its confidence interval; above 1 the chosen one costs less.

    Args:
        ratio: the median of paired rounds.
        low, high: the ends of the interval; 0 and infinity if there are too few rounds.
    """

    ratio: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.ratio <= self.high:
            raise ValueError(f"{self} is not a ratio within its interval")

    def __str__(self) -> str:
        return f"{self.ratio:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True, slots=True)
class PlanCost:
    """The cost of one plan of a method.

    Args:
        name: e.g. "xnnpack", or "onnxruntime | xnnpack" if it mixes backends.
        partitions: number of delegates.
        cost: the median over its rounds, in seconds per call, or bytes; None if it was not measured.
        rounds: number of measured rounds.
        against: its cost relative to the chosen plan's cost; None for the chosen plan, and if it was not measured.
        sqnr_db: the SQNR of its results against torch; None if it was not measured.
        why: the reason that it was dropped, e.g. "was killed by SIGSEGV"; else empty.
    """

    name: str
    partitions: int
    cost: float | None = None
    rounds: int = 0
    against: Interval | None = None
    sqnr_db: float | None = None
    why: str = ""

    def __post_init__(self) -> None:
        if self.cost is not None and not 0 <= self.cost < math.inf:
            raise ValueError(f"cost should be a finite number of 0 or more, not {self.cost}")


@dataclass(frozen=True, slots=True)
class Placement:
    """The placement of one method.

    Args:
        method: its name.
        objective: a key of `UNITS`.
        chosen: name of the chosen plan.
        plans: the table of plans with the chosen one, the cheapest first.
        not_tried: plans and measurements that the budget or the objective left out.
        budget: seconds for the measurement.
        spent: seconds that it took; 0 if all costs were cached.
        machine: the machine of the measurement if it is another one.
        busy: the effect of other processes; empty if there was none.
    """

    method: str
    objective: Objective
    chosen: str
    plans: tuple[PlanCost, ...] = ()
    not_tried: tuple[str, ...] = ()
    budget: Amount = 0.0
    spent: Amount = 0.0
    machine: str = ""
    busy: str = ""

    def rounded(self) -> Placement:
        """Return the placement with measured numbers of four digits."""
        rounded: Placement = round_measurements(self)
        return rounded

    def front(self) -> list[PlanCost]:
        """Return the plans that no other one beats in both cost and SQNR, the cheapest first.

        Differences above 100 dB are rounding in float32, and do not count.
        """
        front: list[PlanCost] = []
        least = -math.inf
        for plan in sorted((p for p in self.plans if not p.why), key=lambda p: math.inf if p.cost is None else p.cost):
            sqnr_db = math.nan if plan.cost is None or plan.sqnr_db is None else min(plan.sqnr_db, _EXACT_DB)
            if sqnr_db > least:
                front.append(plan)
                least = sqnr_db
        return front

    def blocks(self) -> Iterator[str | Table]:
        """Yield the lines and tables of the text report. Every ratio is a cost relative to the chosen one's."""
        yield f"{self.method}: {self.chosen} is chosen by {self.objective}, {self._source()}"
        header = ("plan", "partitions", "cost", "ratio to chosen", "SQNR", "rounds", "")
        yield Table(header, tuple(map(self._plan, self.plans)), indent="  ")
        if len(front := self.front()) > 1:
            yield f"the front of {self.objective} against error: no other plan costs less and has a smaller error"
            rows = tuple((p.name, cost_text(p.cost, self.objective), f"{p.sqnr_db:.1f} dB") for p in front)
            yield Table(("plan", "cost", "SQNR"), rows, indent="  ")
        yield from (f"not tried: {what}" for what in self.not_tried)
        if self.busy:
            yield f"the machine was busy: {self.busy}"

    def _source(self) -> str:
        if all(p.cost is None for p in self.plans):
            return "not measured"
        if not self.spent:
            return "measured earlier"
        there = f" on another machine: {self.machine}" if self.machine else ""
        return f"measured in {self.spent:.1f} s of {self.budget:g} s{there}"

    def _plan(self, plan: PlanCost) -> tuple[str, ...]:
        cost = cost_text(plan.cost, self.objective)
        against = "chosen" if plan.name == self.chosen else str(plan.against or "")
        sqnr = "" if plan.sqnr_db is None else f"{plan.sqnr_db:.1f} dB"
        return plan.name, str(plan.partitions), cost, against, sqnr, str(plan.rounds or ""), plan.why

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Placement:
        """Return the placement that `dataclasses.asdict` turned into a dict.

        Raises KeyError, TypeError or ValueError for other data.
        """
        placement = build(cls, data)
        names = [p.name for p in placement.plans]
        if placement.chosen not in names:
            raise ValueError(f"the chosen plan {placement.chosen!r} is not among the plans")
        if len(set(names)) < len(names):
            raise ValueError("two plans have the same name")
        return placement
