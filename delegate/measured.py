"""What a report tells of a measured placement: whole plans, partitions, what was not tried. Plain data, without torch.

All of it is stable: the report's JSON, the lockfile and bundles are made of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from delegate.plain_data import amount, count, items, mapping, number, text, texts

UNITS = {"latency": "ms", "throughput": "ms", "memory": "MiB", "file size": "MiB"}  # objective -> of a cost, for people
_SCALES = {"ms": 1e3, "MiB": 2.0**-20}


@dataclass(frozen=True, slots=True)
class Interval:
    """A ratio of two costs and where it lies for all that is known; below 1 the first costs less.

    Args:
        ratio: the median of paired rounds.
        low, high: the ends of its confidence interval; 0 and infinity where too few rounds were run to know.
    """

    ratio: float
    low: float
    high: float

    @property
    def is_known(self) -> bool:
        """Whether one of both is cheaper beyond the noise."""
        return self.high < 1 or self.low > 1

    def __str__(self) -> str:
        return f"{self.ratio:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True, slots=True)
class PlanCost:
    """One whole plan of a method.

    Args:
        name: e.g. "xnnpack", or "onnxruntime | xnnpack" of one whose stretches are on several backends.
        partitions: how many delegates it has.
        cost: the median over its rounds, in seconds a call, or bytes; None where it was not measured.
        rounds: of measuring.
        against: its cost over that of the plan that was chosen; None for that one, and where it was not measured.
        sqnr_db: how near its results are to torch's; None where that was not measured.
        why: what put it out, e.g. "was killed by SIGSEGV"; empty where nothing did.
    """

    name: str
    partitions: int
    cost: float | None = None
    rounds: int = 0
    against: Interval | None = None
    sqnr_db: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class StretchCost:
    """One stretch of a method, or several in a row that became one partition.

    Args:
        name: of the stretch, e.g. "layer1.0 to layer2.1".
        candidate: that it was given to.
        nodes: how many nodes compute in it.
        seconds: what it costs there, measured in the running program; None where it was not measured.
        runner_up: the candidate that is the next best; empty where no other was measured.
        against: the cost of the choice over the runner-up's; None where no other was measured.
    """

    name: str
    candidate: str
    nodes: int
    seconds: float | None = None
    runner_up: str = ""
    against: Interval | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """How the places of one method were chosen.

    Args:
        method: its name.
        objective: a key of `UNITS`.
        chosen: name of the plan that was taken.
        plans: the table of whole plans, the cheapest first; the chosen one is among them.
        stretches: in the order of the method; neighbours on one candidate are one.
        not_tried: what the budget, or the objective, left out; for people.
        budget: seconds that measuring was given.
        spent: seconds that it took; 0 where all was known from earlier.
        machine: that it was measured on, where that is another one.
        busy: what other work on the machine did to it; empty where it did nothing.
    """

    method: str
    objective: str
    chosen: str
    plans: tuple[PlanCost, ...] = ()
    stretches: tuple[StretchCost, ...] = ()
    not_tried: tuple[str, ...] = ()
    budget: float = 0.0
    spent: float = 0.0
    machine: str = ""
    busy: str = ""

    def lines(self) -> Iterator[str]:
        """The placement for people."""
        unit = UNITS[self.objective]
        yield f"{self.method}: {self.chosen} is placed by {self.objective}, {self._known()}"
        header = ("plan", "partitions", unit, "over the chosen", "SQNR", "rounds", "")
        yield from _table([header, *(self._plan(p, unit) for p in self.plans)])
        if self.stretches:
            yield "where each stretch is, and what it takes there over the runner-up:"
            yield from _table(
                [
                    ("stretch", "nodes", "place", "ms", "runner-up", "ratio"),
                    *(_stretch(s) for s in self.stretches),
                ]
            )
        yield from (f"not tried: {what}" for what in self.not_tried)
        if self.busy:
            yield f"the machine was busy: {self.busy}"

    def _known(self) -> str:
        if all(p.cost is None for p in self.plans):
            return "not measured"
        if not self.spent:
            return "known from earlier"
        there = f" on another machine: {self.machine}" if self.machine else ""
        return f"measured in {self.spent:.1f} s of {self.budget:g} s{there}"

    def _plan(self, plan: PlanCost, unit: str) -> tuple[str, ...]:
        cost = "" if plan.cost is None else f"{plan.cost * _SCALES[unit]:.3f}"
        against = "chosen" if plan.name == self.chosen else str(plan.against or "")
        sqnr = "" if plan.sqnr_db is None else f"{plan.sqnr_db:.1f} dB"
        return plan.name, str(plan.partitions), cost, against, sqnr, str(plan.rounds or ""), plan.why

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Placement:
        """The placement of what `dataclasses.asdict` gave; raises KeyError, TypeError or ValueError for other data."""
        objective = text(data, "objective")
        if objective not in UNITS:
            raise ValueError(f"{objective!r} is no objective")
        plans = tuple(map(_plan_cost, items(data, "plans")))
        chosen, names = text(data, "chosen"), [p.name for p in plans]
        if chosen not in names:
            raise ValueError(f"the chosen plan {chosen!r} is not among the plans")
        if len(set(names)) < len(names):
            raise ValueError("two plans have one name")
        return cls(
            method=text(data, "method"),
            objective=objective,
            chosen=chosen,
            plans=plans,
            stretches=tuple(map(_stretch_cost, items(data, "stretches"))),
            not_tried=texts(data, "not_tried"),
            budget=amount(data, "budget"),
            spent=amount(data, "spent"),
            machine=text({"machine": "", **data}, "machine"),  # of what was written before there was one
            busy=text({"busy": "", **data}, "busy"),
        )


def _stretch(cost: StretchCost) -> tuple[str, ...]:
    seconds = "" if cost.seconds is None else f"{cost.seconds * 1e3:.3f}"
    return cost.name, str(cost.nodes), cost.candidate, seconds, cost.runner_up, str(cost.against or "")


def _table(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _interval(data: Mapping[str, Any]) -> Interval | None:
    if data["against"] is None:
        return None
    given = mapping(data, "against")
    found = Interval(number(given, "ratio"), number(given, "low"), number(given, "high"))
    if not 0 <= found.low <= found.ratio <= found.high:
        raise ValueError(f"{found} is no ratio within an interval")
    return found


def _plan_cost(data: Mapping[str, Any]) -> PlanCost:
    return PlanCost(
        name=text(data, "name"),
        partitions=count(data, "partitions"),
        cost=None if data["cost"] is None else amount(data, "cost"),
        rounds=count(data, "rounds"),
        against=_interval(data),
        sqnr_db=None if data["sqnr_db"] is None else number(data, "sqnr_db"),
        why=text(data, "why"),
    )


def _stretch_cost(data: Mapping[str, Any]) -> StretchCost:
    return StretchCost(
        name=text(data, "name"),
        candidate=text(data, "candidate"),
        nodes=count(data, "nodes"),
        seconds=None if data["seconds"] is None else amount(data, "seconds"),
        runner_up=text(data, "runner_up"),
        against=_interval(data),
    )
