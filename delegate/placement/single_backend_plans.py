"""Single-backend plans: for each candidate the plan that prefers it, and that plan with kernels for other backends."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from delegate.errors import DelegateError
from delegate.measured import PlanCost
from delegate.placement.plans import Candidate, Lowered, MethodPlan
from delegate.placement.search import Search
from delegate.plugins import one_line

_COMPILE_SHARE = 0.6  # of the budget, for compiling candidates
WITHOUT_OTHERS = " and kernels"  # suffix of the plan name
_MAX_REPLANS = 3  # each decomposed operator changes the graph and requires a new plan


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
            state.not_tried.append(f"{candidate.name}: the budget was over before it was compiled")
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
            state.not_tried.append(f"{candidate.name}: it gives the same plan as {seen[key]}")
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
    if not own or len(own) == len(plan.partitions) or plan.together:
        return None
    try:
        return candidate.lowering.compile_plan(replace(plan, partitions=own))
    except DelegateError:  # no kernel runs something of it
        return None


def _plan_key(candidate: Candidate, lowered: Lowered) -> Hashable:
    """Return a key that is equal for equal plans of two candidates."""
    return id(candidate.lowering), frozenset(lowered.plan.places().items()), repr(candidate.options)
