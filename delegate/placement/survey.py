"""Survey: what stretches and borders cost, from programs that are watched while they run whole, or from earlier."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from statistics import median
from typing import Protocol

from delegate.errors import DelegateError
from delegate.partitioner.saved import SavedPlan
from delegate.placement.calm import Calm
from delegate.placement.composing import composed
from delegate.placement.costs import Costs, Record, Stretch
from delegate.placement.plans import Task, WholePlan, merged, own_plans, trial_of
from delegate.placement.racing import SURVEYED, measured, rounds
from delegate.placement.stretches import digest
from delegate.placement.surveying import Rounds, extra_of, joined_of, steps_by_stretch
from delegate.placement.trials import LATE, Bench, Trial
from delegate.plugins import one_line

_LEAST = 3  # rounds, to go on with
_NEVER = [math.inf]  # what passing from one candidate to another takes, where that could not be measured

Pair = tuple[str, str]


class Known(Protocol):
    """What was measured earlier."""

    def find(self, candidates: Sequence[str], what: str) -> list[float] | None:
        """The seconds of rounds, where they are known."""

    def keep(self, candidates: Sequence[str], what: str, seconds: Sequence[float]) -> None:
        """Have them found."""


class Survey:
    """Measures stretches of one method on several candidates. What fails at that is left out.

    Args:
        task: what is placed.
        stretches: of the method.
        plans: candidate -> its own plan.
        known: from earlier; None where nothing is.
        bench: where programs run.
        calm: what is known of how long programs wait for a core.
        keeps: whether what is found may be kept; not where other work had the cores until now.

    Attributes:
        notes: what could not be measured, for people.
        are_pairs: whether all was measured together, so that rounds of two candidates are pairs.
    """

    def __init__(
        self,
        task: Task,
        stretches: Sequence[Stretch],
        plans: Mapping[str, WholePlan],
        known: Known | None,
        bench: Bench,
        calm: Calm,
        *,
        keeps: bool = True,
    ) -> None:
        self._task, self._stretches, self._plans = task, stretches, dict(plans)
        self._known, self._bench, self._calm, self._keeps = known, bench, calm, keeps
        self._lowering = next(iter(plans.values())).candidate.lowering
        edge = self._lowering.edge()
        self._digests = [digest(edge, s) for s in stretches]
        self._pieces = {c: [self._find([c], d) for d in self._digests] for c in plans}
        self._whole = {c: self._find([c], self._all) for c in plans}
        self._crossing = {pair: self._find(pair, self._all) for pair in combinations(plans, 2)}
        found = [self._whole.values(), self._crossing.values(), *self._pieces.values()]
        self.are_pairs = all(rounds is None for each in found for rounds in each)
        self.notes: list[str] = []

    @property
    def _all(self) -> str:
        return "-".join(self._digests)

    @property
    def _pairs(self) -> list[Pair]:
        """Those of the candidates that are left."""
        return list(combinations(self._plans, 2))

    def _find(self, candidates: Sequence[str], what: str) -> list[float] | None:
        return None if self._known is None else self._known.find(candidates, what)

    def costs(self, has_time: Callable[[], bool], progress: Callable[[str], None]) -> Costs | None:
        """What all costs; None where there was no time for that, or fewer than two candidates can be cut."""
        cuts: dict[tuple[str, ...], tuple[Trial, SavedPlan]] = {}
        for name in list(self._plans):
            if any(rounds is None for rounds in self._pieces[name]):
                cut = self._cut((name,), has_time, progress)
                if cut is None:
                    del self._plans[name]
                    continue
                cuts[name,] = cut
        if len(self._plans) < 2:
            return None
        for pair in self._pairs:
            if self._crossing[pair] is None:
                cut = self._cut(pair, has_time, progress)
                if cut is None:
                    self._crossing[pair] = _NEVER
                else:
                    cuts[pair] = cut
        self._measure(cuts, has_time, progress)
        if len(self._plans) < 2:
            return None
        pairs = self._pairs
        pieces = {name: [rounds or [] for rounds in self._pieces[name]] for name in self._plans}
        joined = {name: joined_of(self._stretches, pieces[name], self._whole[name] or []) for name in self._plans}
        crossing = {p: max(median(self._crossing[p] or [0.0]), 0.0) for p in pairs}
        return Costs(pieces, joined, crossing | {pair[::-1]: seconds for pair, seconds in crossing.items()})

    def _measure(
        self,
        cuts: Mapping[tuple[str, ...], tuple[Trial, SavedPlan]],
        has_time: Callable[[], bool],
        progress: Callable[[str], None],
    ) -> None:
        """Run what is not known yet, and keep what it takes. A candidate that fails at it is out."""
        whole = {
            name: trial_of(f"whole {name}", p.lowered, p.options, self._task, is_watched=True)
            for name, p in self._plans.items()
            if self._whole[name] is None
        }
        trials = [*(trial for trial, _ in cuts.values()), *whole.values()]
        if not trials:
            return
        progress(f"measuring {len(self._stretches)} stretches on {', '.join(self._plans)}")
        records = measured(trials, self._bench, rounds(SURVEYED), has_time, calm=self._calm)
        self._keeps = self._keeps and all(r.is_calm for r in records.values())
        self.notes += [f"{name}: {r.failure}" for name, r in records.items() if r.failure not in ("", LATE)]
        measured_ones = {names for names, (trial, _) in cuts.items() if len(records[trial.name].steps) >= _LEAST}
        for name in list(self._plans):
            runs = name not in whole or len(records[whole[name].name].steps) >= _LEAST
            if not runs or ((name,) in cuts and (name,) not in measured_ones):
                late = "" if has_time() else " in the budget"
                self.notes.append(f"stretches on {name}: they could not be measured{late}")
                del self._plans[name]
        for name in whole.keys() & self._plans.keys():
            self._whole[name] = self._kept([name], self._all, _totals(records[whole[name].name]))
        found = {n: steps_by_stretch(records[t.name], self._stretches, p) for n, (t, p) in cuts.items()}
        for name in self._plans:
            if (name,) in cuts:
                self._add(name, found[name,])
        for pair in self._pairs:
            if pair in measured_ones:
                both = [self._pieces[name] for name in pair]
                extra = extra_of(found[pair], [both[i % 2][i] or [] for i in range(len(self._stretches))])
                self._crossing[pair] = self._kept(pair, self._all, [extra])
            elif pair in cuts:
                self._crossing[pair] = _NEVER

    def _add(self, name: str, found: Rounds) -> None:
        for number, seconds in enumerate(found):
            if self._pieces[name][number] is None:
                self._pieces[name][number] = self._kept([name], self._digests[number], seconds)

    def _kept(self, candidates: Sequence[str], what: str, seconds: list[float]) -> list[float]:
        if self._known is not None and self._keeps:
            self._known.keep(candidates, what, seconds)
        return seconds

    def _cut(
        self, names: tuple[str, ...], has_time: Callable[[], bool], progress: Callable[[str], None]
    ) -> tuple[Trial, SavedPlan] | None:
        """The program with those stretches as partitions of their own whose cost is wanted, on these candidates by
        turns; None where it cannot be had."""
        title = "/".join(names)
        if not has_time():
            self.notes.append(f"stretches on {title}: the budget was over before they were compiled")
            return None
        count = len(self._stretches)
        new = [i for i in range(count) if len(names) > 1 or self._pieces[names[0]][i] is None]
        progress(f"compiling {len(new)} stretches for {title}")
        choice = [names[i % len(names)] for i in range(count)]
        try:
            plan = composed(own_plans(self._plans), self._stretches, choice, apart=new)
            lowered = self._lowering.planned(plan, keep_all=True)
        except DelegateError as error:
            self.notes.append(f"stretches on {title}: {one_line(error)}")
            return None
        options = merged(self._plans[name] for name in names)
        return trial_of(f"cut {title}", lowered, options, self._task, is_watched=True), lowered.plan


def _totals(record: Record) -> list[float]:
    return [sum(steps.values()) for steps in record.steps]
