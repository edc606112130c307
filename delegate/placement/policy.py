"""The measured policy: candidates' own plans race, then plans of several candidates with the best, and one is taken."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from delegate.placement.alone import compile_alone
from delegate.placement.found import placement_of
from delegate.placement.mixing import mixed, survey_first
from delegate.placement.plans import Examiner, Placed, Progress, Task, WholePlan
from delegate.placement.racing import DOUBT, winner
from delegate.placement.search import Search
from delegate.placement.survey import Known
from delegate.placement.together import at_once
from delegate.placement.trials import LATE, Bench

_ALONE = 0.4  # the share of the budget after which the race of candidates' own plans gives way to what follows
_NEAR = 20.0  # dB that results should keep, as `verify` asks where nobody says more
_APART = 2.0  # seconds between both races, for what disturbs one of them to end


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
        late: seconds of the budget that are spent already.
    """

    def __init__(
        self,
        task: Task,
        bench: Bench,
        examine: Examiner,
        known: Known | None = None,
        progress: Progress = lambda text: None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] | None = time.sleep,
        late: float = 0.0,
    ) -> None:
        self._search = Search(task, bench, examine, known, progress, clock, clock() - late)
        self._found, self._pause = self._search.found, pause

    def place(self) -> Placed:
        """The plan to take: the preferred candidate's, where none could be measured.

        Raises:
            DelegateError: no candidate can be compiled.
        """
        search, found = self._search, self._found
        compile_alone(search)
        found.records = search.race(list(found.plans.values()), 1.0 if search.is_simple else _ALONE)
        best = winner(found.records, search.accurate(found.plans))
        if best is None:
            found.not_tried.append("a choice: not one plan that may be taken was measured")
            return self._taken(self._unmeasured())
        raced = search.spent
        others = [*mixed(search, best), *at_once(search, best)]
        again = [p for name, p in found.plans.items() if name == best or self._is_rival(name, best)]
        if others or (len(again) > 1 and search.is_timed and self._pause is not None):
            best = self._confirmed(best, again, others, raced)
        return self._taken(best)

    def survey(self) -> None:
        """Measure the stretches on the first candidates too, for costs of another machine."""
        survey_first(self._search)

    @property
    def was_cut_short(self) -> bool:
        """Whether more budget might find another plan."""
        return not self._search.has_time() or any("budget" in what for what in self._found.not_tried)

    @property
    def was_disturbed(self) -> bool:
        """Whether other work had the cores while the plan was chosen."""
        return not self._found.is_calm

    def _confirmed(self, best: str, again: Sequence[WholePlan], others: Sequence[WholePlan], raced: float) -> str:
        """The plan that wins once more, some time after the first race, beside those that came after it."""
        search, found = self._search, self._found
        if self._pause is not None:
            apart = min(_APART, 0.05 * search.task.budget) - (search.spent - raced)
            self._pause(max(0.0, min(apart, search.task.budget - search.spent)))
        found.plans.update((plan.name, plan) for plan in others)
        final = search.race([*again, *others], 1.0)
        won = winner(final, search.accurate(p.name for p in (*again, *others)))
        was_disturbed = won is not None and not final[won].is_calm and found.records[best].is_calm
        if won is None or was_disturbed:
            found.not_tried += ["the best plan once more: other work had the cores"] * was_disturbed
            found.final = {p.name: final[p.name] for p in others}
            return best
        found.final = final
        return won

    def _is_rival(self, name: str, best: str) -> bool:
        """Whether it may turn out to be better than the best one."""
        record, least = self._found.records[name], self._found.records[best].cost or 0.0
        runs = not record.failure and record.cost is not None and name not in self._found.inaccurate
        return runs and (record.cost or 0.0) < DOUBT * least

    def _unmeasured(self) -> str:
        """The plan to take where none was measured: the first that runs, or had no time for that; the nearest to
        torch's where none keeps the bound."""
        search, found = self._search, self._found
        why = {name: found.records[name].failure for name in found.plans}
        failed = {found.plans[name].candidate.name for name, words in why.items() if words not in ("", LATE)}
        runs = [n for n, words in why.items() if not words]
        runs = runs or [n for n, p in found.plans.items() if p.candidate.name not in failed] or list(found.plans)
        return next(iter(search.accurate(runs)), max(runs, key=lambda n: search.examine.sqnr_db(n) or -math.inf))

    def _doubts(self, chosen: str) -> list[str]:
        """What is to be told of the results of the plan that is taken."""
        examine, near = self._search.examine, self._search.examine.sqnr_db(chosen)
        if examine.is_random:
            return ["results: not compared, for the method draws random numbers"]
        if self._found.records_of(chosen)[chosen].failure == LATE and near is None:
            return ["results: not compared with torch's, for the budget was over"]
        if near is None or near >= _NEAR:
            return []
        if math.isnan(near):
            return ["results: not compared, for torch's are empty, or have no finite numbers"]
        return [f"a plan that is near torch's results: this one keeps {near:.1f} dB, see docs/accuracy.md"]

    def _taken(self, chosen: str) -> Placed:
        search, found = self._search, self._found
        found.not_tried += self._doubts(chosen)
        spent = search.spent
        if not search.has_time():
            found.not_tried.append("more rounds: the budget was over")
        plan = found.plans[chosen]
        told = placement_of(found, search.task, search.examine, chosen, spent)
        return Placed(plan.candidate, plan.lowered.plan, plan.options, told)
