"""What is found out while the plan of a method is chosen, and what its report tells of that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from delegate.measured import Placement, PlanCost, StretchCost
from delegate.placement.branches import Branch
from delegate.placement.costs import Costs, Record, Stretch
from delegate.placement.plans import Examiner, Task, WholePlan
from delegate.placement.statistics import ratio
from delegate.placement.survey import Survey


@dataclass
class Found:
    """All that is known of a method's plans so far.

    Args:
        plans: by name, those that were compiled.
        records: what each of one candidate took.
        final: what those took that raced again, beside plans of several candidates.
        inaccurate: plans that do not keep the bound, and why.
        failed: plans that could not be compiled.
        not_tried: what was left out, and why.
        stretches, costs, survey: of the method, where it was looked at in parts.
        branches: that may run at the same time.
    """

    plans: dict[str, WholePlan] = field(default_factory=dict)
    records: dict[str, Record] = field(default_factory=dict)
    final: dict[str, Record] = field(default_factory=dict)
    inaccurate: dict[str, str] = field(default_factory=dict)
    failed: list[PlanCost] = field(default_factory=list)
    not_tried: list[str] = field(default_factory=list)
    stretches: list[Stretch] = field(default_factory=list)
    costs: Costs | None = None
    survey: Survey | None = None
    branches: list[Branch] = field(default_factory=list)

    def records_of(self, plan: str) -> dict[str, Record]:
        """Of the last race that a plan took part in."""
        return self.final if plan in self.final else self.records

    @property
    def is_calm(self) -> bool:
        """Whether no other work had the cores in the rounds that count."""
        return all(r.is_calm for r in {**self.records, **self.final}.values() if not r.failure)

    @property
    def busy(self) -> str:
        """What is to be told of other work; empty where there was none."""
        told = [max((r.busy for r in records.values()), default=0) for records in (self.records, self.final)]
        if not self.is_calm:
            return "other work had the cores all the time: the least busy rounds count, and nothing of it is kept"
        return f"{sum(told)} rounds do not count, for other work had the cores" if sum(told) else ""


def placement_of(found: Found, task: Task, examine: Examiner, chosen: str, spent: float) -> Placement:
    """What a report tells: the table of plans, the cheapest first, and the parts of the chosen one.

    Args:
        found: about a method.
        task: what was asked.
        examine: knows how far off results are.
        chosen: the name of the plan that is taken.
        spent: seconds.
    """
    rows = sorted((_row(found, plan, chosen, examine) for plan in found.plans.values()), key=_by_cost)
    return Placement(
        task.method,
        task.objective,
        chosen,
        (*rows, *found.failed),
        tuple(_parts(found, found.plans[chosen])),
        tuple(dict.fromkeys(found.not_tried)),
        task.budget,
        spent,
        busy=found.busy,
    )


def _row(found: Found, plan: WholePlan, chosen: str, examine: Examiner) -> PlanCost:
    records = found.records_of(plan.name)
    record = records[plan.name]
    against = None
    if plan.name != chosen and record.rounds and chosen in records and records[chosen].rounds:
        against = ratio(record.rounds, records[chosen].rounds)
    partitions = len(plan.lowered.program.delegates)
    why = record.failure or found.inaccurate.get(plan.name, "")
    sqnr = examine.sqnr_db(plan.name)
    return PlanCost(plan.name, partitions, record.cost, len(record.rounds), against, sqnr, why)


def _by_cost(row: PlanCost) -> tuple[bool, float]:
    return row.cost is None, row.cost or 0.0


def _parts(found: Found, plan: WholePlan) -> Iterator[StretchCost]:
    """The branches of a plan, or its stretches, those in a row on one candidate as one."""
    if plan.beside:
        for branch, candidate in zip(found.branches, plan.beside, strict=True):
            yield StretchCost(branch.name, candidate, len(branch.nodes))
        return
    choice = plan.choice or (plan.candidate.name,) * len(found.stretches)
    for candidate, group in groupby(range(len(found.stretches)), key=choice.__getitem__):
        yield _part(found, candidate, list(group))


def _part(found: Found, candidate: str, members: Sequence[int]) -> StretchCost:
    name = _joined(found.stretches[members[0]].name, found.stretches[members[-1]].name)
    nodes = sum(len(found.stretches[i].nodes) for i in members)
    rounds = {} if found.costs is None else {c: found.costs.rounds(c, members) for c in found.costs.stretches}
    if candidate not in rounds:
        return StretchCost(name, candidate, nodes)
    costs = {c: Record(list(r)).cost or 0.0 for c, r in rounds.items()}
    other = min((c for c in rounds if c != candidate), key=costs.__getitem__, default="")
    pairs = other and found.survey is not None and found.survey.are_pairs
    against = ratio(rounds[candidate], rounds[other]) if pairs else None
    return StretchCost(name, candidate, nodes, costs[candidate], other, against)


def _joined(first: str, last: str) -> str:
    """The name of stretches in a row."""
    start, end = first.partition(" to ")[0], last.rpartition(" to ")[2]
    return start if start == end else f"{start} to {end}"
