"""Measure the plans of one method: plans of single backends, then mixed ones that corrected estimates promise."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from statistics import median

from delegate.costs.estimates import CorrectedEstimates
from delegate.errors import DelegateError
from delegate.lowering.compiler import Compiler
from delegate.partitioner.plan import Partition, Plan
from delegate.partitioner.saved import BY_THE_PLAN, SavedPlan
from delegate.partitioner.search import MIXED
from delegate.placement.parts import cut_into_parts
from delegate.placement.plans import Candidate, ChosenPlan, Comparator, MethodPlan, Task, make_trial
from delegate.placement.runtime.elimination import (
    NOISE_FACTOR,
    Measurement,
    Record,
    choose_winner,
    ratio,
)
from delegate.placement.runtime.trials import BUDGET_OVER, ProgramRunner, RunnerFactory
from delegate.placement.strategy import Progress
from delegate.plugins import PORTABLE, one_line
from delegate.program.model import Program
from delegate.report.measured import Placement, PlanCost

_COMPILE_SHARE = 0.6  # of the budget, for compiling candidates
_CANDIDATES_SHARE = 0.4  # of the budget, for measuring candidates
_PARTS_SHARE = 0.7  # of the budget, for measuring parts
_MAX_REPLANS = 3  # each decomposed operator changes the graph and requires a new plan
_MAX_WATCHED = 4  # plans whose parts are measured, besides mixed ones
_MAX_MIXED = 3  # plans
_MIN_ROUNDS = 3  # for usable seconds of parts
_TOO_SLOW = 2.5  # the parts of a plan that takes this many times longer than the best are not measured
_NEAR = 5.0  # kernels alone compete if their estimate is this many times the least one
_PROMISING = 0.99  # a mixed plan is tried if it should take less than this share of the best other one
_CUT = ", in parts"  # ends the name of a plan whose partitions are cut
_MIN_SQNR_DB = 20.0  # the default of `verify`
_PAUSE = 2.0  # seconds between the two measurements, so that one disturbance does not hit both


class Placer:
    """The measurement of one method's plans.

    Args:
        task: the method, its candidates and the objective.
        factory: starts programs to measure.
        comparator: compares results with the reference.
        progress: receives a short text for each step.
        clock: returns seconds.
        pause: sleeps for a number of seconds. None if costs come from elsewhere, so that nothing is measured twice.
        late: seconds of the budget that are spent already.
    """

    def __init__(
        self,
        task: Task,
        factory: RunnerFactory,
        comparator: Comparator,
        progress: Progress = lambda text: None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] | None = time.sleep,
        late: float = 0.0,
    ) -> None:
        self._task, self._comparator, self._progress = task, comparator, progress
        self._clock, self._pause, self._start = clock, pause, clock() - late
        self._is_timed = task.mixes and task.objective == "latency"
        compare = None if comparator.is_random else self._compare
        self._measurement = Measurement(factory, self._has_time, compare, comparator.bound)
        self._plans: dict[str, MethodPlan] = {}
        self._records: dict[str, Record] = {}  # of the last measurement of each plan
        self._busy = 0  # rounds that do not count, because other processes used the cores
        self._inaccurate = self._measurement.inaccurate  # plans that miss the accuracy bound -> the reason
        self._sqnr_db = self._measurement.sqnr_db  # of compared plans
        self._failed: list[PlanCost] = []  # plans that could not be compiled
        self._not_tried: list[str] = []

    def place(self) -> ChosenPlan:
        """Choose the plan, or if no plan was measured, the one of the preferred candidate.

        Raises:
            DelegateError: no candidate can be compiled.
        """
        self._compile_candidates()
        self._records = self._measure(list(self._plans.values()), _CANDIDATES_SHARE if self._is_timed else 1.0)
        best = choose_winner(self._records, self._accurate(self._plans))
        if best is None:
            self._not_tried.append("a measured choice: no plan that may be chosen was measured")
            return self._result(self._choose_unmeasured())
        measured = self._spent
        rivals = [plan for name, plan in self._plans.items() if name == best or self._is_rival(name, best)]
        mixed = self._compile_mixed(best)
        if mixed or (len(rivals) > 1 and self._is_timed and self._pause is not None):
            best = self._confirm(best, rivals, mixed, measured)
        return self._result(best)

    def watch_candidates(self) -> None:
        """Measure the parts of the first plans too, for a bundle of another machine."""
        first = next(iter(self._plans.values())).candidate.compiler
        plans = [plan for plan in self._plans.values() if plan.candidate.compiler is first]
        if self._is_timed:
            self._watch(plans[:_MAX_WATCHED], None)

    @property
    def was_cut_short(self) -> bool:
        """True if a larger budget might find another plan."""
        return not self._has_time() or any("budget" in what for what in self._not_tried)

    @property
    def was_disturbed(self) -> bool:
        """True if other processes used the cores during the measurement."""
        return not all(r.is_quiet for r in self._records.values() if not r.failure)

    # -- compiling ----------------------------------------------------------------------------------------------------

    def _compile_candidates(self) -> None:
        """Compile the plan of each candidate, again if one of them changed the shared graph.

        Raises:
            DelegateError: no candidate can be compiled.
        """
        method, candidates = self._task.method, self._task.candidates
        for _ in range(_MAX_REPLANS):
            before = [c.compiler.methods[method].edge for c in candidates]
            self._plans, self._failed, self._not_tried = {}, [], []
            for candidate in candidates:
                self._compile_candidate(candidate)
            if not self._plans and not self._failed:  # no candidate can run anything
                self._compile(replace(candidates[0], way=PORTABLE))
            if all(c.compiler.methods[method].edge is edge for c, edge in zip(candidates, before, strict=True)):
                return

    def _compile_candidate(self, candidate: Candidate) -> None:
        if self._plans and not self._has_time(_COMPILE_SHARE):
            self._not_tried.append(f"{candidate.name}: the budget was spent before it was compiled")
        elif candidate.way == PORTABLE and (times := self._times_as_long(candidate)) > _NEAR:
            self._not_tried.append(f"{candidate.name}: it is estimated to take {times:.0f} times as long")
        else:
            try:
                self._compile(candidate)
            except DelegateError as error:
                if not self._plans and candidate is self._task.candidates[-1]:
                    raise
                self._failed.append(PlanCost(candidate.name, 0, why=one_line(error)))

    def _times_as_long(self, candidate: Candidate) -> float:
        """Return the estimated seconds of a candidate over the least ones of its compiler."""
        others = (other for other in self._plans.values() if other.candidate.compiler is candidate.compiler)
        seconds = next((other.plan.total_seconds() for other in others), {})
        least = min(seconds.values(), default=0.0)
        return seconds[candidate.way] / least if least else 1.0

    def _compile(self, candidate: Candidate) -> None:
        """Compile the plan of a candidate, and add it unless it equals an earlier one; raises DelegateError."""
        self._progress(f"compiling for {candidate.name}")
        method, way = self._task.method, candidate.way
        fork = candidate.compiler.fork_for_way(method, way)
        program, _ = fork.compile()
        if way != PORTABLE and all(spec.backend != way for spec in program.delegates):
            fork = candidate.compiler.fork_for_way(method, way, keep_all=True)  # by estimates none is worth its call
            program, _ = fork.compile()
        if not _takes(way, fork.plans[0]):
            candidate.compiler.methods[method].edge = fork.methods[method].edge
            self._not_tried.append(f"{candidate.name}: it can run nothing of the method")
        elif (other := self._add(candidate.name, candidate, fork, program)) is not None:
            self._not_tried.append(f"{candidate.name}: it has the same plan as {other.name}")

    def _add(self, name: str, candidate: Candidate, fork: Compiler, program: Program) -> MethodPlan | None:
        """Add what a fork of a candidate's compiler has compiled; return the earlier plan that equals it, if any."""
        method = self._task.method
        candidate.compiler.methods[method].edge = fork.methods[method].edge
        compiled = MethodPlan(name, candidate, fork.plans[0], program)
        key = _key(compiled)
        equal = next((other for other in self._plans.values() if _key(other) == key), None)
        if equal is None:
            self._plans[name] = compiled
        return equal

    def _compile_mixed(self, best: str) -> list[MethodPlan]:
        """Compile mixed plans that should be faster than the best one.

        The seconds of parts correct the estimates, by which the next plan is searched, whose parts correct them again.
        """
        to_watch, compiler = self._to_watch(best), self._plans[best].candidate.compiler
        if not to_watch or compiler.costs is None:
            return []
        costs = CorrectedEstimates(compiler.costs, [plan.candidate.way for plan in to_watch])
        options = {name: value for plan in to_watch for name, value in plan.options.items()}
        mixed: list[MethodPlan] = []
        while len(mixed) < _MAX_MIXED and self._watch(to_watch, costs):
            fork = compiler.fork_for_way(self._task.method, MIXED, costs)
            fork.plan()
            (plan,) = fork.plans
            seconds = plan.total_seconds()
            others = [own for way, own in seconds.items() if way != MIXED]
            if not _takes(MIXED, plan) or seconds[MIXED] >= _PROMISING * min(others, default=math.inf):
                break
            if not self._has_time():
                self._not_tried.append("a mixed plan: the budget was spent before it was compiled")
                break
            name = self._name(plan)
            self._progress(f"compiling for {name}")
            try:
                program, _ = fork.compile()
            except DelegateError as error:
                self._failed.append(PlanCost(name, 0, why=one_line(error)))
                break
            candidate = replace(self._plans[best].candidate, way=MIXED, options=options)
            if not _takes(MIXED, fork.plans[0]) or self._add(name, candidate, fork, program) is not None:
                break
            to_watch = [self._plans[name]]
            mixed += to_watch
        return mixed

    def _name(self, plan: Plan) -> str:
        """Return a new name for a mixed plan, of its places."""
        places = dict.fromkeys(p.backend for p in plan.all_partitions())
        stem = " | ".join(places if len(places) > 1 else [*places, PORTABLE])
        count = sum(name.startswith(stem) for name in self._plans)
        return f"{stem} ({count + 1})" if count else stem

    # -- measuring ----------------------------------------------------------------------------------------------------

    def _measure(self, plans: Sequence[MethodPlan], share: float) -> dict[str, Record]:
        """Measure plans until the best is known, or this share of the budget is spent."""
        self._progress(f"measuring {', '.join(p.name for p in plans)}")
        trials = [make_trial(p.name, p.program, p.options, self._task) for p in plans]
        records = self._measurement.race(trials, partial(self._has_time, share))
        self._busy += max((r.busy for r in records.values()), default=0)
        return records

    def _compare(self, name: str, runner: ProgramRunner) -> float | None:
        """Return the SQNR of a plan's results in dB; see `Comparator`."""
        return self._comparator.sqnr_db(name, runner, self._plans[name].program)

    def _to_watch(self, best: str) -> list[MethodPlan]:
        """Return the plans whose parts may be useful in a mixed one, the fastest first, one per way."""
        if not self._is_timed:
            return []
        compiler, least = self._plans[best].candidate.compiler, self._records[best].cost or 0.0
        ran = {n: r.cost for n in self._accurate(self._plans) if (r := self._records[n]).cost and not r.failure}
        chosen: dict[str, MethodPlan] = {}
        for name, cost in sorted(ran.items(), key=lambda item: item[1] or 0.0):
            plan = self._plans[name]
            if plan.candidate.compiler is not compiler or plan.candidate.way in chosen or cost is None:
                continue
            if cost > _TOO_SLOW * least:
                self._not_tried.append(f"{name}{_CUT}: its plan takes {cost / least:.1f} times as long")
            elif len(chosen) == _MAX_WATCHED:
                self._not_tried.append(f"{name}{_CUT}: {_MAX_WATCHED} others are faster")
            else:
                chosen[plan.candidate.way] = plan
        return list(chosen.values())

    def _watch(self, plans: Sequence[MethodPlan], costs: CorrectedEstimates | None) -> bool:
        """Measure the parts of plans, and correct estimates by them; return True if any part was measured."""
        cuts = [(plan, cut) for plan in plans if (cut := self._cut(plan)) is not None]
        self._progress(f"measuring {', '.join(cut.name for _, cut in cuts)}")
        trials = [make_trial(cut.name, cut.program, cut.options, self._task, is_watched=True) for _, cut in cuts]
        records = self._measurement.watch(trials, partial(self._has_time, _PARTS_SHARE))
        is_measured = False
        for whole, cut in cuts:
            record = records[cut.name]
            if len(record.steps) >= _MIN_ROUNDS and costs is not None:
                cost = self._records[whole.name].cost if whole.name in self._records else None
                _correct(costs, cut.plan, record, whole, cost)
                is_measured = True
            else:
                self._not_tried.append(f"{cut.name}: {record.failure or BUDGET_OVER}")
        return is_measured

    def _cut(self, plan: MethodPlan) -> MethodPlan | None:
        """Return a plan with its partitions cut into parts; a mixed plan as it is; None if it cannot be compiled."""
        compiler, name = plan.candidate.compiler, f"{plan.name}{_CUT}"
        if plan.candidate.way == MIXED or compiler.costs is None:
            return replace(plan, name=name)
        self._progress(f"compiling {name}")
        fork = compiler.fork_for_way(self._task.method, plan.candidate.way)
        fork.apply(cut_into_parts(plan.plan, compiler.costs), BY_THE_PLAN)
        try:
            program, _ = fork.compile()
        except DelegateError as error:
            self._not_tried.append(f"{name}: {one_line(error)}")
            return None
        return MethodPlan(name, plan.candidate, fork.plans[0], program)

    def _confirm(self, best: str, rivals: Sequence[MethodPlan], mixed: Sequence[MethodPlan], measured: float) -> str:
        """Measure the rivals again, together with the mixed plans, and return the winner.

        Args:
            best, rivals, mixed: the best plan so far, it and its rivals, and the plans that are not measured yet.
            measured: seconds of the budget that were spent when the rivals were measured.
        """
        if self._pause is not None:
            pause = min(_PAUSE, 0.05 * self._task.budget) - (self._spent - measured)
            self._pause(max(0.0, min(pause, self._task.budget - self._spent)))
        plans = [*rivals, *mixed]
        records = self._measure(plans, 1.0)
        won = choose_winner(records, self._accurate(p.name for p in plans))
        if won is None or (not records[won].is_quiet and self._records[best].is_quiet):
            self._not_tried += ["the best plan again: other processes used the cores"] * (won is not None)
            self._records |= {p.name: records[p.name] for p in mixed}
            return best
        self._records |= records
        return won

    def _is_rival(self, name: str, best: str) -> bool:
        """Return True if a plan may turn out to be faster than the best one."""
        record, least = self._records[name], self._records[best].cost or 0.0
        runs = not record.failure and record.cost is not None and name not in self._inaccurate
        return runs and (record.cost or 0.0) < NOISE_FACTOR * least

    # -- choosing -----------------------------------------------------------------------------------------------------

    def _choose_unmeasured(self) -> str:
        """Choose a plan without measurements.

        Prefer plans that ran, then plans that had no time to run. Among them take the first that meets the accuracy
        bound, or the most accurate one.
        """
        why = {name: self._records[name].failure for name in self._plans}
        runs = [n for n, words in why.items() if not words]
        runs = runs or [n for n, words in why.items() if words == BUDGET_OVER] or list(self._plans)
        return next(iter(self._accurate(runs)), max(runs, key=lambda n: self._sqnr_db.get(n) or -math.inf))

    def _result(self, chosen: str) -> ChosenPlan:
        self._not_tried += self._accuracy_notes(chosen)
        spent = self._spent
        if not self._has_time():
            self._not_tried.append("more rounds: the budget was spent")
        rows = sorted((self._row(plan, chosen) for plan in self._plans.values()), key=_by_cost)
        placement = Placement(
            self._task.method,
            self._task.objective,
            chosen,
            (*rows, *self._failed),
            tuple(dict.fromkeys(self._not_tried)),
            self._task.budget,
            spent,
            busy=self._busy_note(),
        )
        plan = self._plans[chosen]
        return ChosenPlan(plan.candidate, SavedPlan.of([plan.plan]), plan.options, placement)

    def _row(self, plan: MethodPlan, chosen: str) -> PlanCost:
        record, best = self._records[plan.name], self._records[chosen]
        is_pair = plan.name != chosen and record.rounds and best.rounds
        against = ratio(record.rounds, best.rounds) if is_pair else None
        why = record.failure or self._inaccurate.get(plan.name, "")
        partitions, sqnr = len(plan.program.delegates), self._sqnr_db.get(plan.name)
        return PlanCost(plan.name, partitions, record.cost, len(record.rounds), against, sqnr, why)

    def _accuracy_notes(self, chosen: str) -> list[str]:
        """Return the notes for the report on the accuracy of the chosen plan."""
        sqnr_db = self._sqnr_db.get(chosen)
        if self._comparator.is_random:
            return ["results: not compared, because the method draws random numbers"]
        if self._records[chosen].failure == BUDGET_OVER and sqnr_db is None:
            return ["results: not compared with torch's, because the budget was spent"]
        if sqnr_db is None or sqnr_db >= _MIN_SQNR_DB:
            return []
        if math.isnan(sqnr_db):
            return ["results: not compared, because torch's results are empty or have no finite numbers"]
        return [f"a plan with more accurate results: this one reaches {sqnr_db:.1f} dB, see docs/reference/accuracy.md"]

    def _busy_note(self) -> str:
        """Return the note on other processes for the report; empty without a disturbance."""
        if self.was_disturbed:
            return "other processes used the cores all the time: only the least busy rounds count, and none is cached"
        return f"{self._busy} rounds do not count, because other processes used the cores" if self._busy else ""

    @property
    def _spent(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._start

    def _has_time(self, share: float = 1.0) -> bool:
        """Return True if less than this share of the budget is spent."""
        return self._spent < share * self._task.budget

    def _accurate(self, names: Iterable[str]) -> list[str]:
        """Return the plans that meet the accuracy bound."""
        return [name for name in names if name not in self._inaccurate]


def _takes(way: str, plan: Plan) -> bool:
    """Return True if a graph of a plan takes a way, which others may not have."""
    return any(next(iter(part.seconds), None) == way for part in plan.walk())


def _key(plan: MethodPlan) -> Hashable:
    """Return a key that is equal for equal plans."""
    return id(plan.candidate.compiler), frozenset(SavedPlan.of([plan.plan]).places().items()), repr(plan.options)


def _correct(costs: CorrectedEstimates, part_plan: Plan, record: Record, whole: MethodPlan, cost: float | None) -> None:
    """Correct estimates by the median seconds of the partitions and kernels of a program.

    What a cut adds to the seconds of the plan is the call of another partition.

    Args:
        costs: the estimates.
        part_plan: The plan of the program's parts.
        record: the measurement of its parts.
        whole: the same plan before it was cut.
        cost: the measured seconds of that plan; None if it was not measured.
    """
    seconds = {name: median(steps.get(name, 0.0) for steps in record.steps) for name in record.steps[0]}
    total = math.fsum(seconds.values())
    cuts = len(part_plan.partitions) - len(whole.plan.partitions)
    if cost is not None and cuts and total > cost:
        costs.correct_call(whole.candidate.way, (total - cost) / cuts)
        cost = total
    for unit in part_plan.order:
        if unit.name in seconds:
            nodes, place = (unit.nodes, unit.backend) if isinstance(unit, Partition) else ((unit,), PORTABLE)
            costs.correct(place, nodes, seconds[unit.name] * (1.0 if cost is None else cost / total))


def _by_cost(row: PlanCost) -> tuple[bool, float]:
    return row.cost is None, row.cost or 0.0
