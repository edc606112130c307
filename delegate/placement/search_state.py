"""The state of a search for the plan of one method, and its report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from delegate.measured import Placement, PlanCost, StretchCost
from delegate.placement.branches import Branch
from delegate.placement.plans import Comparator, MethodPlan, Task
from delegate.placement.runtime.costs import Record, Segment, SegmentCosts
from delegate.placement.runtime.statistics import ratio
from delegate.placement.survey import Survey


@dataclass
class SearchState:
    """The results so far of the search for a plan.

    Args:
        plans: compiled plans by name.
        records: measurements of single-backend plans.
        final: measurements of the plans in the second measurement, which has the combined plans.
        inaccurate: plans that miss the accuracy bound, and why.
        failed: plans that could not be compiled.
        not_tried: what was left out, and why.
        segments, costs, survey: of the method, if its segments were measured.
        branches: that can run in parallel.
    """

    plans: dict[str, MethodPlan] = field(default_factory=dict)
    records: dict[str, Record] = field(default_factory=dict)
    final: dict[str, Record] = field(default_factory=dict)
    inaccurate: dict[str, str] = field(default_factory=dict)
    failed: list[PlanCost] = field(default_factory=list)
    not_tried: list[str] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    costs: SegmentCosts | None = None
    survey: Survey | None = None
    branches: list[Branch] = field(default_factory=list)

    def records_of(self, plan: str) -> dict[str, Record]:
        """Return the records of the last measurement of a plan."""
        return self.final if plan in self.final else self.records

    @property
    def is_quiet(self) -> bool:
        """True if no other process used the cores in the rounds that count."""
        return all(r.is_quiet for r in {**self.records, **self.final}.values() if not r.failure)

    @property
    def busy(self) -> str:
        """The note on other processes for the report; empty if there was no disturbance."""
        counts = [max((r.busy for r in records.values()), default=0) for records in (self.records, self.final)]
        if not self.is_quiet:
            return "other work had the cores all the time: the least busy rounds count, and nothing of it is kept"
        return f"{sum(counts)} rounds do not count, for other work had the cores" if sum(counts) else ""


def report_placement(state: SearchState, task: Task, comparator: Comparator, chosen: str, spent: float) -> Placement:
    """Return the report: the table of plans, the cheapest first, and the segments of the chosen plan.

    Args:
        state: the results of the search.
        task: the method.
        comparator: has the SQNR of each plan.
        chosen: the name of the chosen plan.
        spent: seconds.
    """
    rows = sorted((_plan_row(state, plan, chosen, comparator) for plan in state.plans.values()), key=_by_cost)
    return Placement(
        task.method,
        task.objective,
        chosen,
        (*rows, *state.failed),
        tuple(_cost_rows(state, state.plans[chosen])),
        tuple(dict.fromkeys(state.not_tried)),
        task.budget,
        spent,
        busy=state.busy,
    )


def _plan_row(state: SearchState, plan: MethodPlan, chosen: str, comparator: Comparator) -> PlanCost:
    records = state.records_of(plan.name)
    record = records[plan.name]
    against = None
    if plan.name != chosen and record.rounds and chosen in records and records[chosen].rounds:
        against = ratio(record.rounds, records[chosen].rounds)
    partitions = len(plan.lowered.program.delegates)
    why = record.failure or state.inaccurate.get(plan.name, "")
    sqnr = comparator.sqnr_db(plan.name)
    return PlanCost(plan.name, partitions, record.cost, len(record.rounds), against, sqnr, why)


def _by_cost(row: PlanCost) -> tuple[bool, float]:
    return row.cost is None, row.cost or 0.0


def _cost_rows(state: SearchState, plan: MethodPlan) -> Iterator[StretchCost]:
    """Yield the branches of a plan, or its segments, with consecutive ones of one candidate joined."""
    if plan.branch_choice:
        for branch, candidate in zip(state.branches, plan.branch_choice, strict=True):
            yield StretchCost(branch.name, candidate, len(branch.nodes))
        return
    choice = plan.choice or (plan.candidate.name,) * len(state.segments)
    for candidate, group in groupby(range(len(state.segments)), key=choice.__getitem__):
        yield _segment_row(state, candidate, list(group))


def _segment_row(state: SearchState, candidate: str, members: Sequence[int]) -> StretchCost:
    name = _joined_name(state.segments[members[0]].name, state.segments[members[-1]].name)
    nodes = sum(len(state.segments[i].nodes) for i in members)
    rounds = {} if state.costs is None else {c: state.costs.rounds(c, members) for c in state.costs.segments}
    if candidate not in rounds:
        return StretchCost(name, candidate, nodes)
    costs = {c: Record(list(r)).cost or 0.0 for c, r in rounds.items()}
    other = min((c for c in rounds if c != candidate), key=costs.__getitem__, default="")
    pairs = other and state.survey is not None and state.survey.are_pairs
    against = ratio(rounds[candidate], rounds[other]) if pairs else None
    return StretchCost(name, candidate, nodes, costs[candidate], other, against)


def _joined_name(first: str, last: str) -> str:
    """Return the name of consecutive segments."""
    start, end = first.partition(" to ")[0], last.rpartition(" to ")[2]
    return start if start == end else f"{start} to {end}"
