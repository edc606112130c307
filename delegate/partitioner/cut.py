"""Cutting partitions out as regions, and the graph that calls them instead. Both linear in the graph."""

from __future__ import annotations

import copy
import operator
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
from torch.fx import Graph, GraphModule, Node

from delegate.backends.aot import PreprocessResult, Region
from delegate.edge.graphs import copy_node
from delegate.edge.program import META_VALUE, EdgeProgram
from delegate.errors import LoweringError
from delegate.partitioner.collector import paused_collector
from delegate.partitioner.numbers import is_number
from delegate.partitioner.plan import Partition, Plan


def call_delegate(name: str, *inputs: torch.Tensor) -> NoReturn:
    """Stands in a lowered graph for the call of a delegate: the tuple of its outputs. Only the runtime can run it.

    Raises:
        LoweringError: always.
    """
    raise LoweringError(
        f"delegate {name} was called in a graph", remedy="emit the lowered program and run it, or run its region"
    )


@dataclass(frozen=True, slots=True, eq=False)
class LoweredDelegate:
    """A partition after its backend has compiled it.

    Args:
        backend: name of the backend.
        result: what it made of the region.
        region: what it was given; its graph computes the same with torch.
    """

    backend: str
    result: PreprocessResult
    region: Region


@dataclass(frozen=True)
class LoweredProgram:
    """A method in which every partition is one call.

    Args:
        program: its graph holds nodes `call_delegate(name, *inputs)`, whose results are picked by operator.getitem
            nodes with the names and `meta` of the nodes that they replace. Constants that only delegates used are gone.
        delegates: by name, those of control flow included.
    """

    program: EdgeProgram
    delegates: Mapping[str, LoweredDelegate]


@dataclass(frozen=True, slots=True)
class Boundary:
    """What crosses the border of a partition.

    Args:
        inputs: nodes outside whose tensors go in, in the order of their first use.
        constants: placeholders of constants that the partition uses.
        outputs: its nodes whose tensors are used outside, in its order.
    """

    inputs: tuple[Node, ...]
    constants: tuple[Node, ...]
    outputs: tuple[Node, ...]


class Cutter:
    """Cuts the partitions of one graph out.

    Args:
        plan: of the graph; plans nested in it need cutters of their own.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._home: dict[Node, Partition] = {n: p for p in plan.partitions for n in p.nodes}
        self._idle = self._idle_numbers()

    def _idle_numbers(self) -> set[Node]:
        """Numbers that only partitions use. Regions know them from shapes, so nothing has to compute them."""
        idle: set[Node] = set()
        for node in reversed(self.plan.program.graph.nodes):
            is_size = node.op == "call_function" and is_number(node)
            if is_size and all(user in idle or user in self._home for user in node.users):
                idle.add(node)
        return idle

    def boundary(self, partition: Partition) -> Boundary:
        """What crosses the border of one of the plan's partitions."""
        inputs: dict[Node, None] = {}
        constants: dict[Node, None] = {}
        outputs = []
        for node in partition.nodes:
            for source in node.all_input_nodes:
                if self._home.get(source) is not partition and not is_number(source):
                    (constants if self.plan.program.is_constant(source) else inputs)[source] = None
            if any(self._home.get(user) is not partition and user not in self._idle for user in node.users):
                outputs.append(node)
        return Boundary(tuple(inputs), tuple(constants), tuple(outputs))

    def cut(self, partition: Partition) -> Region:
        """One of the plan's partitions as a graph of its own. Symbolic numbers among arguments become their values."""
        border = self.boundary(partition)
        graph = Graph()
        inside: dict[Node, Any] = {}
        for node in (*border.inputs, *border.constants):
            inside[node] = graph.create_node("placeholder", node.name, name=node.name)
            inside[node].meta = copy.copy(node.meta)
        for node in partition.nodes:
            for source in node.all_input_nodes:
                if source not in inside and is_number(source):
                    inside[source] = source.meta[META_VALUE]
            inside[node] = copy_node(graph, node, inside)
        graph.output(tuple(inside[n] for n in border.outputs))
        return Region(
            name=partition.name,
            graph=graph,
            inputs=tuple(inside[n] for n in border.inputs),
            constants={inside[n]: self.plan.program.constants[n.name] for n in border.constants},
            outputs=tuple(inside[n] for n in border.outputs),
        )

    def replace(self) -> tuple[Graph, dict[str, torch.Tensor]]:
        """The graph with calls in place of the partitions, and the constants that it still uses.

        A graph of control flow keeps all its placeholders, since its callers hand in a value for each.
        """
        program, graph = self.plan.program, Graph()
        lowered: dict[Node, Node] = {}
        constants = dict(program.constants)
        for node in program.graph.nodes:
            if node.op != "placeholder":
                continue
            if not self.plan.is_nested and program.is_constant(node) and all(user in self._home for user in node.users):
                del constants[node.name]
            else:
                lowered[node] = copy_node(graph, node, lowered)
        for unit in self.plan.order:
            if isinstance(unit, Partition):
                self._call(graph, unit, lowered)
            elif unit not in self._idle:
                lowered[unit] = copy_node(graph, unit, lowered)
        copy_node(graph, program.graph.output_node(), lowered)
        return graph, constants

    def _call(self, graph: Graph, partition: Partition, lowered: dict[Node, Node]) -> None:
        border = self.boundary(partition)
        inputs = tuple(lowered[n] for n in border.inputs)
        call = graph.create_node("call_function", call_delegate, (partition.name, *inputs), name=partition.name)
        call.meta[META_VALUE] = tuple(n.meta[META_VALUE] for n in border.outputs)
        for position, node in enumerate(border.outputs):
            lowered[node] = graph.create_node("call_function", operator.getitem, (call, position), name=node.name)
            lowered[node].meta = copy.copy(node.meta)


def regions(plan: Plan) -> dict[str, Region]:
    """All partitions of a plan and of those nested in it, cut out, by name."""
    found: dict[str, Region] = {}
    with paused_collector():
        for part in plan.walk():
            cutter = Cutter(part)
            found.update((p.name, cutter.cut(p)) for p in part.partitions)
    return found


def lower(plan: Plan, delegates: Mapping[str, LoweredDelegate]) -> LoweredProgram:
    """The program with a call in place of every partition.

    Args:
        plan: of the method.
        delegates: by the names of all its partitions, those of nested plans included.

    Raises:
        LoweringError: a partition has no delegate.
    """
    for part in plan.walk():
        for partition in part.partitions:
            if partition.name not in delegates:
                raise LoweringError(f"partition {partition.name} has no delegate", where=part.program.name)
    with paused_collector():
        return LoweredProgram(_lowered(plan), dict(delegates))


def _lowered(plan: Plan) -> EdgeProgram:
    graph, constants = Cutter(plan).replace()
    module = plan.program.graph_module
    root: dict[str, Any] = {
        str(n.target): getattr(module, str(n.target)) for n in plan.program.graph.nodes if n.op == "get_attr"
    }
    root |= {target: _lowered(part).graph_module for target, part in plan.nested.items()}
    names = {name: full for name, full in plan.program.constant_names.items() if name in constants}
    return replace(plan.program, graph_module=GraphModule(root, graph), constants=constants, constant_names=names)
