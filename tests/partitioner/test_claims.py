"""Claims of several nodes: atomic, with reasons where they almost fit, never in a cycle; and forms of one operator."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from torch.fx import Node

from delegate.backend.aot import Backend, Claim, PreprocessResult, Region, RegionFailed, RegionRefused
from delegate.backend.lowering import LoweringTable, anything
from delegate.backend.region import content_of
from delegate.edge.export import to_edge
from delegate.edge.node import is_compute, op_name
from delegate.edge.program import EdgeProgram
from delegate.errors import PartitionError
from delegate.partitioner.artifacts import Artifacts
from delegate.partitioner.extraction import plan_regions
from delegate.partitioner.partitioner import CapabilityPartitioner
from delegate.partitioner.plan import Plan
from delegate.partitioner.planning import plan
from delegate.partitioner.rules import PartitionRules
from delegate.partitioner.saved import BY_THE_PLAN, AppliedPlan, SavedPartition, SavedPlan
from delegate.verdict import YES, Reason, Verdict, no
from tests.support.functions import Function
from tests.support.planning import chain, edge, members, only, part, program_of, selected

aten = torch.ops.aten
RELU, SIN, COS, EXP = (getattr(aten, n).default for n in ("relu", "sin", "cos", "exp"))


def claims_of_pair(
    first: str, second: str, fits: Callable[[Node], Verdict] = lambda node: YES
) -> Callable[[Node], Iterator[Claim]]:
    """Claims the second operator with the first that feeds it."""

    def claims(node: Node) -> Iterator[Claim]:
        sources = [s for s in node.all_input_nodes if s.op == "call_function" and op_name(s) == first]
        if op_name(node) == second and sources:
            yield Claim(f"{first}, {second}", (sources[0], node), fits(node))

    return claims


def pair(first: str, second: str, fits: Callable[[Node], Verdict] = lambda node: YES) -> type[Backend]:
    """Takes a pair, and nothing alone."""
    return part(only(), claims=claims_of_pair(first, second, fits))


def calls(program: EdgeProgram) -> list[Node]:
    return [n for n in program.graph.nodes if n.op == "call_function"]


def planned(program, parts, rules=None, **more) -> Plan:
    return plan(program, [CapabilityPartitioner(name) for name in parts], selected(parts), rules, **more)


SIN_COS = "aten.sin.default", "aten.cos.default"


def test_a_pattern_is_taken_where_its_nodes_alone_are_not() -> None:
    made = planned(chain(RELU, SIN, COS, EXP), {"a": pair(*SIN_COS)})
    assert members(made) == {"a_0": ["sin", "cos"]}
    assert [bool(n.verdicts["a"]) for n in made.nodes] == [False, True, True, False]
    (partition,) = made.partitions
    (region,) = (c.region for c in plan_regions(made, selected({"a": pair(*SIN_COS)})))
    assert [(p.name, [n.name for n in p.nodes]) for p in region.patterns] == [
        ("aten.sin.default, aten.cos.default", ["sin", "cos"])
    ]
    assert partition.patterns[0].verdict is YES


def test_a_pattern_that_almost_fits_gives_its_reason() -> None:
    why = no(Reason.ATTRIBUTE, "int4 weights in blocks of 33: multiples of 32 are taken", "quantize in blocks of 32")
    made = planned(chain(SIN, COS), {"a": pair(*SIN_COS, fits=lambda node: why)})
    assert members(made) == {}
    told = replace(why, message=f"as part of 'aten.sin.default, aten.cos.default': {why.message}")
    assert [n.verdicts["a"] for n in made.nodes if n.op in ("aten.sin.default", "aten.cos.default")] == [told, told]


def test_a_pattern_comes_whole_or_not_at_all() -> None:
    """What a preferred backend has taken a node of, or the configuration excludes, is no pattern for the next."""
    both = {"a": part(only("aten.cos")), "b": pair(*SIN_COS)}
    assert members(planned(chain(RELU, SIN, COS), both)) == {"a_0": ["cos"]}
    assert members(planned(chain(RELU, SIN, COS), {"b": both["b"], "a": both["a"]})) == {"b_0": ["sin", "cos"]}
    for rules in (PartitionRules(exclude=("aten.sin",)), PartitionRules(node_pins={"cos": "portable"})):
        assert members(planned(chain(SIN, COS), {"b": both["b"]}, rules)) == {}
    program = chain(SIN, COS)
    refused = {"b": {calls(program)[0]: no(Reason.REFUSED, "the library says no")}}
    assert members(planned(program, {"b": both["b"]}, refusals=refused)) == {}


def diamond() -> EdgeProgram:
    """sin -> relu -> cos, and sin -> cos: the pair around relu is no partition without relu."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    sin = graph.create_node("call_function", SIN, (x,), name="sin")
    relu = graph.create_node("call_function", RELU, (sin,), name="relu")
    add = graph.create_node("call_function", aten.add.Tensor, (sin, relu), name="add")
    graph.output((add,))
    return program_of(graph)


