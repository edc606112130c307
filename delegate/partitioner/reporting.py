"""Build the `Report` of plans: rows of nodes and partitions, and notes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from torch.fx import Node

from delegate.costs.estimates import Estimates
from delegate.costs.profile import read_shipped
from delegate.costs.quantities import work
from delegate.edge.node import is_compute, module_path, nbytes, shape_text, source_line, tensors
from delegate.edge.program import EdgeProgram
from delegate.partitioner.extraction import Boundary, RegionExtractor
from delegate.partitioner.plan import NodePlan, Partition, Plan
from delegate.plugins import PORTABLE
from delegate.report import Report
from delegate.report.rows import NodeReport, PartitionReport, PatternReport
from delegate.verdict import Reason

_MOST = 0.5  # a share of the work; if one reason keeps this much from a backend, the report has a note
_OF_THE_MODEL = frozenset({Reason.DTYPE, Reason.NON_CONSTANT, Reason.DYNAMIC_SHAPE, Reason.LAYOUT})


def make_report(
    plans: Iterable[Plan],
    partition_notes: Mapping[str, tuple[str, ...]] | None = None,
    notes: Iterable[str] = (),
    costs: Estimates | None = None,
) -> Report:
    """Return the report of a program.

    Args:
        plans: one per method; its EdgeProgram's name is the method's.
        partition_notes: name of a partition -> notes of its backend (`PreprocessResult.notes`).
        notes: on the program; they come before the notes of the plans.
        costs: the estimates of the report; None: by the shipped profile.
    """
    costs = costs or Estimates(read_shipped())
    methods: list[str] = []
    nodes: list[NodeReport] = []
    partitions: list[PartitionReport] = []
    all_notes = list(notes)
    estimates: dict[str, dict[str, float]] = {}
    for plan in plans:
        methods.append(plan.program.name)
        for part, builder in _builders(plan, costs):
            nodes += [builder.node(n) for n in part.nodes]
            partitions += [builder.partition(p, (partition_notes or {}).get(p.name, ())) for p in part.partitions]
            all_notes += part.notes
        if seconds_of := plan.total_seconds():
            estimates[plan.program.name] = {way: float(f"{taken:.3g}") for way, taken in seconds_of.items()}
            all_notes.append(_estimate_note(plan.program.name, seconds_of))
        all_notes += _missing_support(plan.program.name, plan.backends, nodes)
    return Report(tuple(methods), tuple(nodes), tuple(partitions), tuple(dict.fromkeys(all_notes)), estimates=estimates)


def _builders(plan: Plan, costs: Estimates) -> Iterator[tuple[Plan, _ReportBuilder]]:
    """Yield the plan of each graph of a method with the builder of its rows."""
    total = sum(work(n.node) for part in plan.walk() for n in part.nodes)
    boundaries = {
        p.name: extractor.boundary(p)
        for extractor in map(RegionExtractor, plan.walk())
        for p in extractor.plan.partitions
    }
    seconds = _seconds(plan, boundaries, costs)
    for part in plan.walk():
        prefix, placeholders = _prefix(plan, part), _placeholder_names(part.program)
        yield (
            part,
            _ReportBuilder(
                plan.program.name,
                prefix,
                placeholders,
                total,
                seconds,
                boundaries,
                costs,
                is_estimated=bool(plan.seconds),
            ),
        )


def _estimate_note(method: str, seconds: Mapping[str, float]) -> str:
    """Return a sentence with the estimated time of each way, the chosen one first."""
    chosen, *others = (f"{way} {taken * 1e3:.3g} ms" for way, taken in seconds.items())
    rest = f"; others: {', '.join(others)}" if others else ""
    return f"{method}: placed by estimates of a call: {chosen}{rest}"


def _missing_support(method: str, backends: Iterable[str], nodes: Iterable[NodeReport]) -> Iterator[str]:
    """Yield a sentence for each reason that keeps most of a method from a backend."""
    own = [n for n in nodes if n.method == method]
    for backend in backends:
        shares: dict[tuple[Reason, str], list[NodeReport]] = {}
        for node in own:
            verdict = node.verdicts[backend]
            if verdict.reason in _OF_THE_MODEL and node.backend == PORTABLE:
                shares.setdefault((verdict.reason, node.result.partition("[")[0]), []).append(node)
        for (reason, dtype), members in shares.items():
            share = math.fsum(n.work for n in members)
            if share >= _MOST:
                costliest = max(members, key=lambda n: n.work).verdicts[backend]
                details = "; ".join(part for part in (costliest.message, costliest.remedy) if part)
                yield f"{method}: {share:.0%} of the operations, in {dtype}, are not on {backend}: {reason}: {details}"


def _seconds(plan: Plan, boundaries: Mapping[str, Boundary], costs: Estimates) -> float:
    """Return the estimated seconds of a method, with the calls of its partitions."""
    partitions = plan.all_partitions()
    calls = (costs.call(p.backend, (*boundaries[p.name].inputs, *boundaries[p.name].outputs)) for p in partitions)
    nodes = (costs.node(n.node, n.backend or PORTABLE) for part in plan.walk() for n in part.nodes)
    return math.fsum((*nodes, *calls))


def _placeholder_names(program: EdgeProgram) -> dict[str, str]:
    """Return the name of each placeholder as in `NodeReport.inputs`."""
    names = {i.node: f"input {i.name}" for i in program.inputs}
    names |= {p: f"constant {program.constant_names.get(p, p)}" for p in program.constants}
    return names | {p: f"state {name}" for p, name in program.states.items()}


def _sources(node: Node, prefix: str, placeholders: Mapping[str, str]) -> Iterator[str]:
    """Yield the names of what a node reads, as in `NodeReport.inputs`. The node of getitem is left out."""
    for source in node.all_input_nodes:
        if source.op == "placeholder":
            yield placeholders.get(source.name, f"input {source.name}")
        elif is_compute(source):
            yield prefix + source.name
        elif source.op == "call_function":
            yield from _sources(source, prefix, placeholders)


def _prefix(method: Plan, part: Plan) -> str:
    """Return the prefix of node names in a control-flow graph, e.g. "true_graph_0."."""
    below = part.program.name.removeprefix(method.program.name).removeprefix(".")
    return f"{below}." if below else ""


@dataclass(slots=True)
class _ReportBuilder:
    """A builder of the reports on nodes and partitions of one graph."""

    method: str
    prefix: str
    placeholders: Mapping[str, str]  # their names
    total: int  # work of the whole method
    seconds: float  # of the whole method, estimated
    boundaries: Mapping[str, Boundary]  # by partition
    costs: Estimates
    is_estimated: bool  # its nodes are placed by these estimates

    def node(self, planned: NodePlan) -> NodeReport:
        node = planned.node
        return NodeReport(
            method=self.method,
            name=self.prefix + node.name,
            op=planned.op,
            backend=planned.backend or PORTABLE,
            partition=planned.partition or "",
            verdicts={name: replace(v, tag="") if v.tag else v for name, v in planned.verdicts.items()},
            result=", ".join(map(shape_text, tensors(node))),
            source=source_line(node),
            module=module_path(node),
            work=self._share(node),
            time=self.costs.node(node, planned.backend or PORTABLE) / self.seconds if self.seconds else 0.0,
            inputs=tuple(dict.fromkeys(_sources(node, self.prefix, self.placeholders))),
            nbytes=nbytes(node),
        )

    def partition(self, partition: Partition, notes: tuple[str, ...]) -> PartitionReport:
        boundary = self.boundaries[partition.name]
        computing = [n for n in partition.nodes if is_compute(n)]
        return PartitionReport(
            method=self.method,
            name=partition.name,
            backend=partition.backend,
            nodes=tuple(self.prefix + n.name for n in computing),
            bytes_in=sum(nbytes(n) for n in boundary.inputs),
            bytes_out=sum(nbytes(n) for n in boundary.outputs),
            work=math.fsum(self._share(n) for n in computing),
            notes=notes,
            patterns=tuple(
                PatternReport(claim.name, tuple(self.prefix + n.name for n in claim.nodes if is_compute(n)))
                for claim in partition.patterns
            ),
            seconds=float(f"{self._partition_seconds(partition, boundary):.3g}") if self.is_estimated else 0.0,
        )

    def _partition_seconds(self, partition: Partition, boundary: Boundary) -> float:
        return self.costs.partition(partition.backend, partition.nodes, (*boundary.inputs, *boundary.outputs))

    def _share(self, node: Node) -> float:
        return work(node) / self.total if self.total else 0.0
