"""Extraction of partitions as regions, and the graph that calls them. Both are linear in the graph."""

from __future__ import annotations

import copy
import operator
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
from torch.fx import Graph, GraphModule, Node

from delegate.backend.aot import ClaimedPattern, PreprocessResult, Region
from delegate.backend.decomposition import DecompositionPolicy, decompose_region
from delegate.backend.region import ranges_of_sizes
from delegate.backend.selected import SelectedBackend
from delegate.edge.graphs import META_ORIGIN, copy_node, extract_graph, gc_paused
from delegate.edge.node import is_compute, is_number, op_name
from delegate.edge.program import META_VALUE, EdgeProgram
from delegate.errors import LoweringError
from delegate.partitioner.plan import Partition, Plan


def call_delegate(name: str, *inputs: torch.Tensor) -> NoReturn:
    """Represent the call of a delegate in a lowered graph; the result is the tuple of its outputs.

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
        result: the artifact.
        region: the input of the backend; its graph computes the same with torch.
    """

    backend: str
    result: PreprocessResult
    region: Region


@dataclass(frozen=True)
class LoweredProgram:
    """A method in which every partition is one call.

    Args:
        program: its graph has nodes `call_delegate(name, *inputs)`. Nodes of operator.getitem pick their results, with
            the names and `meta` of the replaced nodes. Constants that only delegates used are removed.
        delegates: Partition name -> its delegate, including delegates in control flow.
    """

    program: EdgeProgram
    delegates: Mapping[str, LoweredDelegate]


@dataclass(frozen=True, slots=True)
class Boundary:
    """The inputs and outputs of a partition.

    Args:
        inputs: nodes outside whose tensors the partition reads, in the order of their first use.
        constants: placeholders of constants that the partition uses.
        outputs: nodes of the partition whose tensors are used outside, in its order.
    """

    inputs: tuple[Node, ...]
    constants: tuple[Node, ...]
    outputs: tuple[Node, ...]


