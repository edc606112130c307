"""A backend whose library says itself what it takes: asked once about each kind of node, in regions that can be run."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from torch import nn
from torch._ops import OpOverload
from torch.export import Dim

from delegate.backend.aot import Options, PreprocessResult, Region
from delegate.backend.asking import AskingBackend
from delegate.backend.compiler_process import AotPart
from delegate.backend.exported import exported_program
from delegate.backend.isolated import IsolatedBackend, Outcomes
from delegate.backend.region import one_node_region
from delegate.backend.selected import SelectedBackend
from delegate.edge.export import to_edge
from delegate.edge.node import is_compute, overload
from delegate.verdict import YES, Reason, Verdict, no


class Asking(AskingBackend):
    name = "asking"
    library = "a toy"
    Options: ClassVar = Options

    def __init__(self) -> None:
        super().__init__(Options())
        self.asked: list[Region] = []

    def ask(self, region: Region) -> Verdict:
        self.asked.append(region)
        large = any(value.numel() > 20 for value in region.constants.values())
        return no(Reason.SIZE, "its constant is large") if large else YES

    def preprocess(self, region: Region) -> PreprocessResult:
        raise NotImplementedError


class Unconfigured(Asking):
    def __init__(self, options: Options) -> None:
        super().__init__()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.small, self.large = nn.Linear(4, 4), nn.Linear(4, 8)

    def forward(self, x):
        values, places = self.small(x).relu().max(1)
        rest = self.large(self.small(x)).relu().view(x.shape[0] * 2, 4)
        return values, places, rest


class Regions(Asking):
    """It exports every region that it is asked about, as libraries do that take programs of torch.export."""

    def ask(self, region: Region) -> Verdict:
        exported_program(region)
        return YES


def test_sizes_that_do_not_follow_from_the_inputs_are_refused():
    """A slice of a size that was computed from another input's."""

    class Cut(nn.Module):
        def forward(self, x, y):
            return x[: y.shape[0] // 2] * 2

    n, m = Dim("n", min=8, max=16), Dim("m", min=4, max=8)
    program = to_edge(torch.export.export(Cut(), (torch.ones(9), torch.ones(5)), dynamic_shapes=({0: n}, {0: m})))
    verdicts = {str(node.target): Regions().check(node) for node in program.graph.nodes if is_compute(node)}
    assert verdicts["aten.mul.Tensor"]
    refused = verdicts["aten.slice.Tensor"]
    assert refused.reason is Reason.REFUSED
    assert "does not follow from the sizes" in refused.message


def test_it_is_asked_once_about_each_kind_of_node():
    backend = Asking()
    program = to_edge(torch.export.export(Net(), (torch.randn(3, 4),)), preserve_ops=frozenset({"aten.linear.default"}))
    nodes = [n for n in program.graph.nodes if is_compute(n)]
    verdicts = {n.name: backend.check(n) for n in nodes}
    assert {name for name, verdict in verdicts.items() if not verdict} == {"linear_2"}
    assert verdicts["linear_2"].reason is Reason.SIZE
    assert len(backend.asked) == len(nodes) - 1  # the first layer is there twice
    assert [backend.check(n) for n in nodes] == list(verdicts.values())
    assert len(backend.asked) == len(nodes) - 1


@pytest.mark.parametrize("shapes", [None, {"x": {0: Dim("n", max=9)}}], ids=["static", "dynamic"])
def test_what_it_is_asked_about_can_be_run(shapes):
    program = to_edge(torch.export.export(Net(), (torch.randn(3, 4),), dynamic_shapes=shapes))
    nodes = [n for n in program.graph.nodes if is_compute(n) and isinstance(n.meta["val"], torch.Tensor | tuple)]
    assert nodes
    for node in nodes:
        region = one_node_region(node)
        given = [torch.randn(*(int(s) for s in n.meta["val"].shape)) for n in region.inputs]
        results = exported_program(region).module()(*given)
        for result, output in zip(results, region.outputs, strict=True):
            assert result.shape == tuple(int(s) for s in output.meta["val"].shape), node
            assert result.dtype == output.meta["val"].dtype


class Multiples(nn.Module):
    """Sizes that follow from multiples of others, and one that does not."""

    def forward(self, x):
        doubled = torch.cat([x, x])
        return doubled.view(2, x.shape[0], 4), x.view(-1).view(x.shape[0], 2, 2)


def test_sizes_follow_from_their_multiples():
    program = to_edge(
        torch.export.export(Multiples(), (torch.randn(3, 4),), dynamic_shapes=({0: Dim("n", min=2, max=9)},))
    )
    views = [n for n in program.graph.nodes if n.target is torch.ops.aten.view.default]
    halved = next(n for n in views if n.meta["val"].shape[0] == 2)
    for n in (3, 7):
        (found,) = exported_program(one_node_region(halved)).module()(torch.randn(2 * n, 4))
        assert found.shape == (2, n, 4)


def test_sizes_that_depend_on_data_are_refused():
    program = to_edge(torch.export.export(Picked(), (torch.randn(3, 4),)))
    backend = Asking()
    verdicts = [backend.check(n) for n in program.graph.nodes if n.name.startswith(("index", "nonzero"))]
    assert verdicts
    assert {v.reason for v in verdicts} == {Reason.DYNAMIC_SHAPE}
    assert backend.check(next(n for n in program.graph.nodes if n.name.startswith("relu")))


class Picked(nn.Module):
    def forward(self, x):
        return x[x[:, 0] > -9].relu()


def test_views_stay_where_an_importer_wants_them():
    program = to_edge(torch.export.export(Net(), (torch.randn(3, 4),)))
    (view,) = (n for n in program.graph.nodes if n.target is torch.ops.aten.view.default and n.name.startswith("view"))
    region = one_node_region(view)
    assert "reshape" in str(exported_program(region).graph)
    assert "reshape" not in str(exported_program(region, keep_views=True).graph)


class Branch(nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,)) * 2


