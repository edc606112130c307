"""Cutting partitions out as regions, and the graph that calls them instead. Both linear in the graph."""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
from torch.fx import Graph, GraphModule, Node

from delegate.backends.aot import ClaimedPattern, PreprocessResult, Region
from delegate.backends.region import ranges_of_sizes
from delegate.edge.graphs import copy_node, extracted
from delegate.edge.program import META_VALUE, EdgeProgram
from delegate.errors import LoweringError
from delegate.partitioner.forms import Forms, formed
from delegate.partitioner.garbage import collection_paused
from delegate.partitioner.numbers import is_number
from delegate.partitioner.plan import Group, Partition, Plan


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
        together: groups of them that run at the same time.
    """

    program: EdgeProgram
    delegates: Mapping[str, LoweredDelegate]
    together: tuple[Group, ...] = ()


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

    def cut(self, partition: Partition, forms: Forms | None = None) -> Region:
        """One of the plan's partitions as a graph of its own. Symbolic numbers among arguments become their values.

        Args:
            partition: of the plan.
            forms: of its backend; needed where it takes operators in parts.
        """
        border = self.boundary(partition)
        numbers = dict.fromkeys(s for n in partition.nodes for s in n.all_input_nodes if is_number(s))
        constants = {n: self.plan.program.constants[n.name] for n in border.constants}
        if not partition.in_parts or forms is None:
            values = {n: n.meta[META_VALUE] for n in numbers}
            graph, copies = extracted((*border.inputs, *constants), partition.nodes, border.outputs, values)
            return _region(self.plan.program, partition, graph, copies, (border.inputs, constants), copies)
        graph, copies = extracted((*border.inputs, *constants, *numbers), partition.nodes, border.outputs)
        inside = {copies[n]: value for n, value in constants.items()}
        made = formed(graph, inside, [copies[n] for n in partition.in_parts], forms)
        used = {n.name: n for n in made.graph.find_nodes(op="placeholder") if n.users}
        given = tuple(copies[n] for n in border.inputs if copies[n].users)
        held = {used[name]: value for name, value in made.constants.items() if name in used}
        calls = [n for n in made.graph.nodes if n.op == "call_function"]
        results: Any = made.graph.output_node().args[0]
        graph, lasting = extracted((*given, *held), calls, results)
        members = {node: lasting[copied] for node, copied in copies.items() if copied in lasting}
        return _region(self.plan.program, partition, graph, lasting, (given, held), members)

    def replace(self, delegates: Mapping[str, LoweredDelegate]) -> tuple[Graph, dict[str, torch.Tensor]]:
        """The graph with calls in place of the partitions, and the constants that it still uses.

        A graph of control flow keeps all its placeholders, since its callers hand in a value for each.

        Args:
            delegates: by the names of the partitions.
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
                self._call(graph, unit, lowered, delegates[unit.name].region)
            elif unit not in self._idle:
                lowered[unit] = copy_node(graph, unit, lowered)
        copy_node(graph, program.graph.output_node(), lowered)
        return graph, constants

    def _call(self, graph: Graph, partition: Partition, lowered: dict[Node, Node], region: Region) -> None:
        border = self.boundary(partition)
        taken = {node.name for node in region.inputs}  # not all that the plan knows of, where it takes parts
        inputs = tuple(lowered[n] for n in border.inputs if n.name in taken)
        call = graph.create_node("call_function", call_delegate, (partition.name, *inputs), name=partition.name)
        call.meta[META_VALUE] = tuple(n.meta[META_VALUE] for n in border.outputs)
        for position, node in enumerate(border.outputs):
            lowered[node] = graph.create_node("call_function", operator.getitem, (call, position), name=node.name)
            lowered[node].meta = copy.copy(node.meta)


def regions(plan: Plan, forms: Mapping[str, Forms] | None = None) -> dict[str, Region]:
    """All partitions of a plan and of those nested in it, cut out, by name; `forms` by name of a backend."""
    found: dict[str, Region] = {}
    with collection_paused():
        for part in plan.walk():
            cutter = Cutter(part)
            found.update((p.name, cutter.cut(p, (forms or {}).get(p.backend))) for p in part.partitions)
    return found


def _region(
    program: EdgeProgram,
    partition: Partition,
    graph: Graph,
    copies: Mapping[Node, Node],
    given: tuple[Iterable[Node], Mapping[Node, torch.Tensor]],
    members: Mapping[Node, Node],
) -> Region:
    """The region of a graph.

    Args:
        program: that it is cut out of.
        partition: that it is of.
        graph: of the region.
        copies: nodes that were copied -> their copies in the graph.
        given: inputs, and constants with their tensors, before they were copied.
        members: nodes of the partition -> those of the graph, where they are still there.
    """
    inputs, constants = given
    outputs: Any = graph.output_node().args[0]
    return Region(
        name=partition.name,
        graph=graph,
        inputs=tuple(copies[n] for n in inputs),
        constants={copies[n]: value for n, value in constants.items()},
        outputs=outputs,
        patterns=_patterns(partition, members),
        range_constraints=ranges_of_sizes(graph.nodes, program.range_constraints),
    )


def _patterns(partition: Partition, members: Mapping[Node, Node]) -> tuple[ClaimedPattern, ...]:
    """What the backend claimed as one; not where taking others apart has touched it."""
    place = {node: i for i, node in enumerate(partition.nodes)} if partition.patterns else {}
    whole = (c for c in partition.patterns if all(n in members for n in c.nodes))
    return tuple(
        ClaimedPattern(c.name, tuple(members[n] for n in sorted(c.nodes, key=place.__getitem__))) for c in whole
    )


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
    with collection_paused():
        together = tuple(group for part in plan.walk() for group in part.together)
        return LoweredProgram(_lowered(plan, delegates), dict(delegates), together)


def _lowered(plan: Plan, delegates: Mapping[str, LoweredDelegate]) -> EdgeProgram:
    graph, constants = Cutter(plan).replace(delegates)
    module = plan.program.graph_module
    root: dict[str, Any] = {
        str(n.target): getattr(module, str(n.target)) for n in plan.program.graph.nodes if n.op == "get_attr"
    }
    root |= {target: _lowered(part, delegates).graph_module for target, part in plan.nested.items()}
    names = {name: full for name, full in plan.program.constant_names.items() if name in constants}
    return replace(plan.program, graph_module=GraphModule(root, graph), constants=constants, constant_names=names)
