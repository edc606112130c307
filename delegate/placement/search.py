"""The search for the plan of one method: its state, its steps, and its report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby

from delegate.errors import DelegateError
from delegate.measured import Placement, PlanCost, SegmentCost
from delegate.partitioner.saved import SavedPlan
from delegate.placement.plans import Comparator, MethodPlan, Progress, Task, make_trial, merge_options
from delegate.placement.runtime.costs import Record, Segment, SegmentCosts
from delegate.placement.runtime.elimination import measure_until_decided
from delegate.placement.runtime.noise import NoiseFilter, ratio
from delegate.placement.runtime.trials import ProgramRunner, RunnerFactory
from delegate.placement.survey import SegmentCostStore, Survey
from delegate.plugins import one_line
from delegate.program.model import Program


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
            return "other processes used the cores all the time: only the least busy rounds count, and none is cached"
        return f"{sum(counts)} rounds do not count, because other processes used the cores" if sum(counts) else ""


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


def _cost_rows(state: SearchState, plan: MethodPlan) -> Iterator[SegmentCost]:
    """Yield the segments of a plan, with consecutive ones of one candidate joined."""
    choice = plan.choice or (plan.candidate.name,) * len(state.segments)
    for candidate, group in groupby(range(len(state.segments)), key=choice.__getitem__):
        yield _segment_row(state, candidate, list(group))


def _segment_row(state: SearchState, candidate: str, members: Sequence[int]) -> SegmentCost:
    name = _joined_name(state.segments[members[0]].name, state.segments[members[-1]].name)
    nodes = sum(len(state.segments[i].nodes) for i in members)
    rounds = {} if state.costs is None else {c: state.costs.rounds(c, members) for c in state.costs.segments}
    if candidate not in rounds:
        return SegmentCost(name, candidate, nodes)
    costs = {c: Record(list(r)).cost or 0.0 for c, r in rounds.items()}
    other = min((c for c in rounds if c != candidate), key=costs.__getitem__, default="")
    pairs = other and state.survey is not None and state.survey.are_pairs
    against = ratio(rounds[other], rounds[candidate]) if pairs else None
    return SegmentCost(name, candidate, nodes, costs[candidate], other, against)


def _joined_name(first: str, last: str) -> str:
    """Return the name of consecutive segments."""
    start, end = first.partition(" to ")[0], last.rpartition(" to ")[2]
    return start if start == end else f"{start} to {end}"


_TOO_SLOW = 2.5  # the segments of a plan that takes this many times longer than the best are not measured


@dataclass(frozen=True)
class Search:
    """The search for the plan of one method.

    Args:
        task: the method.
        factory: starts programs to measure.
        comparator: compares results with the reference.
        known: stored segment costs, or None.
        progress: receives a short text for each step.
        clock: returns seconds.
        start: time of the start, by the clock.
        state: the results so far.
        noise_filter: the waiting times of earlier measurements.
    """

    task: Task
    factory: RunnerFactory
    comparator: Comparator
    known: SegmentCostStore | None
    progress: Progress
    clock: Callable[[], float]
    start: float
    state: SearchState = field(default_factory=SearchState)
    noise_filter: NoiseFilter = field(default_factory=NoiseFilter)

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return self.clock() - self.start

    @property
    def is_timed(self) -> bool:
        """True if plans that combine candidates are compared."""
        return self.task.mixes and self.task.objective in ("latency", "throughput")

    @property
    def is_simple(self) -> bool:
        """True if there is nothing to combine."""
        return not self.is_timed or len(self.task.candidates) < 2

    def has_time(self, share: float = 1.0) -> bool:
        """Return True if less than this share of the budget is spent."""
        return self.spent < share * self.task.budget

    def accurate(self, names: Iterable[str]) -> list[str]:
        """Return the plans that meet the accuracy bound."""
        return [name for name in names if name not in self.state.inaccurate]

    def measure(self, plans: Sequence[MethodPlan], share: float) -> dict[str, Record]:
        """Measure plans until the best is known, or this share of the budget is spent."""
        self.progress(f"measuring {', '.join(p.name for p in plans)}")
        trials = [make_trial(p.name, p.lowered, p.options, self.task, self.task.objective) for p in plans]
        check = partial(self._check, {p.name: p.lowered.program for p in plans})
        inaccurate = self.state.inaccurate
        return measure_until_decided(
            trials, self.factory, check, inaccurate, partial(self.has_time, share), self.has_time, self.noise_filter
        )

    def _check(self, programs: Mapping[str, Program], runners: Mapping[str, ProgramRunner]) -> Mapping[str, str]:
        """Compare the results of programs, and return those that fail with the reason."""
        failed, inaccurate = self.comparator(runners, programs)
        self.state.inaccurate.update(inaccurate)
        return failed

    def compile(
        self, name: str, plan: SavedPlan, choice: tuple[str, ...], plans: Mapping[str, MethodPlan]
    ) -> MethodPlan | None:
        """Compile a plan of several candidates, or return None if that fails or the time is over.

        Args:
            name: for the report.
            plan: the plan.
            choice: the candidate of each segment; the lowering of the first one compiles the plan.
            plans: candidate -> its single-backend plan.
        """
        if not self.has_time():
            self.state.not_tried.append(f"{name}: the budget was spent before it was compiled")
            return None
        first = plans[choice[0]].candidate
        self.progress(f"compiling for {name}")
        try:
            lowered = first.lowering.compile_plan(plan)
        except DelegateError as error:
            self.state.failed.append(PlanCost(name, 0, why=one_line(error)))
            return None
        options = merge_options(plans[c] for c in dict.fromkeys(choice))
        return MethodPlan(name, lowered, first, choice, options)

    def competitive_plans(self, best: str) -> list[MethodPlan]:
        """Return the single-backend plans whose segments may be useful, the fastest first.

        All have the lowering of the best plan. Plans that are far slower are left out.
        """
        least = self.state.records[best].cost or 0.0
        own = self.state.plans[best].candidate.lowering
        ran = {name: cost for name, r in self.state.records.items() if not r.failure and (cost := r.cost) is not None}
        competitive = []
        for name in sorted(self.accurate(ran), key=ran.__getitem__):
            plan = self.state.plans[name]
            if plan.candidate.lowering is not own:
                continue
            if ran[name] > _TOO_SLOW * least:
                self.state.not_tried.append(f"segments on {name}: its plan takes {ran[name] / least:.1f} times as long")
            else:
                competitive.append(plan)
        return competitive
