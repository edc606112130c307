"""The measured policy: measure single-backend plans, then combined plans, and choose the winner."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from delegate.placement.competing_plans import (
    compile_cross_backend_plans,
    compile_single_backend_plans,
    survey_all_backends,
)
from delegate.placement.plans import ChosenPlan, Comparator, MethodPlan, Progress, Task
from delegate.placement.runtime.elimination import NOISE_FACTOR, choose_winner
from delegate.placement.runtime.trials import BUDGET_OVER, RunnerFactory
from delegate.placement.search import Search, report_placement
from delegate.placement.survey import SegmentCostStore

_SINGLE_BACKEND_SHARE = 0.4  # of the budget, for single-backend plans
_MIN_SQNR_DB = 20.0  # the default of `verify`
_PAUSE = 2.0  # seconds between the two measurements, so that one disturbance does not hit both


class Placer:
    """The search for the best plan of one method.

    Args:
        task: the method, its candidates and the objective.
        factory: starts programs to measure.
        comparator: compares results with the reference.
        known: segment costs of earlier measurements.
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
        known: SegmentCostStore | None = None,
        progress: Progress = lambda text: None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] | None = time.sleep,
        late: float = 0.0,
    ) -> None:
        self._search = Search(task, factory, comparator, known, progress, clock, clock() - late)
        self._state, self._pause = self._search.state, pause

    def place(self) -> ChosenPlan:
        """Choose the plan. If no plan was measured, choose the one of the preferred candidate.

        Raises:
            DelegateError: no candidate can be compiled.
        """
        search, state = self._search, self._state
        compile_single_backend_plans(search)
        state.records = search.measure(list(state.plans.values()), 1.0 if search.is_simple else _SINGLE_BACKEND_SHARE)
        best = choose_winner(state.records, search.accurate(state.plans))
        if best is None:
            state.not_tried.append("a measured choice: no plan that may be chosen was measured")
            return self._result(self._choose_unmeasured())
        raced = search.spent
        others = compile_cross_backend_plans(search, best)
        again = [p for name, p in state.plans.items() if name == best or self._is_rival(name, best)]
        if others or (len(again) > 1 and search.is_timed and self._pause is not None):
            best = self._confirm(best, again, others, raced)
        return self._result(best)

    def survey(self) -> None:
        """Measure the segments on the first candidates too, for a bundle of another machine."""
        survey_all_backends(self._search)

    @property
    def was_cut_short(self) -> bool:
        """True if a larger budget might find another plan."""
        return not self._search.has_time() or any("budget" in what for what in self._state.not_tried)

    @property
    def was_disturbed(self) -> bool:
        """True if other processes used the cores during the measurement."""
        return not self._state.is_quiet

    def _confirm(self, best: str, again: Sequence[MethodPlan], others: Sequence[MethodPlan], raced: float) -> str:
        """Measure the rivals again, together with the combined plans, and return the winner."""
        search, state = self._search, self._state
        if self._pause is not None:
            pause = min(_PAUSE, 0.05 * search.task.budget) - (search.spent - raced)
            self._pause(max(0.0, min(pause, search.task.budget - search.spent)))
        state.plans.update((plan.name, plan) for plan in others)
        final = search.measure([*again, *others], 1.0)
        won = choose_winner(final, search.accurate(p.name for p in (*again, *others)))
        was_disturbed = won is not None and not final[won].is_quiet and state.records[best].is_quiet
        if won is None or was_disturbed:
            state.not_tried += ["the best plan again: other processes used the cores"] * was_disturbed
            state.final = {p.name: final[p.name] for p in others}
            return best
        state.final = final
        return won

    def _is_rival(self, name: str, best: str) -> bool:
        """Return True if a plan may turn out to be faster than the best one."""
        record, least = self._state.records[name], self._state.records[best].cost or 0.0
        runs = not record.failure and record.cost is not None and name not in self._state.inaccurate
        return runs and (record.cost or 0.0) < NOISE_FACTOR * least

    def _choose_unmeasured(self) -> str:
        """Choose a plan without measurements.

        Prefer plans that ran, then plans that had no time to run. Among them take the first that meets the accuracy
        bound, or the most accurate one.
        """
        search, state = self._search, self._state
        why = {name: state.records[name].failure for name in state.plans}
        failed = {state.plans[name].candidate.name for name, words in why.items() if words not in ("", BUDGET_OVER)}
        runs = [n for n, words in why.items() if not words]
        runs = runs or [n for n, p in state.plans.items() if p.candidate.name not in failed] or list(state.plans)
        return next(iter(search.accurate(runs)), max(runs, key=lambda n: search.comparator.sqnr_db(n) or -math.inf))

    def _accuracy_notes(self, chosen: str) -> list[str]:
        """Return the notes for the report on the accuracy of the chosen plan."""
        comparator, sqnr_db = self._search.comparator, self._search.comparator.sqnr_db(chosen)
        if comparator.is_random:
            return ["results: not compared, because the method draws random numbers"]
        if self._state.records_of(chosen)[chosen].failure == BUDGET_OVER and sqnr_db is None:
            return ["results: not compared with torch's, because the budget was spent"]
        if sqnr_db is None or sqnr_db >= _MIN_SQNR_DB:
            return []
        if math.isnan(sqnr_db):
            return ["results: not compared, because torch's results are empty or have no finite numbers"]
        return [f"a plan with more accurate results: this one reaches {sqnr_db:.1f} dB, see docs/reference/accuracy.md"]

    def _result(self, chosen: str) -> ChosenPlan:
        search, state = self._search, self._state
        state.not_tried += self._accuracy_notes(chosen)
        spent = search.spent
        if not search.has_time():
            state.not_tried.append("more rounds: the budget was spent")
        plan = state.plans[chosen]
        placement = report_placement(state, search.task, search.comparator, chosen, spent)
        return ChosenPlan(plan.candidate, plan.lowered.plan, plan.options, placement)
