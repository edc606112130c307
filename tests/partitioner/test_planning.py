"""Plans: verdicts, preference, tags, small partitions, pins, patterns, refusals, control flow, symbolic sizes."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch.fx import Graph, Node

from delegate.edge.control_flow import subprograms
from delegate.edge.node import is_compute
from delegate.edge.program import EdgeProgram
from delegate.errors import LoweringError, PartitionError
from delegate.partitioner.partitioner import CapabilityPartitioner, Check, Partitioner
from delegate.partitioner.planning import plan
from delegate.partitioner.rules import PartitionRules
from delegate.testing import assert_same
from delegate.verdict import YES, Reason, Verdict, no
from tests.support.functions import Function
from tests.support.planning import (
    chain,
    edge,
    lowered,
    members,
    only,
    part,
    planned,
    program_of,
    run,
    selected,
    without,
)

aten = torch.ops.aten
RELU, SIN, COS, EXP, CLONE = (getattr(aten, n).default for n in ("relu", "sin", "cos", "exp", "clone"))
X = torch.linspace(-1, 1, 6).reshape(2, 3)


def places(made) -> dict[str, str | None]:
    return {n.node.name: n.backend for n in made.nodes}


def reasons(made, backend: str) -> dict[str, Reason | None]:
    return {n.node.name: n.verdicts[backend].reason for n in made.nodes}


@pytest.mark.parametrize(
    ("targets", "checks", "expected"),
    [
        pytest.param((RELU, SIN, COS), {"a": without()}, {"a_0": ["relu", "sin", "cos"]}, id="all"),
        pytest.param((RELU, SIN, COS), {"a": only()}, {}, id="none"),
        pytest.param((RELU, SIN, COS), {"a": without("aten.sin")}, {"a_0": ["relu"], "a_1": ["cos"]}, id="split"),
        pytest.param(
            (RELU, SIN, COS),
            {"a": only("aten.sin"), "b": without()},
            {"b_0": ["relu"], "a_0": ["sin"], "b_1": ["cos"]},
            id="the preferred backend takes its nodes first",
        ),
        pytest.param((RELU, SIN), {"b": without(), "a": without()}, {"b_0": ["relu", "sin"]}, id="preference"),
        pytest.param((CLONE, SIN, CLONE), {"a": without("aten.sin")}, {}, id="layout only is no work"),
        pytest.param((CLONE, SIN, CLONE), {"a": without()}, {"a_0": ["clone", "sin", "clone_1"]}, id="layout inside"),
    ],
)
def test_partitions(targets, checks: Mapping[str, Check], expected: Mapping[str, list[str]]) -> None:
    assert members(planned(chain(*targets), checks)) == expected


@pytest.mark.parametrize(
    ("least", "expected"),
    [
        (0, {"a_0": ["relu", "cos"], "a_1": ["exp"]}),
        (1, {"a_0": ["relu", "cos"], "a_1": ["exp"]}),
        (2, {"a_0": ["relu", "cos"]}),
        (3, {}),
    ],
)
def test_partitions_that_are_too_small_are_given_back(least: int, expected: Mapping[str, list[str]]) -> None:
    made = planned(chain(RELU, COS, SIN, EXP), {"a": without("aten.sin")}, PartitionRules(min_partition_size=least))
    assert members(made) == expected
    kept = {name for names in expected.values() for name in names}
    given_back = {name for name, reason in reasons(made, "a").items() if reason is Reason.TOO_SMALL}
    assert given_back == {"relu", "cos", "exp"} - kept


def test_nodes_given_back_complete_partitions_of_the_next_backend() -> None:
    program = chain(RELU, COS, SIN, EXP, COS)
    made = planned(program, {"a": only("aten.sin"), "b": without()}, PartitionRules(min_partition_size=2))
    assert members(made) == {"b_0": ["relu", "cos", "sin", "exp", "cos_1"]}
    assert reasons(made, "a")["sin"] is Reason.TOO_SMALL


def test_verdicts_of_every_backend_are_kept_for_every_node() -> None:
    made = planned(chain(RELU, SIN), {"a": only("aten.sin"), "b": without("aten.sin")})
    assert [{k: bool(v) for k, v in n.verdicts.items()} for n in made.nodes] == [
        {"a": False, "b": True},
        {"a": True, "b": False},
    ]


def test_tags_separate_partitions() -> None:
    def check(node: Node) -> Verdict:
        return Verdict(tag="trigonometry") if node.target in (SIN, COS) else YES

    made = planned(chain(RELU, SIN, COS, EXP), {"a": check})
    assert members(made) == {"a_0": ["relu"], "a_1": ["sin", "cos"], "a_2": ["exp"]}


RULES = [
    (PartitionRules(exclude=("aten.sin",)), {"sin": Reason.EXCLUDED}),
    (PartitionRules(exclude=("aten.sin.default",)), {"sin": Reason.EXCLUDED}),
    (PartitionRules(exclude=("aten.*s",)), {"cos": Reason.EXCLUDED}),
    (PartitionRules(exclude=("aten::sin",)), {"sin": Reason.EXCLUDED}),  # as torch registers it
    (PartitionRules(include=("aten.sin", "aten.relu")), {"cos": Reason.EXCLUDED}),
    (PartitionRules(backend_exclude={"a": ("aten.cos",)}), {"cos": Reason.EXCLUDED}),
    (PartitionRules(backend_include={"a": ("aten.[cs]*",)}), {"relu": Reason.EXCLUDED}),
    (PartitionRules(node_pins={"relu": "portable"}), {"relu": Reason.PINNED}),
    (PartitionRules(node_pins={"relu": "a", "*": "portable"}), {"sin": Reason.PINNED, "cos": Reason.PINNED}),
    (PartitionRules(pins={"net": "portable"}), {"sin": Reason.PINNED}),
    (PartitionRules(pins={"net.*": "portable"}), {"sin": Reason.PINNED}),
    (PartitionRules(pins={"net": "portable"}, node_pins={"sin": "a"}), {}),
]


@pytest.mark.parametrize(("rules", "refused"), RULES, ids=range(len(RULES)))
def test_rules(rules: PartitionRules, refused: Mapping[str, Reason]) -> None:
    program = chain(RELU, SIN, COS)
    sin = next(n for n in program.graph.nodes if n.name == "sin")
    sin.meta["nn_module_stack"] = {"0": ("L['self'].net.0", torch.nn.ReLU)}
    made = planned(program, {"a": without()}, rules)
    assert {name: reason for name, reason in reasons(made, "a").items() if reason} == refused
    assert not made.notes


@pytest.mark.parametrize(
    ("rules", "end"),
    [
        (PartitionRules(exclude=("aten.tan",)), ""),
        (PartitionRules(include=("aten.tan", "aten.relu")), ""),
        (PartitionRules(backend_exclude={"a": ("aten.tan",)}), ""),
        (PartitionRules(pins={"aten.tan": "a"}), ""),
        (PartitionRules(node_pins={"aten.tan": "portable"}), ""),
        (PartitionRules(exclude=("aten.rel",)), "did you mean 'aten.relu'?"),
        (PartitionRules(backend_exclude={"a": ("aten::relu.defalt",)}), "did you mean 'aten.relu.default'?"),
        (PartitionRules(node_pins={"rel": "portable"}), "did you mean 'relu'?"),
        (PartitionRules(node_pins={"nothing": "portable"}), "matches no node of this method"),
    ],
)
def test_a_pattern_that_matches_nothing_is_noted_with_the_nearest_name(rules: PartitionRules, end: str) -> None:
    (note,) = planned(chain(RELU), {"a": without()}, rules).notes
    assert "matches no" in note
    assert note.endswith(end)


def test_tensors_without_elements_stay_portable() -> None:
    """QNN divides by zero there, and takes the process down."""

    class Empty(torch.nn.Module):
        def forward(self, a: torch.Tensor) -> torch.Tensor:
            return torch.relu(a[:0]) + torch.relu(a).sum(0)

    program = edge(Empty(), torch.ones(2, 3))
    made = places(planned(program, {"a": without()}))
    assert {name for name, place in made.items() if place is None} == {"slice_1", "relu", "add"}


def test_a_pin_that_cannot_be_kept_leaves_the_node_portable_and_is_noted() -> None:
    rules = PartitionRules(node_pins={"sin": "a"})
    made = planned(chain(RELU, SIN), {"a": without("aten.sin"), "b": without()}, rules)
    assert places(made) == {"relu": "a", "sin": None}
    assert reasons(made, "b")["sin"] is Reason.PINNED
    assert made.notes == (
        "node_pins 'sin' -> a: 1 of 1 nodes cannot run there and stay portable: "
        "sin (unsupported operator: no lowering of aten.sin.default)",
    )


def test_a_pinned_node_keeps_its_small_partition() -> None:
    rules = PartitionRules(min_partition_size=5, node_pins={"sin": "a"})
    assert members(planned(chain(RELU, SIN), {"a": without()}, rules)) == {"a_0": ["relu", "sin"]}


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (PartitionRules(pins={"net": "xnnpak"}), "did you mean 'xnnpack'"),
        (PartitionRules(min_partition_size=-1), "min_partition_size is -1"),
    ],
)
def test_rules_that_do_not_fit_are_errors(rules: PartitionRules, message: str) -> None:
    with pytest.raises(PartitionError, match=message):
        planned(chain(RELU), {"xnnpack": without()}, rules)


def test_nodes_that_the_library_refused_are_planned_elsewhere() -> None:
    program = chain(RELU, SIN, COS)
    sin = next(n for n in program.graph.nodes if n.name == "sin")
    refusals = {"a": {sin: no(Reason.REFUSED, "the library says no")}}
    made = planned(program, {"a": without(), "b": without()}, refusals=refusals)
    assert members(made) == {"a_0": ["relu"], "b_0": ["sin"], "a_1": ["cos"]}
    assert made.nodes[1].verdicts["a"] == Verdict(Reason.REFUSED, "the library says no")


def test_names_of_other_methods_are_not_used_again() -> None:
    made = planned(chain(RELU, SIN, COS), {"a": without("aten.sin")}, taken={"a_0", "a_2"})
    assert list(members(made)) == ["a_1", "a_3"]


class EverySecond(Partitioner):
    """Says yes to every second node, without asking, and nothing of the others."""

    def partition(self, program: EdgeProgram, check: Check) -> Mapping[Node, Verdict]:
        nodes = [n for n in program.graph.nodes if is_compute(n)]
        return dict.fromkeys(nodes[::2], YES)


class Bool(Partitioner):
    """Answers with a bool."""

    def partition(self, program: EdgeProgram, check: Check) -> Mapping[Node, Verdict]:
        return dict.fromkeys(program.graph.nodes, True)  # type: ignore[arg-type]


def test_a_partitioner_narrows_and_cannot_widen() -> None:
    made = plan(chain(RELU, SIN, COS), [EverySecond("a")], selected({"a": part(without("aten.cos"))}))
    assert reasons(made, "a") == {"relu": None, "sin": Reason.EXCLUDED, "cos": Reason.OPERATOR}
    assert made.nodes[1].verdicts["a"].message == "EverySecond returned no verdict on it"


def failing(node: Node) -> Verdict:
    raise ValueError("oops")


def failing_well(node: Node) -> Verdict:
    raise LoweringError("my own words")


@pytest.mark.parametrize(
    ("partitioners", "checks", "error", "message"),
    [
        ([Bool("a")], {"a": without()}, PartitionError, "Bool returned True .*node relu, .*: return"),
        ([CapabilityPartitioner("a")], {"a": failing}, PartitionError, "backend a failed with ValueError: oops"),
        ([CapabilityPartitioner("a")], {"a": failing_well}, LoweringError, "my own words"),
        ([CapabilityPartitioner("a")], {}, PartitionError, "backend a has no support check"),
        ([EverySecond("a"), Bool("a")], {"a": without()}, PartitionError, "backend a is requested 2 times"),
    ],
)
def test_faults(partitioners, checks, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        plan(chain(RELU), partitioners, selected({name: part(check) for name, check in checks.items()}))


def test_results_of_a_node_stay_with_it() -> None:
    program = edge(Function(lambda x: torch.split(x.sin(), [1, 2], 1)[1].cos()), X)
    made = planned(program, {"a": without("aten.split")})
    assert members(made)
    assert all("getitem" not in name for names in members(made).values() for name in names)
    made = planned(program, {"a": without("aten.cos")})
    assert [names[-1].startswith("getitem") for names in members(made).values()] == [True]


def test_symbolic_sizes_neither_split_nor_enter_partitions() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        y = torch.cat([x.sin(), x])
        return y.reshape(y.shape[0] * 3).cos() * x.shape[0]

    program = edge(Function(forward), X, dynamic=(({0: torch.export.Dim("n", min=2, max=9)},),))
    made = planned(program, {"a": without()})
    assert len(made.partitions) == 1
    assert not any(n.backend is None for n in made.nodes)
    result = lowered(made)
    (delegate,) = result.delegates.values()
    assert [n.name for n in delegate.region.inputs] == [program.inputs[0].node]
    assert not [n for n in result.program.graph.nodes if "sym_size" in n.name]


def test_a_number_that_no_shape_tells_keeps_its_node_portable() -> None:
    program = edge(Function(lambda x: x.sin() * x.sum().item()), X)
    made = planned(program, {"a": without()})
    refused = {name: reason for name, reason in reasons(made, "a").items() if reason}
    assert set(refused.values()) == {Reason.OPERATOR, Reason.DYNAMIC_SHAPE}
    assert [n.op for n in made.nodes if n.verdicts["a"].reason is Reason.DYNAMIC_SHAPE] == ["aten.mul.Tensor"]


class Branches(torch.nn.Module):
    """A condition over a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.cond(x.sum() > 0, lambda a: self.linear(a).relu(), lambda a: a - 1, (x,))
        return y.sin() + self.linear(x)


