"""The candidates' own plans: each by preference, with that candidate before all others, and each with kernels alone."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from delegate.errors import DelegateError
from delegate.measured import PlanCost
from delegate.placement.plans import Candidate, Lowered, WholePlan
from delegate.placement.search import Search
from delegate.plugins import one_line

_COMPILED = 0.6  # the share of the budget after which no other candidate is compiled
WITHOUT_OTHERS = " and kernels"  # behind the name of a candidate, in the name of a plan
_AGAIN = 3  # times that a graph is planned anew, for an operator that was taken apart


def compile_alone(search: Search) -> None:
    """Compile the candidates' own plans, again where one of them changed the graph that all are plans of.

    Raises:
        DelegateError: no candidate can be compiled.
    """
    candidates = search.task.candidates
    for _ in range(_AGAIN):
        before = [c.lowering.edge() for c in candidates]
        search.found.plans, search.found.failed, search.found.not_tried = {}, [], []
        _compile_each(search)
        if all(c.lowering.edge() is edge for c, edge in zip(candidates, before, strict=True)):
            return


def _compile_each(search: Search) -> None:
    found, seen = search.found, dict[Hashable, str]()
    for candidate in search.task.candidates:
        if found.plans and not search.has_time(_COMPILED):
            found.not_tried.append(f"{candidate.name}: the budget was over before it was compiled")
            continue
        search.progress(f"compiling for {candidate.name}")
        try:
            lowered = candidate.lowering.alone(candidate.backend)
        except DelegateError as error:
            if not found.plans and candidate is search.task.candidates[-1]:
                raise
            found.failed.append(PlanCost(candidate.name, 0, why=one_line(error)))
            continue
        what = _what_runs(candidate, lowered)
        if what in seen:
            found.not_tried.append(f"{candidate.name}: it gives the same plan as {seen[what]}")
            continue
        seen[what] = candidate.name
        found.plans[candidate.name] = WholePlan(candidate.name, lowered, candidate, options=candidate.options)
        without = _without_others(candidate, lowered) if search.has_time(_COMPILED) else None
        if without is not None:
            name = f"{candidate.name}{WITHOUT_OTHERS}"
            found.plans[name] = WholePlan(name, without, candidate, options=candidate.options)


def _without_others(candidate: Candidate, lowered: Lowered) -> Lowered | None:
    """The plan with kernels for what is on other backends, to which passing may take longer; None where nothing is."""
    plan = lowered.plan
    own = tuple(p for p in plan.partitions if p.backend == candidate.backend)
    if not own or len(own) == len(plan.partitions) or plan.together:
        return None
    try:
        return candidate.lowering.planned(replace(plan, partitions=own))
    except DelegateError:  # no kernel runs something of it
        return None


def _what_runs(candidate: Candidate, lowered: Lowered) -> Hashable:
    """What tells a plan from those of other candidates."""
    return id(candidate.lowering), frozenset(lowered.plan.places().items()), repr(candidate.options)
