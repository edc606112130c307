"""The search for the plan of one method: its time, its measurements and its results so far."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from delegate.errors import DelegateError
from delegate.measured import PlanCost
from delegate.partitioner.saved import SavedPlan
from delegate.placement.plans import Comparator, MethodPlan, Progress, Task, make_trial, merge_options
from delegate.placement.runtime.costs import Record
from delegate.placement.runtime.elimination import measure_until_decided
from delegate.placement.runtime.noise_filter import NoiseFilter
from delegate.placement.runtime.trials import ProgramRunner, RunnerFactory
from delegate.placement.search_state import SearchState
from delegate.placement.survey import SegmentCostStore
from delegate.plugins import one_line
from delegate.program.model import Program

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
        self, name: str, plan: SavedPlan, candidates: Sequence[str], plans: Mapping[str, MethodPlan], **fields: Any
    ) -> MethodPlan | None:
        """Compile a plan of several candidates, or return None if that fails or the time is over.

        Args:
            name: for the report.
            plan: the plan.
            candidates: of the plan; the lowering of the first one compiles it.
            plans: candidate -> its single-backend plan.
            fields: other fields of the `MethodPlan`.
        """
        if not self.has_time():
            self.state.not_tried.append(f"{name}: the budget was over before it was compiled")
            return None
        first = plans[candidates[0]].candidate
        self.progress(f"compiling for {name}")
        try:
            lowered = first.lowering.compile_plan(plan)
        except DelegateError as error:
            self.state.failed.append(PlanCost(name, 0, why=one_line(error)))
            return None
        options = merge_options(plans[c] for c in dict.fromkeys(candidates))
        return MethodPlan(name, lowered, first, options=options, **fields)

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
                self.state.not_tried.append(f"parts on {name}: it takes {ran[name] / least:.1f} times as long")
            else:
                competitive.append(plan)
        return competitive
