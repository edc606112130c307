"""Cutting and replacing: regions keep their contract, and the lowered graph computes what the model does."""

from __future__ import annotations

import operator
import time
from functools import cache

import pytest
import torch
from torch.fx import Graph

from delegate.edge.node import tensors
from delegate.edge.program import EdgeProgram
from delegate.errors import LoweringError
from delegate.partitioner.extraction import call_delegate, lower
from delegate.partitioner.rules import PartitionRules
from delegate.testing import assert_same
from tests.support.functions import Function
from tests.support.planning import edge, lowered, members, only, planned, program_of, regions, run, without

X = torch.linspace(-2, 2, 48).reshape(2, 2, 3, 4)
KEEP_ALL = PartitionRules(min_partition_size=0)


class Network(torch.nn.Module):
    """Convolution, norm, split, shared weights, a layer that no test backend but one takes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.conv = torch.nn.Conv2d(2, 4, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(4)
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("scale", torch.linspace(1, 2, 4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.norm(self.conv(x)).relu()
        first, second = torch.split(y, 2, 1)
        z = self.linear(first.sin()) + self.linear(second).cos()
        return z * self.scale, y.mean((2, 3))


class Counter(torch.nn.Module):
    """A buffer that every call changes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return (x + self.count).relu()


@cache
def network() -> EdgeProgram:
    """The network in edge dialect; nothing here changes it."""
    return edge(Network(), X)


CHECKS = {
    "all": {"a": without()},
    "none": {"a": only()},
    "no sin": {"a": without("aten.sin")},
    "no split": {"a": without("aten.split", "aten.relu")},
    "no linear": {"a": without("aten.linear", "aten.addmm", "aten.mm", "aten.permute", "aten.t.")},
    "two backends": {"a": only("aten.conv", "aten.relu", "aten.cos"), "b": without("aten.sin")},
}


@pytest.mark.parametrize("checks", CHECKS.values(), ids=CHECKS)
def test_lowered_programs_compute_what_the_model_does(checks) -> None:
    result = lowered(planned(network(), checks, KEEP_ALL))
    result.program.graph.lint()
    assert_same(tuple(run(result, X)), Network().eval()(X))


@pytest.mark.parametrize("checks", CHECKS.values(), ids=CHECKS)
def test_regions_keep_their_contract(checks) -> None:
    program = network()
    originals = {n.name: n for n in program.graph.nodes}
    made = planned(program, checks, KEEP_ALL)
    for name, region in regions(made).items():
        region.graph.lint()
        assert region.name == name
        nodes = list(region.graph.nodes)
        placeholders = [n for n in nodes if n.op == "placeholder"]
        assert placeholders == [*region.inputs, *region.constants]
        assert {n.op for n in nodes} == {"placeholder", "call_function", "output"}
        assert [n.name for n in nodes if n.op == "call_function"] == members(made)[name]
        assert nodes[-1].args == (region.outputs,)
        assert all(len(tensors(n)) == 1 for n in (*region.inputs, *region.outputs))
        assert all(n.meta == originals[n.name].meta for n in nodes[:-1])
        assert all(program.constants[n.name] is tensor for n, tensor in region.constants.items())


@pytest.mark.parametrize("checks", CHECKS.values(), ids=CHECKS)
def test_calls_and_results_in_the_lowered_graph(checks) -> None:
    program = network()
    made = planned(program, checks, KEEP_ALL)
    result = lowered(made)
    originals = {n.name: n for n in program.graph.nodes}
    calls = [n for n in result.program.graph.nodes if n.target is call_delegate]
    assert [n.args[0] for n in calls] == [p.name for p in made.partitions]
    for call in calls:
        region = result.delegates[call.args[0]].region
        assert [n.name for n in call.args[1:]] == [n.name for n in region.inputs]
        assert all(user.target is operator.getitem for user in call.users)
        picked = sorted(call.users, key=lambda user: user.args[1])
        assert [n.name for n in picked] == [n.name for n in region.outputs]
        assert all(n.meta["val"] is originals[n.name].meta["val"] for n in picked)
        assert call.meta["val"] == tuple(n.meta["val"] for n in picked)


def test_constants_that_only_delegates_use_are_gone() -> None:
    program = network()
    assert lowered(planned(program, {"a": without()})).program.constants == {}
    kept = lowered(planned(program, {"a": only()})).program
    used = {n.name for n in program.graph.nodes if n.op == "placeholder" and n.users}
    assert set(kept.constants) == set(program.constants) & used
    scale = next(name for name, full in program.constant_names.items() if full == "scale")
    partly = lowered(planned(program, {"a": without("aten.mul")})).program
    assert scale in partly.constants
    placeholders = {n.name for n in partly.graph.nodes if n.op == "placeholder"}
    assert placeholders == {*partly.constants, *(i.node for i in partly.inputs)}


def test_states_are_inputs_and_their_new_values_outputs() -> None:
    program = edge(Counter(), X)
    made = planned(program, {"a": without()})
    (region,) = regions(made).values()
    assert not region.constants
    assert {n.name for n in region.inputs} == {*program.states, program.inputs[0].node}
    assert len(region.outputs) == 2
    result = lowered(made)
    assert set(result.program.states) <= set(result.program.constants)
    y, count = run(result, X)
    assert_same(y, (X + 1).relu())
    assert_same(count, torch.ones(4))


def test_a_size_that_the_host_needs_keeps_its_tensor() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        y = torch.cat([x, x])
        return y.exp().sin() * y.shape[0]

    program = edge(Function(forward), X, dynamic=(({0: torch.export.Dim("n", min=2, max=9)},),))
    result = lowered(planned(program, {"a": without("aten.mul", "aten.sin")}))
    assert_same(run(result, X)[0], forward(X))


def test_a_plan_is_lowered_whole_and_a_call_runs_only_at_run_time() -> None:
    made = planned(network(), {"a": without()})
    with pytest.raises(LoweringError, match="partition a_0 has no delegate"):
        lower(made, {})
    with pytest.raises(LoweringError, match="delegate a_0 was called in a graph"):
        call_delegate("a_0", X)


def _ladder(size: int) -> EdgeProgram:
    """Two chains that join at every step; every tenth node is a sine."""
    graph = Graph()
    left, right = graph.placeholder("x"), graph.placeholder("y")
    for i in range(size // 2):
        target = torch.ops.aten.sin.default if i % 10 == 9 else torch.ops.aten.relu.default
        left, right = (
            graph.call_function(target, (right,)),
            graph.call_function(torch.ops.aten.add.Tensor, (left, right)),
        )
    graph.output((left, right))
    return program_of(graph)


def test_planning_cutting_and_replacing_grow_linearly() -> None:
    assert _microseconds_per_node(10_000) < 4 * _microseconds_per_node(1_000)


def _microseconds_per_node(size: int) -> float:
    program = _ladder(size)
    times = []
    for _ in range(2):
        start = time.process_time()
        lowered(planned(program, {"a": without("aten.sin")}))
        times.append(time.process_time() - start)
    return min(times) / size * 1e6