class RegionExtractor:
    """An extractor for the partitions of one graph.

    Args:
        plan: The graph's plan; each nested plan needs an extractor of its own.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._partition_of: dict[Node, Partition] = {n: p for p in plan.partitions for n in p.nodes}
        self._idle = self._idle_numbers()

    def _idle_numbers(self) -> set[Node]:
        """Return the numbers that only partitions use, which regions read from shapes, so they are not computed."""
        idle: set[Node] = set()
        for node in reversed(self.plan.program.graph.nodes):
            is_size = node.op == "call_function" and is_number(node)
            if is_size and all(user in idle or user in self._partition_of for user in node.users):
                idle.add(node)
        return idle

    def boundary(self, partition: Partition) -> Boundary:
        """Return the inputs and outputs of one partition in the plan."""
        inputs: dict[Node, None] = {}
        constants: dict[Node, None] = {}
        outputs = []
        for node in partition.nodes:
            for source in node.all_input_nodes:
                if self._partition_of.get(source) is not partition and not is_number(source):
                    (constants if self.plan.program.is_constant(source) else inputs)[source] = None
            if any(self._partition_of.get(user) is not partition and user not in self._idle for user in node.users):
                outputs.append(node)
        return Boundary(tuple(inputs), tuple(constants), tuple(outputs))

    def extract(self, partition: Partition, policy: DecompositionPolicy | None = None) -> Region:
        """Return a partition as a graph of its own, in which symbolic numbers among arguments become their values.

        Args:
            partition: A partition of the plan.
            policy: The backend's policy; required if the partition has operators to decompose.
        """
        boundary = self.boundary(partition)
        numbers = dict.fromkeys(s for n in partition.nodes for s in n.all_input_nodes if is_number(s))
        constants = {n: self.plan.program.constants[n.name] for n in boundary.constants}
        if not partition.in_parts or policy is None:
            values = {n: n.meta[META_VALUE] for n in numbers}
            graph, copies = extract_graph((*boundary.inputs, *constants), partition.nodes, boundary.outputs, values)
            return _region(self.plan.program, partition, graph, copies, (boundary.inputs, constants), copies)
        graph, copies = extract_graph((*boundary.inputs, *constants, *numbers), partition.nodes, boundary.outputs)
        inside = {copies[n]: value for n, value in constants.items()}
        program = decompose_region(graph, inside, [copies[n] for n in partition.in_parts], policy)
        used = {n.name: n for n in program.graph.find_nodes(op="placeholder") if n.users}
        inputs = tuple(copies[n] for n in boundary.inputs if copies[n].users)
        held = {used[name]: value for name, value in program.constants.items() if name in used}
        calls = [n for n in program.graph.nodes if n.op == "call_function"]
        results: Any = program.graph.output_node().args[0]
        graph, final = extract_graph((*inputs, *held), calls, results)
        members = {node: final[copied] for node, copied in copies.items() if copied in final}
        return _region(self.plan.program, partition, graph, final, (inputs, held), members)

    def replace(self, delegates: Mapping[str, LoweredDelegate]) -> tuple[Graph, dict[str, torch.Tensor]]:
        """Return the graph with calls in place of the partitions, and the constants that it still uses.

        A graph of control flow keeps all its placeholders, since its callers pass a value for each.

        Args:
            delegates: Partition name -> its delegate.
        """
        program, graph = self.plan.program, Graph()
        lowered: dict[Node, Node] = {}
        constants = dict(program.constants)
        for node in program.graph.nodes:
            if node.op != "placeholder":
                continue
            if (
                not self.plan.is_nested
                and program.is_constant(node)
                and all(user in self._partition_of for user in node.users)
            ):
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
        boundary = self.boundary(partition)
        used = {node.name for node in region.inputs}  # decomposition may have removed uses of other inputs
        inputs = tuple(lowered[n] for n in boundary.inputs if n.name in used)
        call = graph.create_node("call_function", call_delegate, (partition.name, *inputs), name=partition.name)
        call.meta[META_VALUE] = tuple(n.meta[META_VALUE] for n in boundary.outputs)
        for position, node in enumerate(boundary.outputs):
            lowered[node] = graph.create_node("call_function", operator.getitem, (call, position), name=node.name)
            lowered[node].meta = copy.copy(node.meta)


def _region(
    program: EdgeProgram,
    partition: Partition,
    graph: Graph,
    copies: Mapping[Node, Node],
    operands: tuple[Iterable[Node], Mapping[Node, torch.Tensor]],
    members: Mapping[Node, Node],
) -> Region:
    """Return the region of an extracted graph.

    Args:
        program: the source of the graph.
        partition: The partition that becomes the region.
        graph: The region's graph.
        copies: copied nodes -> their copies in the graph.
        operands: inputs, and constants with their tensors, before they were copied.
        members: nodes of the partition -> nodes of the graph, without those that decomposition removed.
    """
    inputs, constants = operands
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
    """Return the pattern matches of the region, except those that decomposition has changed."""
    place = {node: i for i, node in enumerate(partition.nodes)} if partition.patterns else {}
    intact = (c for c in partition.patterns if all(n in members for n in c.nodes))
    return tuple(
        ClaimedPattern(c.name, tuple(members[n] for n in sorted(c.nodes, key=place.__getitem__))) for c in intact
    )


def lower(plan: Plan, delegates: Mapping[str, LoweredDelegate]) -> LoweredProgram:
    """Return the program with a call in place of every partition.

    Args:
        plan: The method's plan.
        delegates: Partition name -> its delegate, including partitions of nested plans.

    Raises:
        LoweringError: a partition has no delegate.
    """
    for part in plan.walk():
        for partition in part.partitions:
            if partition.name not in delegates:
                raise LoweringError(f"partition {partition.name} has no delegate", where=part.program.name)
    with gc_paused():
        return LoweredProgram(_lower_graph(plan, delegates), dict(delegates))


def _lower_graph(plan: Plan, delegates: Mapping[str, LoweredDelegate]) -> EdgeProgram:
    graph, constants = RegionExtractor(plan).replace(delegates)
    module = plan.program.graph_module
    root: dict[str, Any] = {
        str(n.target): getattr(module, str(n.target)) for n in plan.program.graph.nodes if n.op == "get_attr"
    }
    root |= {target: _lower_graph(part, delegates).graph_module for target, part in plan.nested.items()}
    names = {name: full for name, full in plan.program.constant_names.items() if name in constants}
    return replace(plan.program, graph_module=GraphModule(root, graph), constants=constants, constant_names=names)


@dataclass(frozen=True, slots=True, eq=False)
class PlannedRegion:
    """A partition of a plan and its region, decomposed for its backend, ready to be compiled and measured.

    Args:
        partition: A partition of the plan.
        region: extracted from the plan's graph.
        origins: node names in the region -> their origins among the plan's nodes.
    """

    partition: Partition
    region: Region
    origins: Mapping[str, Node]

    def of_the_plan(self, reasons: Mapping[str, str]) -> dict[Node, str]:
        """Map reasons by name of a region's node to nodes of the plan; the first reason counts."""
        by_origin: dict[Node, str] = {}
        for node in self.region.calls:
            origin = self.origins.get(node.name)
            if origin is not None and node.name in reasons:
                why = reasons[node.name]
                part = "" if origin.name == node.name else f"in its decomposition, {op_name(node)}: "
                by_origin.setdefault(origin, part + why)
        return by_origin