def test_a_pattern_that_would_form_a_cycle_is_dropped() -> None:
    sums = "aten.sin.default", "aten.add.Tensor"
    made = planned(diamond(), {"a": pair(*sums)})
    assert members(made) == {}
    assert {n.op: n.verdicts["a"].reason for n in made.nodes} == {
        "aten.sin.default": Reason.CYCLE, "aten.relu.default": Reason.OPERATOR, "aten.add.Tensor": Reason.CYCLE,
    }  # fmt: skip
    with_relu = part(only("aten.relu"), claims=claims_of_pair(*sums))
    dropped = planned(diamond(), {"a": with_relu})
    assert members(dropped) == {"a_0": ["relu"]}


def test_patterns_that_share_a_node_come_together() -> None:
    def forward(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.sin(x)
        return torch.cos(y), torch.exp(y)

    def claims(node: Node) -> list[Claim]:
        return [Claim("pair", (node.all_input_nodes[0], node))] if op_name(node)[5:8] in ("cos", "exp") else []

    made = planned(edge(Function(forward), torch.ones(2, 3)), {"a": part(only(), claims=claims)})
    assert list(members(made).values()) == [["sin", "cos", "exp"]]
    assert [len(p.patterns) for p in made.partitions] == [2]


def test_getitem_can_be_part_of_a_pattern() -> None:
    def claims(node: Node) -> list[Claim]:
        picks = tuple(u for u in node.users if u.target is operator.getitem)
        return [Claim("split", (node, *picks))] if op_name(node) == "aten.split_with_sizes.default" else []

    program = edge(Function(lambda x: [y * 2 for y in torch.split(x, 2)]), torch.ones(4, 3))
    made = planned(program, {"a": part(only(), claims=claims)}, PartitionRules(min_partition_size=0))
    assert [sorted(op_name(n) for n in p.nodes) for p in made.partitions] == [
        ["aten.split_with_sizes.default", "getitem", "getitem"]
    ]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda node: 1 / 0, "failed with ZeroDivisionError"),
        (lambda node: ["sin"], "claims 'sin'"),
        (lambda node: [Claim("other", (calls(chain(SIN))[0],))], "claims Claim"),
        (lambda node: [Claim("", ())], "should be a tuple of nodes"),
    ],
)
def test_nonsense_is_an_error_that_names_the_backend(answer, said: str) -> None:
    with pytest.raises(PartitionError, match="backend a") as caught:
        planned(chain(SIN), {"a": part(only(), claims=answer)})
    assert said in str(caught.value)


def test_a_table_has_patterns_beside_operators() -> None:
    table: LoweringTable[str] = LoweringTable()
    table.lowers("aten.sin.default", check=anything)("sin")

    def before(node: Node) -> Sequence[Node] | Verdict | None:
        source = node.args[0]
        if not isinstance(source, Node) or op_name(source) != "aten.sin.default":
            return None
        return (source, node) if len(source.users) == 1 else no(Reason.ATTRIBUTE, f"{source.name} is used elsewhere")

    table.lowers_pattern("sin, cos", "aten.cos.default", match=before)("both")
    sin, cos = calls(chain(SIN, COS))
    assert table.claims(sin) == []
    assert table.claims(cos) == [Claim("sin, cos", (sin, cos))]
    assert table.pattern("sin, cos").lower == "both"
    cos.graph.create_node("call_function", EXP, (sin,))
    assert [str(c.verdict) for c in table.claims(cos)] == ["unsupported attribute: sin is used elsewhere"]
    with pytest.raises(ValueError, match="two patterns"):
        table.lowers_pattern("sin, cos", "aten.cos.default", match=before)("again")


# -- forms -------------------------------------------------------------------------------------------------------------


