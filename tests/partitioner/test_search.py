"""The search for the cheapest plan, with costs that are made up."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from delegate.costs.estimates import Estimates
from delegate.costs.profile import UNKNOWN, MachineProfile, PlaceRates, Rate
from delegate.edge.node import module_path
from delegate.partitioner.rules import PartitionRules
from delegate.partitioner.search import Search
from delegate.verdict import Reason
from tests.support.planning import edge, only, planned, without

X = torch.ones(64, 64)
US = 1e-6


def rates(call: float, **operators: float) -> PlaceRates:
    """Rates in microseconds for each operator of a kind, whatever its size; "function" is every other kind."""
    return PlaceRates(Rate(call * US), {kind: Rate(us * US) for kind, us in operators.items()}, {})


def estimates(**places: PlaceRates) -> Estimates:
    return Estimates(MachineProfile("made up", {UNKNOWN: rates(10, function=10), **places}))


class Layers(nn.Module):
    """Products and functions in turns."""

    def __init__(self, count: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(count))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def backends_of(plan) -> set[str | None]:
    return {n.backend for n in plan.nodes}


@pytest.mark.parametrize(
    ("costs", "expected"),
    [
        (estimates(a=rates(5, function=9), b=rates(5, function=1), portable=rates(0, function=50)), {"b"}),
        (estimates(a=rates(5, function=1), b=rates(50, function=1), portable=rates(0, function=50)), {"a"}),
        (estimates(a=rates(500, function=1), b=rates(500, function=1), portable=rates(0, function=5)), {None}),
        (
            estimates(
                a=rates(1, function=50, product=1), b=rates(1, function=1, product=50), portable=rates(0, function=99)
            ),
            {"a", "b"},
        ),
    ],
    ids=["the faster one", "the cheaper call", "kernels", "each what it does best"],
)
def test_the_cheapest_plan_is_chosen(costs, expected):
    plan = planned(edge(Layers(), X), {"a": without(), "b": without()}, search=Search(costs))
    assert backends_of(plan) == expected
    assert next(iter(plan.seconds.values())) == min(plan.seconds.values())


def test_a_mix_that_saves_less_than_its_calls_is_not_chosen():
    costs = estimates(
        a=rates(20, function=9, product=1), b=rates(20, function=1, product=9), portable=rates(0, function=99)
    )
    plan = planned(edge(Layers(), X), {"a": without(), "b": without()}, search=Search(costs))
    assert len(plan.partitions) == 1


def test_what_the_faster_backend_does_not_support_splits_only_where_it_pays():
    checks = {"a": without("aten.tanh"), "b": without()}
    cheap = estimates(a=rates(1, function=1), b=rates(1, function=20), portable=rates(0, function=99))
    dear = estimates(a=rates(30, function=1), b=rates(30, function=20), portable=rates(0, function=99))
    program = edge(Layers(), X)
    assert backends_of(planned(program, checks, search=Search(cheap))) == {"a", "b"}
    assert backends_of(planned(program, checks, search=Search(dear))) == {"b"}


def test_another_backend_never_makes_the_estimate_worse():
    program = edge(Layers(), X)
    costs = estimates(
        a=rates(5, function=3),
        b=rates(40, function=2, product=60),
        c=rates(1, function=30),
        portable=rates(0, function=40),
    )
    checks = {"a": without(), "b": only("aten.tanh"), "c": only("aten.linear", "aten.addmm", "aten.mm")}
    least = float("inf")
    for count in range(1, len(checks) + 1):
        plan = planned(program, dict(list(checks.items())[:count]), search=Search(costs))
        seconds = next(iter(plan.seconds.values()))
        assert seconds <= least * 1.001
        least = seconds


def test_a_pin_is_obeyed_whatever_it_costs():
    costs = estimates(a=rates(1, function=1), b=rates(1e3, function=1e3), portable=rates(0, function=50))
    rules = PartitionRules(pins={"layers.1": "b", "layers.2": "portable"})
    plan = planned(edge(Layers(), X), {"a": without(), "b": without()}, rules, search=Search(costs))
    products = {module_path(n.node): n.backend for n in plan.nodes if n.op == "aten.addmm.default"}
    assert products == {"layers.0": "a", "layers.1": "b", "layers.2": None, "layers.3": "a"}


def test_nodes_that_another_way_would_run_give_the_reason():
    costs = estimates(a=rates(5, function=9), b=rates(5, function=1), portable=rates(0, function=50))
    plan = planned(edge(Layers(), X), {"a": without(), "b": without()}, search=Search(costs))
    assert {n.verdicts["a"].reason for n in plan.nodes} == {Reason.SLOWER}


def test_a_backend_that_is_a_little_slower_than_kernels_keeps_a_plan_of_its_own():
    """Its estimate is not that of the kernels, so that it can race."""
    costs = estimates(a=rates(60, function=1), portable=rates(0, function=5))
    plan = planned(edge(Layers(), X), {"a": without()}, search=Search(costs))
    assert backends_of(plan) == {None}
    assert plan.seconds["a"] > plan.seconds["portable"]
    assert backends_of(planned(edge(Layers(), X), {"a": without()}, search=Search(costs, "a"))) == {"a"}


def test_equal_costs_go_to_the_first_backend():
    costs = estimates(a=rates(5, function=1), b=rates(5, function=1), portable=rates(0, function=50))
    assert backends_of(planned(edge(Layers(), X), {"b": without(), "a": without()}, search=Search(costs))) == {"b"}


def test_branches_do_not_hide_that_one_backend_runs_everything():
    class Branches(nn.Module):
        def forward(self, x):
            return sum(torch.tanh(x * k) @ x for k in range(1, 6))

    costs = estimates(a=rates(5, function=1), b=rates(5, function=2), portable=rates(0, function=50))
    plan = planned(edge(Branches(), X), {"a": without(), "b": without()}, search=Search(costs))
    assert [p.backend for p in plan.partitions] == ["a"]
