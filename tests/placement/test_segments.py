"""Test that segments have every node once, in order, and end at narrow places."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

import delegate
from delegate.edge.export import to_edge
from delegate.edge.graphs import identify, identity
from delegate.edge.node import is_compute
from delegate.edge.passes.pipeline import optimize
from delegate.edge.program import EdgeProgram
from delegate.partitioner.saved import SavedPartition, SavedPlan
from delegate.placement.segments import compose_segments, segment_digest, split_into_segments
from delegate.testing import assert_same
from tests.support import zoo
from tests.support.placing import Block, Looping


def edge(module: nn.Module, *inputs: torch.Tensor) -> EdgeProgram:
    with torch.no_grad():
        return identified(torch.export.export(module.eval(), inputs))


def identified(exported: torch.export.ExportedProgram) -> EdgeProgram:
    return identify(optimize(to_edge(exported, name="forward")))


MODELS = {
    "blocks": lambda: edge(nn.Sequential(*(Block() for _ in range(5))), torch.randn(4, 16)),
    "looping": lambda: edge(Looping(), torch.randn(2, 8)),
    "mobilenet_v3_small": functools.cache(lambda: identified(zoo.export("mobilenet_v3_small"))),
    "bert_mini": functools.cache(lambda: identified(zoo.export("bert_mini"))),
    "one operator": lambda: edge(nn.ReLU(), torch.randn(3)),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("most", [1, 5, 12])
def test_every_node_is_in_one_segment(name: str, most: int) -> None:
    program = MODELS[name]()
    segments = split_into_segments(program, most)
    assert 1 <= len(segments) <= most
    assert [node for s in segments for node in s.nodes] == [identity(n) for n in program.graph.nodes if is_compute(n)]
    assert all(s.nodes for s in segments)
    assert all(number > max(s.after, default=-1) for number, s in enumerate(segments))


def test_cuts_are_between_blocks() -> None:
    segments = split_into_segments(MODELS["blocks"](), 5)
    assert [s.name for s in segments] == [f"{i}.up to {i}" for i in range(5)]
    assert [s.bytes_in for s in segments] == [0, *[4 * 16 * 4] * 4]  # and not the 64 within a block
    assert [s.after for s in segments] == [(), (0,), (1,), (2,), (3,)]


def test_a_digest_tells_what_is_computed_and_nothing_else() -> None:
    class Other(nn.Module):
        """The same blocks under other names, with other weights, behind another layer."""

        def __init__(self) -> None:
            super().__init__()
            self.start, self.inner = nn.Linear(8, 16), nn.ModuleList(Block() for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.start(x)
            for block in self.inner:
                x = block(x)
            return x

    first, second = MODELS["blocks"](), edge(Other(), torch.randn(4, 8))
    known = {segment_digest(first, s) for s in split_into_segments(first, 5)}
    segments = split_into_segments(second, 5)
    assert len(known) == 1  # all blocks are alike
    assert known & {segment_digest(second, s) for s in segments}
    assert len(segments) == len({s.nodes for s in segments}) > 1
    larger = edge(nn.Sequential(*(Block() for _ in range(5))), torch.randn(6, 16))
    assert known.isdisjoint(segment_digest(larger, s) for s in split_into_segments(larger, 5))
    assert len(segment_digest(MODELS["looping"](), split_into_segments(MODELS["looping"]())[0])) == 64


def test_graphs_of_control_flow_go_with_their_call() -> None:
    program = MODELS["looping"]()
    graphs = [name for s in split_into_segments(program) for name in s.graphs]
    assert sorted(graphs) == ["forward.false_graph_0", "forward.true_graph_0"]


def test_a_plan_is_composed_of_others() -> None:
    program = MODELS["blocks"]()
    segments = split_into_segments(program, 5)
    nodes = [node for s in segments for node in s.nodes]
    plans = {
        name: SavedPlan((SavedPartition("forward", f"{name}_0", name, tuple(nodes)),), ("aten.linear.default",))
        for name in ("a", "b")
    }
    plan = compose_segments(plans, segments, ["a", "a", "b", "b", "a"])
    assert [(p.backend, p.nodes) for p in plan.partitions] == [
        ("a", (*segments[0].nodes, *segments[1].nodes)),
        ("b", (*segments[2].nodes, *segments[3].nodes)),
        ("a", segments[4].nodes),
    ]
    assert len({p.name for p in plan.partitions}) == 3
    assert plan.whole == ("aten.linear.default",)
    separate = compose_segments(plans, segments, ["a"] * 5, separate=range(5))
    assert [p.nodes for p in separate.partitions] == [s.nodes for s in segments]


@pytest.mark.parametrize("choice", ["one,one,one,one,one", "one,one,two,two,one", "two,one,two,one,two"])
def test_a_composed_plan_is_lowered_as_it_says(choice: str) -> None:
    torch.manual_seed(0)
    module, x = nn.Sequential(*(Block() for _ in range(5))).eval(), torch.randn(4, 16)
    exported = torch.export.export(module, (x,))
    config = {"backends": ["xnnpack:one", "xnnpack:two"]}
    names = [f"xnnpack:{name}" for name in choice.split(",")]
    first = delegate.to_backend(exported, config=config).plan
    second = delegate.to_backend(exported, config={"backends": ["xnnpack:two", "xnnpack:one"]}).plan
    segments = split_into_segments(
        identify(optimize(to_edge(exported, name="forward", preserve_ops=frozenset(first.whole or ())))), 5
    )
    plan = compose_segments({"xnnpack:one": first, "xnnpack:two": second}, segments, names)
    program = delegate.to_backend(exported, config=config, placement=plan)
    assert program.plan.places() == plan.places()
    assert [p.backend for p in program.plan.partitions] == [p.backend for p in plan.partitions]
    assert_same(program(x), module(x))