def plan_regions(
    plan: Plan, backends: Mapping[str, SelectedBackend], known: dict[Hashable, PlannedRegion] | None = None
) -> list[PlannedRegion]:
    """Return the partitions of a plan and of its nested plans, each with its region.

    Args:
        plan: One method's plan.
        backends: Backend name -> the backend.
        known: regions of earlier plans of the same graph, reused for equal partitions; the new ones are added.
    """
    known = {} if known is None else known
    result: list[PlannedRegion] = []
    with gc_paused():
        for part in plan.walk():
            extractor = RegionExtractor(part)
            for partition in part.partitions:
                patterns = tuple((p.name, p.nodes) for p in partition.patterns)
                boundary = extractor.boundary(partition)
                key = (partition.backend, partition.nodes, partition.in_parts, patterns, boundary)
                if key not in known:
                    known[key] = _plan_region(extractor, partition, backends[partition.backend].policy)
                region = replace(known[key].region, name=partition.name)
                result.append(replace(known[key], partition=partition, region=region))
    return result


def _plan_region(extractor: RegionExtractor, partition: Partition, policy: DecompositionPolicy) -> PlannedRegion:
    region = extractor.extract(partition, policy)
    own = {node.name: node for node in partition.nodes}
    names = {n.name: n.name if n.name in own else n.meta.get(META_ORIGIN) for n in region.calls}
    return PlannedRegion(partition, region, {name: own[of] for name, of in names.items() if of in own})


def find_refused_parts(planned: PlannedRegion, backend: SelectedBackend) -> dict[Node, str]:
    """Return the nodes of the plan whose decomposed and simplified operators the backend refuses, with reasons.

    Raises DelegateError if the support check of the backend fails.
    """
    if not planned.partition.in_parts:
        return {}
    claimed = {n for p in planned.region.patterns for n in p.nodes}
    unclaimed = (n for n in planned.region.calls if is_compute(n) and n not in claimed)
    refused = ((n, verdict) for n in unclaimed if not (verdict := backend.check(n)))
    return {
        planned.origins[n.name]: f"in its decomposition, {n.name}: {verdict.message or verdict.reason}"
        for n, verdict in refused
        if n.name in planned.origins
    }
