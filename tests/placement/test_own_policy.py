"""Test placement by a policy of the user, which has one file and no other part of the project."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import delegate
from delegate import PlacementPolicy, SupportTable
from delegate.errors import ConfigError, PartitionError
from delegate.partitioner.saved import SavedPartition
from delegate.testing import assert_same
from examples.placement.one_backend import OneBackend
from tests.support.sampling import every

pytestmark = pytest.mark.usefixtures("vector")

EXAMPLE = Path(__file__).parents[2] / "examples" / "placement" / "one_backend.py"
X = torch.linspace(-1, 1, 256).reshape(2, 128)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(128, 128), nn.Linear(128, 128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.first(x)) + x
        x = torch.cond(x.sum() > 0, lambda x: torch.tanh(x) * x, lambda x: torch.tanh(x) + x, (x,))
        return torch.tanh(self.second(torch.cumsum(x, 1))) * 2 + x


def export() -> torch.export.ExportedProgram:
    torch.manual_seed(0)
    with torch.no_grad():
        return torch.export.export(Net().eval(), (X,))


class Recorder(PlacementPolicy):
    """A policy that keeps its table, and returns a fixed result."""

    def __init__(self, result: object = None) -> None:
        self.result = result
        self.tables: list[SupportTable] = []

    def place(self, table: SupportTable) -> delegate.SavedPlan:
        self.tables.append(table)
        return table.plan(lambda node: None) if self.result is None else self.result  # type: ignore[return-value]


class LastOf(PlacementPolicy):
    def place(self, table: SupportTable) -> delegate.SavedPlan:
        return table.plan(lambda node: node.supported_by[-1] if node.supported_by else None)


def places(program: delegate.CompiledProgram) -> dict[str, str]:
    return {node.name: node.backend for node in program.report.nodes}


@pytest.mark.parametrize("backends", every(2, [["vector", "xnnpack"], ["xnnpack", "vector"]]), ids=str)
def test_the_example_uses_the_backend_with_the_most_work(backends: list[str]) -> None:
    program = delegate.to_backend(export(), backends, placement=OneBackend())
    assert {p.backend for p in program.report.partitions} == {"xnnpack"}
    assert places(program) == places(delegate.to_backend(export(), ["xnnpack"]))
    assert_same(program(X), export().module()(X))


@pytest.mark.extended
def test_the_example_runs() -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("forward: 1 partition on ")


def test_nodes_run_where_the_policy_places_them() -> None:
    program = delegate.to_backend(export(), ["vector", "xnnpack"], placement=LastOf())
    plain = delegate.to_backend(export(), ["xnnpack", "vector"])
    assert places(program) == places(plain)
    assert any(n.verdicts["vector"].message == "by the plan" for n in program.report.nodes)


def test_a_policy_may_place_nothing() -> None:
    program = delegate.to_backend(export(), ["vector", "xnnpack"], placement=Recorder())
    assert set(places(program).values()) == {"portable"}


def test_the_table_has_every_node_of_every_graph_and_all_backends_in_order() -> None:
    policy = Recorder()
    program = delegate.to_backend(export(), ["vector", "xnnpack"], placement=policy)
    (table,) = policy.tables
    assert table.backends == ("vector", "xnnpack")
    assert len({(n.graph, n.identity) for n in table.nodes}) == len(table.nodes) == len(program.report.nodes)
    assert {n.graph for n in table.nodes} == {"forward", "forward.true_graph_0", "forward.false_graph_0"}
    linear = next(n for n in table.nodes if n.op == "aten.linear.default")
    assert (linear.module, linear.work, linear.supported_by) == ("first", 2 * 2 * 128 * 128, ("xnnpack",))
    tanh = next(n for n in table.nodes if n.op == "aten.tanh.default")
    assert tanh.supported_by == ("vector", "xnnpack")


def test_support_does_not_depend_on_the_order_of_the_backends() -> None:
    first, second = Recorder(), Recorder()
    delegate.to_backend(export(), ["vector", "xnnpack"], placement=first)
    delegate.to_backend(export(), ["xnnpack", "vector"], placement=second)
    a, b = ({(n.graph, n.identity): {*n.supported_by} for n in p.tables[0].nodes} for p in (first, second))
    assert a == b


@pytest.mark.parametrize(
    ("graph", "name", "backend", "why"),
    [
        ("forward", "first:aten.linear.default#0", "vector", "vector does not support it"),
        ("forward", "third:aten.linear.default#0", "vector", "there is no such node"),
        ("forward", "first:aten.linear.default#0", "gpu", "not among the backends"),
    ],
)
def test_a_node_that_its_backend_cannot_run_is_an_error(graph: str, name: str, backend: str, why: str) -> None:
    plan = delegate.SavedPlan((SavedPartition(graph, "p", backend, (name,)),))
    with pytest.raises(PartitionError, match=why):
        delegate.to_backend(export(), ["vector", "xnnpack"], placement=Recorder(plan))


def test_the_result_of_a_policy_is_a_plan() -> None:
    with pytest.raises(ConfigError, match=r"Recorder.place returned a dict"):
        delegate.to_backend(export(), ["xnnpack"], placement=Recorder({}))
