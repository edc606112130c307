"""What all steps on the way to the plan of one method share: its time, its measurements, and what was found so far."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from delegate.errors import DelegateError
from delegate.measured import PlanCost
from delegate.partitioner.saved import SavedPlan
from delegate.placement.calm import Calm
from delegate.placement.costs import Record
from delegate.placement.found import Found
from delegate.placement.plans import Examiner, Progress, Task, WholePlan, merged, trial_of
from delegate.placement.racing import compared
from delegate.placement.survey import Known
from delegate.placement.trials import Bench, Seat
from delegate.plugins import one_line
from delegate.program.model import Program

_HOPELESS = 2.5  # a candidate that takes so many times the best one's time is not asked about its parts


@dataclass(frozen=True)
class Search:
    """The search for the plan of one method.

    Args:
        task: what is to be placed.
        bench: where programs are measured.
        examine: looks at their results.
        known: what stretches cost, from earlier.
        progress: is told in a few words what is done.
        clock: seconds.
        start: of the search, by the clock.
        found: about the method's plans so far.
        calm: what is known of how long programs wait for a core.
    """

    task: Task
    bench: Bench
    examine: Examiner
    known: Known | None
    progress: Progress
    clock: Callable[[], float]
    start: float
    found: Found = field(default_factory=Found)
    calm: Calm = field(default_factory=Calm)

    @property
    def spent(self) -> float:
        """Seconds so far."""
        return self.clock() - self.start

    @property
    def is_timed(self) -> bool:
        """Whether plans are compared that are made of the candidates' own."""
        return self.task.mixes and self.task.objective in ("latency", "throughput")

    @property
    def is_simple(self) -> bool:
        """Whether there is nothing to mix."""
        return not self.is_timed or len(self.task.candidates) < 2

    def has_time(self, share: float = 1.0) -> bool:
        """Whether less than this share of the budget is spent."""
        return self.spent < share * self.task.budget

    def accurate(self, names: Iterable[str]) -> list[str]:
        """Those that keep the bound."""
        return [name for name in names if name not in self.found.inaccurate]

    def race(self, plans: Sequence[WholePlan], share: float) -> dict[str, Record]:
        """What rounds show of whole plans, until it is known which is the best, or this share of the budget is over."""
        self.progress(f"measuring {', '.join(p.name for p in plans)}")
        trials = [trial_of(p.name, p.lowered, p.options, self.task, self.task.objective) for p in plans]
        check = partial(self._looked_at, {p.name: p.lowered.program for p in plans})
        inaccurate = self.found.inaccurate
        return compared(trials, self.bench, check, inaccurate, partial(self.has_time, share), self.has_time, self.calm)

    def _looked_at(self, programs: Mapping[str, Program], seats: Mapping[str, Seat]) -> Mapping[str, str]:
        """The programs that are out for what they give, and why."""
        failed, inaccurate = self.examine(seats, programs)
        self.found.inaccurate.update(inaccurate)
        return failed

    def compiled(
        self, name: str, plan: SavedPlan, candidates: Sequence[str], plans: Mapping[str, WholePlan], **given: Any
    ) -> WholePlan | None:
        """A plan of several candidates; None where there is no time for it or it cannot be compiled.

        Args:
            name: for people.
            plan: that is to be compiled.
            candidates: that it is of, the first one's lowering compiles it.
            plans: candidate -> its own plan.
            given: what else a `WholePlan` says.
        """
        if not self.has_time():
            self.found.not_tried.append(f"{name}: the budget was over before it was compiled")
            return None
        first = plans[candidates[0]].candidate
        self.progress(f"compiling for {name}")
        try:
            lowered = first.lowering.planned(plan)
        except DelegateError as error:
            self.found.failed.append(PlanCost(name, 0, why=one_line(error)))
            return None
        options = merged(plans[c] for c in dict.fromkeys(candidates))
        return WholePlan(name, lowered, first, options=options, **given)

    def worth_a_look(self, best: str) -> list[WholePlan]:
        """The plans of one candidate whose parts may be of use: the fastest first, none that is hopelessly slow.

        All are of the same lowering as the best.
        """
        least = self.found.records[best].cost or 0.0
        own = self.found.plans[best].candidate.lowering
        ran = {name: cost for name, r in self.found.records.items() if not r.failure and (cost := r.cost) is not None}
        worth = []
        for name in sorted(self.accurate(ran), key=ran.__getitem__):
            plan = self.found.plans[name]
            if plan.candidate.lowering is not own:
                continue
            if ran[name] > _HOPELESS * least:
                self.found.not_tried.append(f"parts on {name}: it takes {ran[name] / least:.1f} times as long")
            else:
                worth.append(plan)
        return worth
