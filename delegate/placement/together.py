"""Plans whose branches run at the same time."""

from __future__ import annotations

from collections.abc import Mapping

from delegate.placement.branches import branches
from delegate.placement.composing import beside
from delegate.placement.plans import WholePlan, own_plans
from delegate.placement.search import Search

BESIDE = " + "  # between the candidates of branches that run at the same time, in the name of a plan
_MOST = 3  # candidates, on each of which all branches run


def at_once(search: Search, best: str) -> list[WholePlan]:
    """Plans whose branches run at the same time: all on one candidate, or one of two on the second best."""
    first = search.found.plans[best]
    if not search.is_timed or first.lowered.plan.together:  # the rules say what runs at the same time
        return []
    search.found.branches = branches(first.candidate.lowering.edge())
    count = len(search.found.branches)
    if count < 2:
        return []
    plans: dict[str, WholePlan] = {}
    for plan in search.worth_a_look(best):  # of a candidate's own plans the fastest
        plans.setdefault(plan.candidate.name, plan)
    ways = [(name,) * count for name in list(plans)[:_MOST]]
    other = next((n for n, p in plans.items() if p.candidate.backend != first.candidate.backend), None)
    if other is not None and count == 2:
        ways += [(first.candidate.name, other), (other, first.candidate.name)]
    made = (_compiled(search, way, plans) for way in ways)
    return [plan for plan in made if plan is not None]


def _compiled(search: Search, way: tuple[str, ...], plans: Mapping[str, WholePlan]) -> WholePlan | None:
    """The plan with a candidate for each branch; None where nothing runs at the same time in it."""
    plan = beside(own_plans(plans), search.found.branches, way, way[0])
    if not plan.together:
        return None
    made = search.compiled(BESIDE.join(way), plan, way, plans, beside=way)
    return made if made is not None and made.lowered.plan.together else None