def test_control_flow_is_not_queried():
    """Its branches are graphs, which have no shape and dtype."""
    program = to_edge(torch.export.export(Branch(), (torch.randn(3, 4),)))
    part = AotPart("asking", "no_such_module:Aot", "{}")
    isolated_part = IsolatedBackend(part, 60.0, Outcomes(lambda: "asking", None))
    backend = SelectedBackend("asking", Unconfigured, Options(), isolated_part)
    verdicts = {str(n.target): backend.check(n) for n in program.graph.nodes if is_compute(n)}
    assert verdicts.pop("cond") == no(Reason.OPERATOR, "asking does not run control flow")
    assert verdicts.keys() == {"aten.sum.dim_IntList", "aten.gt.Scalar", "aten.mul.Tensor"}
    assert all(verdicts.values())


@torch.library.custom_op("asking::increment", mutates_args=("x",))
def increment(x: torch.Tensor) -> None:
    x += 1


class Incremented(nn.Module):
    def forward(self, x):
        y = x * 2
        increment(y)
        return y


def test_an_operator_that_writes_to_its_arguments_is_no_control_flow():
    """Torch calls it through an operator of the same class as conditions."""

    class Writing(Unconfigured):
        def check(self, node):
            return YES if overload(node) is torch.ops.asking.increment.default else super().check(node)

    program = to_edge(torch.export.export(Incremented(), (torch.randn(3, 4),)))
    backend = SelectedBackend("asking", Writing, Options())
    (node,) = (n for n in program.graph.nodes if is_compute(n) and not isinstance(n.target, OpOverload))
    assert backend.check(node) is YES


def test_it_says_of_every_operator_that_the_library_is_asked():
    assert Asking.conditions("aten.relu.default") == ("a toy is queried about each node.",)