def compound(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(torch.relu(x), (3,)) * 2


def layer_norm_kept() -> EdgeProgram:
    exported = torch.export.export(Function(compound), (torch.randn(2, 3),))
    return to_edge(exported, preserve_ops={"aten.layer_norm.default"})


WHOLE = part(only("aten.layer_norm", "aten.relu", "aten.mul"), {"aten.layer_norm.default"})
PARTS = part(only("aten.native_layer_norm", "aten.relu", "aten.mul"))


@pytest.mark.parametrize("order", [("whole", "parts"), ("parts", "whole")], ids=" ".join)
def test_each_backend_is_asked_in_its_form(order) -> None:
    backends = {"whole": WHOLE, "parts": PARTS}
    made = planned(layer_norm_kept(), {name: backends[name] for name in order})
    (found,) = plan_regions(made, selected(backends))
    assert found.partition.backend == order[0]
    names = [op_name(n) for n in found.region.calls if is_compute(n)]
    norm = {"whole": "aten.layer_norm.default", "parts": "aten.native_layer_norm.default"}[order[0]]
    assert names == ["aten.relu.default", norm, "aten.mul.Tensor"]
    verdict = made.nodes[1].verdicts["parts"]
    assert verdict
    assert verdict.in_parts


def test_a_kernel_runs_whole_what_a_backend_wants_only_parts_of() -> None:
    made = planned(edge(Function(compound), torch.randn(2, 3)), {"a": part(only("aten.relu"))})
    assert not made.needs_decomposition  # native_layer_norm is core ATen
    partly = part(only("aten.sigmoid"))

    def silu() -> EdgeProgram:
        exported = torch.export.export(Function(torch.nn.functional.silu), (torch.randn(2, 3),))
        return to_edge(exported, preserve_ops={"aten.silu.default"})

    assert not planned(silu(), {"a": partly}).needs_decomposition


# -- artifacts ---------------------------------------------------------------------------------------------------------


class Counting:
    """Compiles regions, fails on those with a forbidden operator, and counts."""

    def __init__(self, never: str = "", refused: str = "") -> None:
        self.never, self.refused, self.seen = never, refused, []

    def preprocess(self, region: Region) -> PreprocessResult:
        self.seen.append(content_of(region))
        names = {n.name: op_name(n) for n in region.calls}
        if self.refused in names.values():
            raise RegionRefused({name: "no" for name, op in names.items() if op == self.refused})
        if self.never in names.values():
            raise RegionFailed("not that")
        return PreprocessResult(b"blob")


@pytest.mark.parametrize(
    "compiler", [Counting(), Counting(never="aten.sin.default"), Counting(refused="aten.sin.default")]
)
def test_no_region_is_compiled_twice(compiler: Counting) -> None:
    parts = {"a": part(only("aten"))}
    artifacts = Artifacts({"a": compiler.preprocess})
    for _ in range(3):
        found = list(plan_regions(planned(chain(RELU, SIN, COS, EXP), parts), selected(parts)))
        assert found
        for candidate in found:
            if compiler.never or compiler.refused:
                with pytest.raises(RegionRefused, match=r"^sin: "):
                    artifacts.delegate(candidate)
            else:
                assert artifacts.delegate(candidate).result.blob == b"blob"
    assert len(compiler.seen) == len(set(compiler.seen))


@pytest.mark.parametrize(
    ("homes", "expected"),
    [
        ({"p": "relu sin cos exp"}, {"a_0": ["relu", "sin", "cos", "exp"]}),
        ({"p": "relu sin cos", "q": "exp"}, {"a_0": ["relu", "sin", "cos"], "a_1": ["exp"]}),
        ({"p": "relu", "q": "sin cos exp"}, {"a_0": ["relu"], "a_1": ["sin", "cos", "exp"]}),
        ({"p": "relu sin", "q": "cos exp"}, {"a_0": ["relu"], "a_1": ["exp"]}),  # which would part a pattern
    ],
)
def test_a_saved_plan_has_patterns_in_its_own_partitions(homes: dict[str, str], expected: dict[str, list[str]]) -> None:
    backends = selected({"a": part(only("aten.relu", "aten.exp"), claims=claims_of_pair(*SIN_COS))})
    saved = SavedPlan(tuple(SavedPartition("forward", home, "a", tuple(n.split())) for home, n in homes.items()))
    program = chain(RELU, SIN, COS, EXP)
    keep = PartitionRules(min_partition_size=0)
    made = plan(program, [CapabilityPartitioner("a")], backends, keep, search=AppliedPlan.of(saved, BY_THE_PLAN))
    assert members(made) == expected
