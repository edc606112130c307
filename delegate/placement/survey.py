"""Measure the cost of segments and borders from watched programs, or take it from earlier measurements."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from statistics import median
from typing import Protocol

from delegate.errors import DelegateError
from delegate.partitioner.saved import SavedPlan
from delegate.placement.plans import MethodPlan, Task, make_trial, merge_options, saved_plans
from delegate.placement.runtime.costs import Record, Segment, SegmentCosts
from delegate.placement.runtime.elimination import SURVEY_ROUNDS, fixed_rounds, measure_rounds
from delegate.placement.runtime.noise import NoiseFilter
from delegate.placement.runtime.trials import BUDGET_OVER, RunnerFactory, Trial
from delegate.placement.segments import compose_segments, segment_digest
from delegate.plugins import one_line

_MIN_ROUNDS = 3  # for a usable cost
_NEVER = [math.inf]  # the crossing cost of a pair that could not be measured

Pair = tuple[str, str]
Rounds = list[list[float]]  # per segment, seconds of each round


class SegmentCostStore(Protocol):
    """A store of measured segment costs."""

    def get(self, candidates: Sequence[str], what: str) -> list[float] | None:
        """Return the seconds of each round, or None if they are unknown."""

    def put(self, candidates: Sequence[str], what: str, seconds: Sequence[float]) -> None:
        """Store the seconds of each round."""


class Survey:
    """A measurement of the segments of one method on several candidates. Candidates that fail are dropped.

    Args:
        task: the method.
        segments: of the method.
        plans: candidate -> its single-backend plan.
        known: stored costs, or None.
        factory: starts programs to measure.
        noise_filter: the waiting times of earlier measurements.
        may_store: True if results may be stored; False if other processes used the cores earlier.

    Attributes:
        notes: failures, for the report.
        are_pairs: True if all was measured together, so that rounds of two candidates are pairs.
    """

    def __init__(
        self,
        task: Task,
        segments: Sequence[Segment],
        plans: Mapping[str, MethodPlan],
        known: SegmentCostStore | None,
        factory: RunnerFactory,
        noise_filter: NoiseFilter,
        *,
        may_store: bool = True,
    ) -> None:
        self._task, self._segments, self._plans = task, segments, dict(plans)
        self._known, self._factory, self._noise_filter, self._may_store = known, factory, noise_filter, may_store
        self._lowering = next(iter(plans.values())).candidate.lowering
        edge = self._lowering.edge()
        self._digests = [segment_digest(edge, s) for s in segments]
        self._segment_rounds = {c: [self._get([c], d) for d in self._digests] for c in plans}
        self._uncut = {c: self._get([c], self._all) for c in plans}
        self._crossing = {pair: self._get(pair, self._all) for pair in combinations(plans, 2)}
        earlier = [self._uncut.values(), self._crossing.values(), *self._segment_rounds.values()]
        self.are_pairs = all(rounds is None for each in earlier for rounds in each)
        self.notes: list[str] = []

    @property
    def _all(self) -> str:
        return "-".join(self._digests)

    @property
    def _pairs(self) -> list[Pair]:
        """The pairs of the remaining candidates."""
        return list(combinations(self._plans, 2))

    def _get(self, candidates: Sequence[str], what: str) -> list[float] | None:
        return None if self._known is None else self._known.get(candidates, what)

    def costs(self, has_time: Callable[[], bool], progress: Callable[[str], None]) -> SegmentCosts | None:
        """Return all costs, or None if the time is over or fewer than two candidates can be cut."""
        cuts: dict[tuple[str, ...], tuple[Trial, SavedPlan]] = {}
        for name in list(self._plans):
            if any(rounds is None for rounds in self._segment_rounds[name]):
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
        segment_rounds = {name: [rounds or [] for rounds in self._segment_rounds[name]] for name in self._plans}
        savings = {
            name: savings_per_border(self._segments, segment_rounds[name], self._uncut[name] or [])
            for name in self._plans
        }
        crossing = {p: max(median(self._crossing[p] or [0.0]), 0.0) for p in pairs}
        return SegmentCosts(
            segment_rounds, savings, crossing | {pair[::-1]: seconds for pair, seconds in crossing.items()}
        )

    def _measure(
        self,
        cuts: Mapping[tuple[str, ...], tuple[Trial, SavedPlan]],
        has_time: Callable[[], bool],
        progress: Callable[[str], None],
    ) -> None:
        """Measure and store the unknown costs. Drop candidates that fail."""
        uncut = {
            name: make_trial(f"whole {name}", p.lowered, p.options, self._task, is_watched=True)
            for name, p in self._plans.items()
            if self._uncut[name] is None
        }
        trials = [*(trial for trial, _ in cuts.values()), *uncut.values()]
        if not trials:
            return
        progress(f"measuring {len(self._segments)} segments on {', '.join(self._plans)}")
        records = measure_rounds(
            trials, self._factory, fixed_rounds(SURVEY_ROUNDS), has_time, noise_filter=self._noise_filter
        )
        self._may_store = self._may_store and all(r.is_quiet for r in records.values())
        self.notes += [f"{name}: {r.failure}" for name, r in records.items() if r.failure not in ("", BUDGET_OVER)]
        measured_ones = {names for names, (trial, _) in cuts.items() if len(records[trial.name].steps) >= _MIN_ROUNDS}
        for name in list(self._plans):
            runs = name not in uncut or len(records[uncut[name].name].steps) >= _MIN_ROUNDS
            if not runs or ((name,) in cuts and (name,) not in measured_ones):
                late = "" if has_time() else " in the budget"
                self.notes.append(f"segments on {name}: they could not be measured{late}")
                del self._plans[name]
        for name in uncut.keys() & self._plans.keys():
            self._uncut[name] = self._put([name], self._all, _totals(records[uncut[name].name]))
        by_candidates = {n: rounds_by_segment(records[t.name], self._segments, p) for n, (t, p) in cuts.items()}
        for name in self._plans:
            if (name,) in cuts:
                self._add(name, by_candidates[name,])
        for pair in self._pairs:
            if pair in measured_ones:
                both = [self._segment_rounds[name] for name in pair]
                extra = crossing_cost(by_candidates[pair], [both[i % 2][i] or [] for i in range(len(self._segments))])
                self._crossing[pair] = self._put(pair, self._all, [extra])
            elif pair in cuts:
                self._crossing[pair] = _NEVER

    def _add(self, name: str, rounds_of_segments: Rounds) -> None:
        for number, seconds in enumerate(rounds_of_segments):
            if self._segment_rounds[name][number] is None:
                self._segment_rounds[name][number] = self._put([name], self._digests[number], seconds)

    def _put(self, candidates: Sequence[str], what: str, seconds: list[float]) -> list[float]:
        if self._known is not None and self._may_store:
            self._known.put(candidates, what, seconds)
        return seconds

    def _cut(
        self, names: tuple[str, ...], has_time: Callable[[], bool], progress: Callable[[str], None]
    ) -> tuple[Trial, SavedPlan] | None:
        """Compile the segments of unknown cost as single partitions, on these candidates in rotation.

        Return None if they cannot be compiled or the budget is over.
        """
        title = "/".join(names)
        if not has_time():
            self.notes.append(f"segments on {title}: the budget was spent before they were compiled")
            return None
        count = len(self._segments)
        new = [i for i in range(count) if len(names) > 1 or self._segment_rounds[names[0]][i] is None]
        progress(f"compiling {len(new)} segments for {title}")
        choice = [names[i % len(names)] for i in range(count)]
        try:
            plan = compose_segments(saved_plans(self._plans), self._segments, choice, separate=new)
            compiled = self._lowering.compile_plan(plan, keep_all=True)
        except DelegateError as error:
            self.notes.append(f"segments on {title}: {one_line(error)}")
            return None
        options = merge_options(self._plans[name] for name in names)
        return make_trial(f"cut {title}", compiled, options, self._task, is_watched=True), compiled.plan


def _totals(record: Record) -> list[float]:
    return [sum(steps.values()) for steps in record.steps]


def rounds_by_segment(record: Record, segments: Sequence[Segment], plan: SavedPlan) -> Rounds:
    """Return the seconds of each segment in each round: its partitions and its nodes on kernels.

    Args:
        record: of a program whose partitions cross no segment border.
        segments: of the method.
        plan: of the program.
    """
    by_node = {(s.graph, node): number for number, s in enumerate(segments) for node in s.nodes}
    segment_of = {name: number for number, s in enumerate(segments) for name in s.names}
    for partition in plan.partitions:
        for node in partition.nodes[:1]:
            if (partition.graph, node) in by_node:
                segment_of[partition.name] = by_node[partition.graph, node]
    seconds_of: Rounds = [[] for _ in segments]
    for steps in record.steps:
        spent = [0.0] * len(segments)
        for name, seconds in steps.items():
            if name in segment_of:
                spent[segment_of[name]] += seconds
        for own, total in zip(seconds_of, spent, strict=True):
            own.append(total)
    return seconds_of


def savings_per_border(
    segments: Sequence[Segment], segment_rounds: Rounds, uncut_rounds: Sequence[float]
) -> list[float]:
    """Return the seconds that each border saves if both sides are one partition.

    The saving is the difference between the cut and the uncut program, divided among borders by the passing bytes.

    Args:
        segments: of the method.
        segment_rounds: rounds of the segments, each a partition of its own.
        uncut_rounds: rounds of the uncut program.
    """
    passing = [s.bytes_in + 1 for s in segments[1:]]
    extra = sum(map(median, segment_rounds)) - median(uncut_rounds)
    return [extra * n / sum(passing) for n in passing]


def crossing_cost(changing_rounds: Rounds, segment_rounds: Rounds) -> float:
    """Return the extra seconds at a border between two candidates.

    Args:
        changing_rounds: rounds of the segments of a program that changes the candidate at each border.
        segment_rounds: the same segments on the same candidates, in programs of one candidate.
    """
    beyond = sum(map(median, changing_rounds)) - sum(map(median, segment_rounds))
    return beyond / (len(changing_rounds) - 1)
