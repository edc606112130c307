"""Plans whose branches run in parallel."""

from __future__ import annotations

from collections.abc import Mapping

from delegate.placement.branches import find_branches
from delegate.placement.compose import compose_branches
from delegate.placement.plans import MethodPlan, saved_plans
from delegate.placement.search import Search

SEPARATOR = " + "  # between the candidates of branches that run at the same time, in the name of a plan
_MAX_CANDIDATES = 3  # candidates, on each of which all branches run


def compile_parallel_plans(search: Search, best: str) -> list[MethodPlan]:
    """Compile plans with parallel branches: all on one candidate, or one of two branches on the second best."""
    first = search.state.plans[best]
    if not search.is_timed or first.lowered.plan.together:  # the rules decide what runs in parallel
        return []
    search.state.branches = find_branches(first.candidate.lowering.edge())
    count = len(search.state.branches)
    if count < 2:
        return []
    plans: dict[str, MethodPlan] = {}
    for plan in search.competitive_plans(best):  # of a candidate's own plans the fastest
        plans.setdefault(plan.candidate.name, plan)
    ways = [(name,) * count for name in list(plans)[:_MAX_CANDIDATES]]
    other = next((n for n, p in plans.items() if p.candidate.backend != first.candidate.backend), None)
    if other is not None and count == 2:
        ways += [(first.candidate.name, other), (other, first.candidate.name)]
    compiled = (_compile(search, way, plans) for way in ways)
    return [plan for plan in compiled if plan is not None]


def _compile(search: Search, way: tuple[str, ...], plans: Mapping[str, MethodPlan]) -> MethodPlan | None:
    """Compile the plan with one candidate per branch, or return None if nothing runs in parallel."""
    plan = compose_branches(saved_plans(plans), search.state.branches, way, way[0])
    if not plan.together:
        return None
    compiled = search.compile(SEPARATOR.join(way), plan, way, plans, branch_choice=way)
    return compiled if compiled is not None and compiled.lowered.plan.together else None
