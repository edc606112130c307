"""Plans that mix candidates: by what stretches cost on each, those that promise to be better than any of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby

from delegate.placement.choice import Choice, choice_of, choices
from delegate.placement.composing import composed
from delegate.placement.costs import Costs
from delegate.placement.plans import WholePlan, own_plans
from delegate.placement.search import Search
from delegate.placement.stretches import stretches
from delegate.placement.survey import Survey

_SURVEYED = 0.7  # the share of the budget after which no more is measured of stretches
_WORTH = 0.99  # a mixed plan is tried where it should take less than this share of the best plan of one candidate
_MOST_SURVEYED = 4  # candidates
_MOST_MIXED = 3  # plans
_DEARER = (0.0, 0.01, 0.03)  # of the whole: what passing to another candidate may take beyond what was measured


def mixed(search: Search, best: str) -> list[WholePlan]:
    """Plans on several candidates that should be better than the best one alone."""
    plans = {p.candidate.name: p for p in _to_survey(search, best)}
    if len(plans) < 2:
        return []
    _survey(search, plans)
    return [] if search.found.costs is None else _compiled(search, _promising(search.found.costs), plans)


def survey_first(search: Search) -> None:
    """Measure the stretches on the first candidates, whatever the whole took: for costs of another machine."""
    first = next(iter(search.found.plans.values()))
    own = [p for p in search.found.plans.values() if p.candidate.lowering is first.candidate.lowering]
    plans = list({p.candidate.backend: p for p in reversed(own)}.values())[::-1][:_MOST_SURVEYED]
    if len(plans) > 1 and not search.is_simple:
        _survey(search, {p.candidate.name: p for p in plans})


def _promising(costs: Costs) -> list[Choice]:
    """The best choices by what stretches cost, also where passing from one candidate to another takes more."""
    found: dict[tuple[str, ...], Choice] = {}
    single = min(choice_of(costs, (name,) * len(rounds)).seconds for name, rounds in costs.stretches.items())
    for extra in _DEARER:
        dearer = {pair: seconds + extra * single for pair, seconds in costs.crossing.items()}
        best = choices(Costs(costs.stretches, costs.joined, dearer), 1)[0]
        if best.is_mixed and best.seconds < _WORTH * single:
            found.setdefault(best.candidates, best)
    return list(found.values())[:_MOST_MIXED]


def _to_survey(search: Search, best: str) -> list[WholePlan]:
    """The plans of one candidate that are worth a look stretch by stretch, one of each backend."""
    if search.is_simple:
        return []
    found: dict[str, WholePlan] = {}
    for plan in search.worth_a_look(best):
        if plan.candidate.backend in found:
            continue
        if len(found) == _MOST_SURVEYED:
            search.found.not_tried.append(f"stretches on {plan.name}: {_MOST_SURVEYED} others are faster")
        else:
            found[plan.candidate.backend] = plan
    return [plan for plan in search.found.plans.values() if plan in found.values()]


def _survey(search: Search, plans: Mapping[str, WholePlan]) -> None:
    """Measure what stretches cost on candidates."""
    found = search.found
    found.stretches = stretches(next(iter(plans.values())).candidate.lowering.edge())
    if len(found.stretches) < 2:
        found.not_tried.append("plans on several candidates: the method is narrow nowhere")
        return
    given = (found.stretches, plans, search.known, search.bench, search.calm)
    found.survey = Survey(search.task, *given, keeps=found.is_calm)
    found.costs = found.survey.costs(partial(search.has_time, _SURVEYED), search.progress)
    found.not_tried += found.survey.notes


def _compiled(search: Search, found: Sequence[Choice], plans: Mapping[str, WholePlan]) -> list[WholePlan]:
    """The plans of choices, those with the fewest parts first."""
    made: list[WholePlan] = []
    for choice in sorted(found, key=lambda c: len(_runs(c.candidates))):
        name = " | ".join(_runs(choice.candidates))
        name = name if all(name != p.name for p in made) else f"{name} ({len(made) + 1})"
        plan = composed(own_plans(plans), search.found.stretches, choice.candidates)
        compiled = search.compiled(name, plan, choice.candidates, plans, choice=choice.candidates)
        made += [] if compiled is None else [compiled]
    return made


def _runs(choice: Sequence[str]) -> list[str]:
    """The candidates in turn."""
    return [name for name, _ in groupby(choice)]