def test_control_flow_is_partitioned_inside() -> None:
    module = Branches()
    program = edge(module, X)
    made = planned(program, {"a": without()})
    assert len(made.nested) == 2
    names = [p.name for part in made.walk() for p in part.partitions]
    assert len(names) == len(set(names)) >= 4
    result = lowered(made)
    branch = next(p for p in made.nested.values() if len(p.nodes) > 1)
    region = result.delegates[branch.partitions[0].name].region
    assert len(region.constants) == 2, "the weights of the branch are constants of its region"
    for x in (X + 1, X - 1):
        assert_same(run(result, x)[0], module(x))


class SameNames(torch.nn.Module):
    """Branches whose nodes have the same names."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a.sin(), (x,))


def test_a_refusal_in_one_branch_is_none_in_the_other() -> None:
    program = edge(SameNames(), X)
    first, second = ([n for n in part.graph.nodes if n.op == "call_function"] for part in subprograms(program).values())
    assert first[0].name == second[0].name
    made = planned(program, {"a": without()}, refusals={"a": {first[0]: no(Reason.REFUSED, "the library says no")}})
    assert [[n.backend for n in part.nodes] for part in made.nested.values()] == [[None], ["a"]]


def test_a_diamond_is_one_partition_and_the_plan_prints() -> None:
    graph = Graph()
    x = graph.placeholder("x")
    left = graph.create_node("call_function", SIN, (x,), name="sin")
    right = graph.create_node("call_function", RELU, (x,), name="relu")
    graph.output((graph.create_node("call_function", aten.add.Tensor, (left, right), name="add"), right))
    made = planned(program_of(graph), {"a": without("aten.relu")})
    assert members(made) == {"a_0": ["sin", "add"]}
    assert str(made) == "forward: 1 partitions; 2 nodes a, 1 nodes portable\n  a_0: sin, add"


def test_the_program_is_not_changed() -> None:
    program = edge(Branches(), X)
    before = str(program.graph), [dict(n.meta) for n in program.graph.nodes]
    lowered(planned(program, {"a": without("aten.sin")}))
    assert (str(program.graph), [dict(n.meta) for n in program.graph.nodes]) == before
