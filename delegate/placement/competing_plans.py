"""The plans that compete in a search.

Single-backend plans are the plan that prefers a candidate, and that plan with kernels for other backends. Combined
plans have several candidates by segment, chosen by dynamic programming over costs.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from delegate.errors import DelegateError
from delegate.measured import PlanCost
from delegate.placement.plans import Candidate, Lowered, MethodPlan, saved_plans
from delegate.placement.runtime.costs import SegmentCosts
from delegate.placement.search import Search
from delegate.placement.segments import compose_segments, split_into_segments
from delegate.placement.survey import Survey
from delegate.plugins import one_line

_COMPILE_SHARE = 0.6  # of the budget, for compiling candidates
WITHOUT_OTHERS = " and kernels"  # suffix of the plan name
_MAX_REPLANS = 3  # each decomposed operator changes the graph and requires a new plan
_SURVEY_SHARE = 0.7  # of the budget, for measuring segments
_PROMISING = 0.99  # a mixed plan is tried where it should take less than this share of the best plan of one candidate
_MAX_SURVEYED = 4  # candidates
_MAX_PLANS = 3  # plans
_EXTRA_CROSSING = (0.0, 0.01, 0.03)  # of the whole: what passing to another candidate may take beyond what was measured


def compile_single_backend_plans(search: Search) -> None:
    """Compile the plan of each candidate, again if one of them changed the shared graph.

    Raises:
        DelegateError: no candidate can be compiled.
    """
    candidates = search.task.candidates
    for _ in range(_MAX_REPLANS):
        before = [c.lowering.edge() for c in candidates]
        search.state.plans, search.state.failed, search.state.not_tried = {}, [], []
        _compile_each(search)
        if all(c.lowering.edge() is edge for c, edge in zip(candidates, before, strict=True)):
            return


def _compile_each(search: Search) -> None:
    state, seen = search.state, dict[Hashable, str]()
    for candidate in search.task.candidates:
        if state.plans and not search.has_time(_COMPILE_SHARE):
            state.not_tried.append(f"{candidate.name}: the budget was spent before it was compiled")
            continue
        search.progress(f"compiling for {candidate.name}")
        try:
            lowered = candidate.lowering.compile_preferring(candidate.backend)
        except DelegateError as error:
            if not state.plans and candidate is search.task.candidates[-1]:
                raise
            state.failed.append(PlanCost(candidate.name, 0, why=one_line(error)))
            continue
        key = _plan_key(candidate, lowered)
        if key in seen:
            state.not_tried.append(f"{candidate.name}: it has the same plan as {seen[key]}")
            continue
        seen[key] = candidate.name
        state.plans[candidate.name] = MethodPlan(candidate.name, lowered, candidate, options=candidate.options)
        without = _without_others(candidate, lowered) if search.has_time(_COMPILE_SHARE) else None
        if without is not None:
            name = f"{candidate.name}{WITHOUT_OTHERS}"
            state.plans[name] = MethodPlan(name, without, candidate, options=candidate.options)


def _without_others(candidate: Candidate, lowered: Lowered) -> Lowered | None:
    """Return the plan with kernels for the nodes of other backends, or None if there are no such nodes.

    Kernels can be faster, since a change of the backend takes time.
    """
    plan = lowered.plan
    own = tuple(p for p in plan.partitions if p.backend == candidate.backend)
    if not own or len(own) == len(plan.partitions):
        return None
    try:
        return candidate.lowering.compile_plan(replace(plan, partitions=own))
    except DelegateError:  # no kernel runs something of it
        return None


def _plan_key(candidate: Candidate, lowered: Lowered) -> Hashable:
    """Return a key that is equal for equal plans of two candidates."""
    return id(candidate.lowering), frozenset(lowered.plan.places().items()), repr(candidate.options)


class SegmentChoice(NamedTuple):
    """A candidate for every segment.

    Args:
        seconds: the expected cost.
        candidates: one per segment, in order.
    """

    seconds: float
    candidates: tuple[str, ...]

    @property
    def is_mixed(self) -> bool:
        """True if the choice has more than one candidate."""
        return len(set(self.candidates)) > 1


def compile_cross_backend_plans(search: Search, best: str) -> list[MethodPlan]:
    """Compile plans of several candidates that should be faster than the best single-backend plan."""
    plans = {p.candidate.name: p for p in _to_survey(search, best)}
    if len(plans) < 2:
        return []
    _survey(search, plans)
    return [] if search.state.costs is None else _compile(search, _promising(search.state.costs), plans)


def survey_all_backends(search: Search) -> None:
    """Measure the segments on the first candidates, for a bundle of another machine."""
    first = next(iter(search.state.plans.values()))
    own = [p for p in search.state.plans.values() if p.candidate.lowering is first.candidate.lowering]
    plans = list({p.candidate.backend: p for p in reversed(own)}.values())[::-1][:_MAX_SURVEYED]
    if len(plans) > 1 and not search.is_simple:
        _survey(search, {p.candidate.name: p for p in plans})


def _promising(costs: SegmentCosts) -> list[SegmentChoice]:
    """Return the best choices, also with higher crossing costs than were measured."""
    unique: dict[tuple[str, ...], SegmentChoice] = {}
    single = min(cost_choice(costs, (name,) * len(rounds)).seconds for name, rounds in costs.segments.items())
    for extra in _EXTRA_CROSSING:
        dearer = {pair: seconds + extra * single for pair, seconds in costs.crossing.items()}
        best = cheapest_choices(SegmentCosts(costs.segments, costs.savings, dearer), 1)[0]
        if best.is_mixed and best.seconds < _PROMISING * single:
            unique.setdefault(best.candidates, best)
    return list(unique.values())[:_MAX_PLANS]


def _to_survey(search: Search, best: str) -> list[MethodPlan]:
    """Return the single-backend plans whose segments to measure, one per backend."""
    if search.is_simple:
        return []
    chosen: dict[str, MethodPlan] = {}
    for plan in search.competitive_plans(best):
        if plan.candidate.backend in chosen:
            continue
        if len(chosen) == _MAX_SURVEYED:
            search.state.not_tried.append(f"segments on {plan.name}: {_MAX_SURVEYED} others are faster")
        else:
            chosen[plan.candidate.backend] = plan
    return [plan for plan in search.state.plans.values() if plan in chosen.values()]


def _survey(search: Search, plans: Mapping[str, MethodPlan]) -> None:
    """Measure the cost of segments on candidates."""
    state = search.state
    state.segments = split_into_segments(next(iter(plans.values())).candidate.lowering.edge())
    if len(state.segments) < 2:
        state.not_tried.append("plans on several candidates: the method cannot be divided into segments")
        return
    arguments = (state.segments, plans, search.known, search.factory, search.noise_filter)
    state.survey = Survey(search.task, *arguments, may_store=state.is_quiet)
    state.costs = state.survey.costs(partial(search.has_time, _SURVEY_SHARE), search.progress)
    state.not_tried += state.survey.notes


def _compile(search: Search, choices: Sequence[SegmentChoice], plans: Mapping[str, MethodPlan]) -> list[MethodPlan]:
    """Compile the plans of choices, those with the fewest partitions first."""
    compiled_plans: list[MethodPlan] = []
    for choice in sorted(choices, key=lambda c: len(_runs(c.candidates))):
        name = " | ".join(_runs(choice.candidates))
        name = name if all(name != p.name for p in compiled_plans) else f"{name} ({len(compiled_plans) + 1})"
        plan = compose_segments(saved_plans(plans), search.state.segments, choice.candidates)
        compiled = search.compile(name, plan, choice.candidates, plans)
        compiled_plans += [] if compiled is None else [compiled]
    return compiled_plans


def _runs(choice: Sequence[str]) -> list[str]:
    """Return the candidates of consecutive segments, without repetitions."""
    return [name for name, _ in itertools.groupby(choice)]


def cost_choice(costs: SegmentCosts, candidates: tuple[str, ...]) -> SegmentChoice:
    """Return a choice with its expected cost."""
    inside = sum(costs.of(name, segment) for segment, name in enumerate(candidates))
    borders = sum(_border(costs, *pair, border) for border, pair in enumerate(itertools.pairwise(candidates)))
    return SegmentChoice(inside + borders, candidates)


def cheapest_choices(costs: SegmentCosts, most: int) -> list[SegmentChoice]:
    """Return the cheapest choices, the best first.

    The cost after a border depends on the earlier choice only by the candidate before the border. So it is enough to
    store the best choices for each last candidate.

    Args:
        costs: of every segment on every candidate.
        most: the maximum number of choices.
    """
    names = list(costs.segments)
    count = len(costs.segments[names[0]]) if names else 0
    if not count:
        return []
    ways = {name: [SegmentChoice(costs.of(name, 0), (name,))] for name in names}
    for segment in range(1, count):
        ways = {
            name: heapq.nsmallest(
                most,
                (
                    SegmentChoice(
                        way.seconds + costs.of(name, segment) + _border(costs, before, name, segment - 1),
                        (*way.candidates, name),
                    )
                    for before, best_ways in ways.items()
                    for way in best_ways
                ),
            )
            for name in names
        }
    return heapq.nsmallest(most, (way for best_ways in ways.values() for way in best_ways))


def _border(costs: SegmentCosts, before: str, after: str, border: int) -> float:
    """Return the extra seconds of a border beyond its two segments as single partitions."""
    if before == after:
        return -costs.savings[before][border]
    return costs.crossing.get((before, after), 0.0)
