"""The measured policy: candidates' own plans, plans that mix them by stretches, and which of all is taken."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from delegate.errors import DelegateError
from delegate.measured import PlanCost
from delegate.partitioner.saved import SavedPlan
from delegate.placement.branches import branches
from delegate.placement.calm import Calm
from delegate.placement.choice import Choice, choice_of, choices
from delegate.placement.composing import beside, composed
from delegate.placement.costs import Costs, Record
from delegate.placement.found import Found, placement_of
from delegate.placement.plans import Examiner, Placed, Task, WholePlan, merged, own_plans, trial_of
from delegate.placement.racing import DOUBT, compared, winner
from delegate.placement.stretches import stretches
from delegate.placement.survey import Known, Survey
from delegate.placement.trials import Bench, Seat
from delegate.plugins import one_line

_COMPILED, _ALONE, _SURVEYED = 0.6, 0.4, 0.7  # shares of the budget after which a stage gives way to the next
_WORTH = 0.99  # a mixed plan is tried where it should take less than this share of the best plan of one candidate
_APART = 2.0  # seconds between both races, for what disturbs one of them to end
_HOPELESS = 2.5  # a candidate that takes so many times the best one's time is not asked about stretches
_MOST_SURVEYED = 4  # candidates
_MOST_MIXED = 3  # plans
_MOST_BESIDE = 3  # candidates, on each of which all branches run
_AGAIN = 3  # times that a graph is planned anew, for an operator that was taken apart

BESIDE = " + "  # between the candidates of branches that run at the same time, in the name of a plan


class Placer:
    """Chooses the plan of one method.

    Args:
        task: what is to be placed.
        bench: where programs are measured.
        examine: looks at their results.
        known: what stretches cost, from earlier.
        progress: is told in a few words what is done.
        clock: seconds.
        pause: lets so many seconds pass; None where the numbers are known already, so that none are confirmed.
    """

    def __init__(
        self,
        task: Task,
        bench: Bench,
        examine: Examiner,
        known: Known | None = None,
        progress: Callable[[str], None] = lambda text: None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] | None = time.sleep,
    ) -> None:
        self.task, self._bench, self._examine, self._known = task, bench, examine, known
        self._progress, self._clock, self._start, self._pause = progress, clock, clock(), pause
        self._found, self._calm = Found(), Calm()

    def place(self) -> Placed:
        """The plan to take: the preferred candidate's, where none could be measured.

        Raises:
            DelegateError: no candidate can be compiled.
        """
        self._lower_alone()
        self._found.records = self._race(self._found.plans.values(), 1.0 if self._is_simple else _ALONE)
        best = winner(self._found.records, self._accurate(self._found.plans))
        if best is None:
            self._found.not_tried.append("a choice: not one plan that may be taken was measured")
            return self._taken(self._unmeasured())
        raced = self._clock()
        mixed = [*self._mixed(best), *self._beside(best)]
        again = [p for name, p in self._found.plans.items() if name == best or self._is_rival(name, best)]
        if mixed or (len(again) > 1 and self._is_timed and self._pause is not None):
            best = self._confirmed(best, again, mixed, raced)
        return self._taken(best)

    def _confirmed(self, best: str, again: Sequence[WholePlan], mixed: Sequence[WholePlan], raced: float) -> str:
        """The plan that wins once more, some time after the first race, beside those that came after it."""
        if self._pause is not None:
            self._pause(max(0.0, min(_APART, 0.05 * self.task.budget) - (self._clock() - raced)))
        self._found.plans.update((plan.name, plan) for plan in mixed)
        final = self._race([*again, *mixed], 1.0)
        won = winner(final, self._accurate(p.name for p in (*again, *mixed)))
        was_disturbed = won is not None and not final[won].is_calm and self._found.records[best].is_calm
        if won is None or was_disturbed:
            self._found.not_tried += ["the best plan once more: other work had the cores"] * was_disturbed
            self._found.final = {p.name: final[p.name] for p in mixed}
            return best
        self._found.final = final
        return won

    def _accurate(self, names: Iterable[str]) -> list[str]:
        """Those that keep the bound."""
        return [name for name in names if name not in self._found.inaccurate]

    def _is_rival(self, name: str, best: str) -> bool:
        """Whether it may turn out to be better than the best one."""
        record, least = self._found.records[name], self._found.records[best].cost or 0.0
        runs = not record.failure and record.cost is not None and name not in self._found.inaccurate
        return runs and (record.cost or 0.0) < DOUBT * least

    def _unmeasured(self) -> str:
        """The plan to take where none was measured: the first that runs, the nearest to torch's where none keeps the
        bound."""
        runs = [n for n in self._found.plans if not self._found.records[n].failure] or list(self._found.plans)
        return next(iter(self._accurate(runs)), max(runs, key=lambda n: self._examine.sqnr_db(n) or -math.inf))

    @property
    def was_cut_short(self) -> bool:
        """Whether more budget might find another plan."""
        return not self._has_time(1.0) or any("budget" in what for what in self._found.not_tried)

    @property
    def was_disturbed(self) -> bool:
        """Whether other work had the cores while the plan was chosen."""
        return not self._found.is_calm

    @property
    def _is_timed(self) -> bool:
        """Whether plans are compared that are made of the candidates' own."""
        return self.task.mixes and self.task.objective in ("latency", "throughput")

    @property
    def _is_simple(self) -> bool:
        """Whether there is nothing to mix."""
        return not self._is_timed or len(self.task.candidates) < 2

    def _has_time(self, share: float) -> bool:
        return self._clock() - self._start < share * self.task.budget

    def _lower_alone(self) -> None:
        """Compile the candidates' own plans, again where one of them changed the graph that all are plans of."""
        for _ in range(_AGAIN):
            before = [c.lowering.edge() for c in self.task.candidates]
            self._found.plans, self._found.failed, self._found.not_tried = {}, [], []
            self._lower_each()
            if all(c.lowering.edge() is edge for c, edge in zip(self.task.candidates, before, strict=True)):
                return

    def _lower_each(self) -> None:
        seen: dict[Any, str] = {}
        for candidate in self.task.candidates:
            if self._found.plans and not self._has_time(_COMPILED):
                self._found.not_tried.append(f"{candidate.name}: the budget was over before it was compiled")
                continue
            self._progress(f"compiling for {candidate.name}")
            try:
                lowered = candidate.lowering.alone(candidate.backend)
            except DelegateError as error:
                if not self._found.plans and candidate is self.task.candidates[-1]:
                    raise
                self._found.failed.append(PlanCost(candidate.name, 0, why=one_line(error)))
                continue
            same = (id(candidate.lowering), frozenset(lowered.plan.places().items()), repr(candidate.options))
            if same in seen:
                self._found.not_tried.append(f"{candidate.name}: it gives the same plan as {seen[same]}")
                continue
            seen[same] = candidate.name
            self._found.plans[candidate.name] = WholePlan(candidate.name, lowered, candidate, options=candidate.options)

    def _race(self, plans: Iterable[WholePlan], share: float) -> dict[str, Record]:
        plans = list(plans)
        self._progress(f"measuring {', '.join(p.name for p in plans)}")
        programs = {p.name: p.lowered.program for p in plans}

        def check(seats: Mapping[str, Seat]) -> Mapping[str, str]:
            failed, inaccurate = self._examine(seats, programs)
            self._found.inaccurate.update(inaccurate)
            return failed

        trials = [trial_of(p.name, p.lowered, p.options, self.task, self.task.objective) for p in plans]
        return compared(
            trials,
            self._bench,
            check,
            self._found.inaccurate,
            lambda: self._has_time(share),
            lambda: self._has_time(1.0),
            self._calm,
        )

    def _mixed(self, best: str) -> list[WholePlan]:
        """Plans on several candidates that should be better than the best one alone."""
        plans = self._to_survey(best)
        if len(plans) < 2:
            return []
        by_name = {p.candidate.name: p for p in plans}
        self._look_at(by_name)
        return [] if self._found.costs is None else self._lower_mixed(self._promising(self._found.costs), by_name)

    def survey(self) -> None:
        """Measure the stretches on the first candidates, whatever the whole took: for costs of another machine."""
        first = next(iter(self._found.plans.values()))
        own = [p for p in self._found.plans.values() if p.candidate.lowering is first.candidate.lowering]
        plans = list({p.candidate.backend: p for p in reversed(own)}.values())[::-1][:_MOST_SURVEYED]
        if len(plans) > 1 and not self._is_simple:
            self._look_at({p.candidate.name: p for p in plans})

    def _look_at(self, plans: Mapping[str, WholePlan]) -> None:
        """Measure what stretches cost on candidates."""
        first = next(iter(plans.values()))
        self._found.stretches = stretches(first.candidate.lowering.edge())
        if len(self._found.stretches) < 2:
            self._found.not_tried.append("plans on several candidates: the method is narrow nowhere")
            return
        given = (self._found.stretches, plans, self._known, self._bench, self._calm)
        self._found.survey = Survey(self.task, *given, keeps=self._found.is_calm)
        self._found.costs = self._found.survey.costs(lambda: self._has_time(_SURVEYED), self._progress)
        self._found.not_tried += self._found.survey.notes

    def _to_survey(self, best: str) -> list[WholePlan]:
        """The plans of one candidate that are worth a look stretch by stretch, of the same lowering as the best."""
        if self._is_simple:
            return []
        found: dict[str, WholePlan] = {}
        for plan in self._worth_a_look(best):
            if plan.candidate.backend in found:
                continue
            if len(found) == _MOST_SURVEYED:
                self._found.not_tried.append(f"stretches on {plan.name}: {_MOST_SURVEYED} others are faster")
            else:
                found[plan.candidate.backend] = plan
        return [plan for plan in self._found.plans.values() if plan in found.values()]

    def _worth_a_look(self, best: str) -> list[WholePlan]:
        """The plans of one candidate that are not hopelessly slow, of the same lowering as the best, the fastest
        first."""
        least = self._found.records[best].cost or 0.0
        own = self._found.plans[best].candidate.lowering
        ran = {name: cost for name, r in self._found.records.items() if not r.failure and (cost := r.cost) is not None}
        found = []
        for name in sorted(self._accurate(ran), key=ran.__getitem__):
            plan = self._found.plans[name]
            if plan.candidate.lowering is not own:
                continue
            if ran[name] > _HOPELESS * least:
                self._found.not_tried.append(f"parts on {name}: it takes {ran[name] / least:.1f} times as long")
            else:
                found.append(plan)
        return found

    def _promising(self, costs: Costs) -> list[Choice]:
        """The best choices by what stretches cost, also where passing from one candidate to another takes more."""
        found: dict[tuple[str, ...], Choice] = {}
        single = min(choice_of(costs, (c,) * len(self._found.stretches)).seconds for c in costs.stretches)
        for extra in (0.0, 0.01, 0.03):
            dearer = {pair: seconds + extra * single for pair, seconds in costs.crossing.items()}
            best = choices(Costs(costs.stretches, costs.joined, dearer), 1)[0]
            if best.is_mixed and best.seconds < _WORTH * single:
                found.setdefault(best.candidates, best)
        return list(found.values())[:_MOST_MIXED]

    def _beside(self, best: str) -> list[WholePlan]:
        """Plans whose branches run at the same time: all on one candidate, or one of two on the second best."""
        first = self._found.plans[best]
        if not self._is_timed or first.lowered.plan.together:  # the rules say what runs at the same time
            return []
        self._found.branches = branches(first.candidate.lowering.edge())
        if len(self._found.branches) < 2:
            return []
        plans = {p.candidate.name: p for p in self._worth_a_look(best)}
        count = len(self._found.branches)
        ways = [(name,) * count for name in list(plans)[:_MOST_BESIDE]]
        other = next((n for n, p in plans.items() if p.candidate.backend != first.candidate.backend), None)
        if other is not None and count == 2:
            ways += [(first.candidate.name, other), (other, first.candidate.name)]
        made = (self._lower_beside(way, plans) for way in ways)
        return [plan for plan in made if plan is not None]

    def _lower_beside(self, way: tuple[str, ...], plans: Mapping[str, WholePlan]) -> WholePlan | None:
        plan = beside(own_plans(plans), self._found.branches, way, way[0])
        if not plan.together:
            return None
        made = self._lower_choice(BESIDE.join(way), plan, way, plans, beside=way)
        return made if made is not None and made.lowered.plan.together else None

    def _lower_choice(
        self, name: str, plan: SavedPlan, candidates: Sequence[str], plans: Mapping[str, WholePlan], **given: Any
    ) -> WholePlan | None:
        """A plan of several candidates, compiled; None where there is no time for it or it cannot be."""
        if not self._has_time(1.0):
            self._found.not_tried.append(f"{name}: the budget was over before it was compiled")
            return None
        first = plans[candidates[0]].candidate
        self._progress(f"compiling for {name}")
        try:
            lowered = first.lowering.planned(plan)
        except DelegateError as error:
            self._found.failed.append(PlanCost(name, 0, why=one_line(error)))
            return None
        options = merged(plans[c] for c in dict.fromkeys(candidates))
        return WholePlan(name, lowered, first, options=options, **given)

    def _lower_mixed(self, found: Sequence[Choice], plans: Mapping[str, WholePlan]) -> list[WholePlan]:
        made: list[WholePlan] = []
        for choice in sorted(found, key=lambda c: len(_runs(c.candidates))):
            name = " | ".join(_runs(choice.candidates))
            name = name if all(name != p.name for p in made) else f"{name} ({len(made) + 1})"
            plan = composed(own_plans(plans), self._found.stretches, choice.candidates)
            lowered = self._lower_choice(name, plan, choice.candidates, plans, choice=choice.candidates)
            made += [] if lowered is None else [lowered]
        return made

    def _taken(self, chosen: str) -> Placed:
        if self._examine.is_random:
            self._found.not_tried.append("results: not compared, for the method draws random numbers")
        spent = self._clock() - self._start
        if not self._has_time(1.0):
            self._found.not_tried.append("more rounds: the budget was over")
        plan = self._found.plans[chosen]
        told = placement_of(self._found, self.task, self._examine, chosen, spent)
        return Placed(plan.candidate, plan.lowered.plan, plan.options, told)


def _runs(choice: Sequence[str]) -> list[str]:
    """The candidates in turn."""
    return [name for name, _ in groupby(choice)]
