"""Small graphs, plans of them with support checks made up, and lowered programs that torch runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Interpreter, Node

from delegate.backend.aot import Backend, Claim, Options, PreprocessResult, Region
from delegate.backend.decomposition import DecompositionPolicy
from delegate.backend.selected import SelectedBackend
from delegate.edge.export import to_edge
from delegate.edge.graphs import call, gc_paused
from delegate.edge.node import op_name
from delegate.edge.program import EdgeInput, EdgeProgram
from delegate.partitioner.extraction import LoweredDelegate, LoweredProgram, RegionExtractor, call_delegate, lower
from delegate.partitioner.partitioner import CapabilityPartitioner
from delegate.partitioner.plan import Plan
from delegate.partitioner.planning import plan
from delegate.partitioner.rules import PartitionRules
from delegate.partitioner.support_query import Check
from delegate.verdict import YES, Reason, Verdict, no


def without(*names: str) -> Check:
    """The check of a backend that takes all operators but those whose names start so."""

    def check(node: Node) -> Verdict:
        refused = op_name(node).startswith(names)
        return no(Reason.OPERATOR, f"no lowering of {op_name(node)}") if refused else YES

    return check


def only(*names: str) -> Check:
    """The check of a backend that takes just the operators whose names start so."""

    def check(node: Node) -> Verdict:
        return YES if op_name(node).startswith(names) else no(Reason.OPERATOR, f"no lowering of {op_name(node)}")

    return check


def edge(module: torch.nn.Module, *inputs: Any, dynamic: Any = None) -> EdgeProgram:
    """A module in edge dialect."""
    with torch.no_grad():
        return to_edge(torch.export.export(module.eval(), inputs, dynamic_shapes=dynamic))


def planned(
    program: EdgeProgram, checks: Mapping[str, Check], rules: PartitionRules | None = None, **more: Any
) -> Plan:
    """A plan with the default partitioner for every backend."""
    return plan(
        program,
        [CapabilityPartitioner(name) for name in checks],
        selected({name: part(check) for name, check in checks.items()}),
        rules,
        **more,
    )


def regions(plan: Plan, policies: Mapping[str, DecompositionPolicy] | None = None) -> dict[str, Region]:
    """Extract all partitions of a plan and its nested plans, by name; `policies` are by name of a backend."""
    result: dict[str, Region] = {}
    with gc_paused():
        for part in plan.walk():
            extractor = RegionExtractor(part)
            result.update((p.name, extractor.extract(p, (policies or {}).get(p.backend))) for p in part.partitions)
    return result


def part(
    check: Check, preserve_ops: Set[str] = frozenset(), claims: Callable[[Node], Iterable[Claim]] | None = None
) -> type[Backend]:
    """The AOT part of a backend that gives these answers."""
    attributes: dict[str, Any] = {
        "check": lambda self, node: check(node),
        "preserve_ops": preserve_ops,
        "preprocess": lambda self, region: PreprocessResult(b""),
    }
    if claims is not None:
        attributes["claims"] = lambda self, node: claims(node)
    return type("Part", (Backend,), attributes)


def selected(parts: Mapping[str, type[Backend]]) -> dict[str, SelectedBackend]:
    """Backends by name, as a lowering uses them."""
    return {name: SelectedBackend(name, made, Options()) for name, made in parts.items()}


def members(made: Plan) -> dict[str, list[str]]:
    """Name of a partition -> names of its nodes."""
    return {p.name: [n.name for n in p.nodes] for p in made.partitions}


def chain(*targets: Any) -> EdgeProgram:
    """A program of operators on one float32[2, 3], each on the result of the one before."""
    graph = Graph()
    node = graph.placeholder("x")
    for target in targets:
        node = graph.create_node("call_function", target, (node,), name=str(target).split(".")[1])
    graph.output((node,))
    return program_of(graph)


def program_of(graph: Graph) -> EdgeProgram:
    """A program around a graph whose every node gives a float32[2, 3] and whose placeholders are inputs."""
    for node in graph.nodes:
        node.meta["val"] = torch.empty(2, 3, device="meta")
    inputs = tuple(EdgeInput(n.name, n.name) for n in graph.nodes if n.op == "placeholder")
    return EdgeProgram("forward", GraphModule({}, graph), inputs, {}, {}, {}, (), None, None, {})


def lowered(made: Plan) -> LoweredProgram:
    """A plan lowered with empty blobs."""
    backends = {p.name: p.backend for part in made.walk() for p in part.partitions}
    return lower(
        made, {name: LoweredDelegate(backends[name], PreprocessResult(b""), r) for name, r in regions(made).items()}
    )


class Runner(Interpreter):
    """Runs a lowered graph with torch: a call runs its region's graph."""

    def __init__(self, module: GraphModule, delegates: Mapping[str, LoweredDelegate]) -> None:
        super().__init__(module)
        self.delegates = delegates

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is call_delegate:
            return run_region(self.delegates[args[0]].region, args[1:])
        if target is torch.ops.higher_order.cond:
            predicate, yes, no_, operands = args
            return Runner(yes if predicate else no_, self.delegates).run(*operands)
        return call(target, args, kwargs)


def run_region(region: Region, inputs: Sequence[torch.Tensor]) -> Any:
    """The outputs of a region, by torch."""
    assert len(inputs) == len(region.inputs)
    assert all(isinstance(value, torch.Tensor) for value in inputs)
    return Runner(GraphModule({}, region.graph), {}).run(*inputs, *region.constants.values())


def run(program: LoweredProgram, *inputs: torch.Tensor) -> Any:
    """The outputs of a lowered program, by torch."""
    edge_program = program.program
    given = dict(zip((i.node for i in edge_program.inputs), inputs, strict=True))
    placeholders = [n.name for n in edge_program.graph.nodes if n.op == "placeholder"]
    values = [given[name] if name in given else edge_program.constants[name] for name in placeholders]
    return Runner(edge_program.graph_module, program.delegates).run(*values)
