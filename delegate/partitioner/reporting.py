"""Build the `Report` of plans: rows of nodes and partitions, and notes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from torch.fx import Node

from delegate.costs.estimates import Estimates
from delegate.costs.profile import read_shipped
from delegate.costs.quantities import work
from delegate.edge.node import is_compute, module_path, nbytes, shape_text, source_line, tensors
from delegate.edge.program import EdgeProgram
from delegate.partitioner.extraction import RegionExtractor
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
    rows = [_MethodRows(plan, costs or Estimates(read_shipped()), partition_notes or {}) for plan in plans]
    all_notes = list(notes)
    estimates: dict[str, dict[str, float]] = {}
    for method in rows:
        all_notes += (note for part in method.plan.walk() for note in part.notes)
        if seconds_of := method.plan.total_seconds():
            estimates[method.name] = {way: float(f"{taken:.3g}") for way, taken in seconds_of.items()}
            all_notes.append(_estimate_note(method.name, seconds_of))
        all_notes += _missing_support(method.name, method.plan.backends, method.nodes)
    return Report(
        tuple(method.name for method in rows),
        tuple(node for method in rows for node in method.nodes),
        tuple(partition for method in rows for partition in method.partitions),
        tuple(dict.fromkeys(all_notes)),
        estimates=estimates,
    )


def _estimate_note(method: str, seconds: Mapping[str, float]) -> str:
    """Return a sentence with the estimated time of each way, the chosen one first."""
    chosen, *others = (f"{way} {taken * 1e3:.3g} ms" for way, taken in seconds.items())
    rest = f"; others: {', '.join(others)}" if others else ""
    return f"{method}: placed by estimates of a call: {chosen}{rest}"


def _missing_support(method: str, backends: Iterable[str], nodes: Iterable[NodeReport]) -> Iterator[str]:
    """Yield a sentence for each reason that keeps most of a method from a backend."""
    for backend in backends:
        shares: dict[tuple[Reason, str], list[NodeReport]] = {}
        for node in nodes:
            verdict = node.verdicts[backend]
            if verdict.reason in _OF_THE_MODEL and node.backend == PORTABLE:
                shares.setdefault((verdict.reason, node.result.partition("[")[0]), []).append(node)
        for (reason, dtype), members in shares.items():
            share = math.fsum(n.work for n in members)
            if share >= _MOST:
                costliest = max(members, key=lambda n: n.work).verdicts[backend]
                details = "; ".join(part for part in (costliest.message, costliest.remedy) if part)
                yield f"{method}: {share:.0%} of the operations, in {dtype}, are not on {backend}: {reason}: {details}"


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


class _MethodRows:
    """The rows of one method.

    Args:
        plan: the method's plan.
        costs: the estimates.
        notes: name of a partition -> notes of its backend.
    """

    def __init__(self, plan: Plan, costs: Estimates, notes: Mapping[str, tuple[str, ...]]) -> None:
        self.plan, self.name, self._costs, self._notes = plan, plan.program.name, costs, notes
        extractors = [*map(RegionExtractor, plan.walk())]
        self._boundaries = {p.name: e.boundary(p) for e in extractors for p in e.plan.partitions}
        planned = [n for part in plan.walk() for n in part.nodes]
        self._work = sum(work(n.node) for n in planned)
        calls = [costs.call(p.backend, self._crossing(p)) for p in plan.all_partitions()]
        self._seconds = math.fsum((*(costs.node(n.node, n.backend or PORTABLE) for n in planned), *calls))
        self.nodes, self.partitions = list[NodeReport](), list[PartitionReport]()
        for part in plan.walk():
            prefix, placeholders = _prefix(plan, part), _placeholder_names(part.program)
            self.nodes += (self._node(n, prefix, placeholders) for n in part.nodes)
            self.partitions += (self._partition(p, prefix) for p in part.partitions)

    def _node(self, planned: NodePlan, prefix: str, placeholders: Mapping[str, str]) -> NodeReport:
        node, place = planned.node, planned.backend or PORTABLE
        return NodeReport(
            method=self.name,
            name=prefix + node.name,
            op=planned.op,
            backend=place,
            partition=planned.partition or "",
            verdicts={name: replace(v, tag="") if v.tag else v for name, v in planned.verdicts.items()},
            result=", ".join(map(shape_text, tensors(node))),
            source=source_line(node),
            module=module_path(node),
            work=self._share(node),
            time=self._costs.node(node, place) / self._seconds if self._seconds else 0.0,
            inputs=tuple(dict.fromkeys(_sources(node, prefix, placeholders))),
            nbytes=nbytes(node),
        )

    def _partition(self, partition: Partition, prefix: str) -> PartitionReport:
        boundary, seconds = self._boundaries[partition.name], 0.0
        if self.plan.seconds:  # the plan is by these estimates
            seconds = self._costs.partition(partition.backend, partition.nodes, self._crossing(partition))
        computing = [n for n in partition.nodes if is_compute(n)]
        return PartitionReport(
            method=self.name,
            name=partition.name,
            backend=partition.backend,
            nodes=tuple(prefix + n.name for n in computing),
            bytes_in=sum(nbytes(n) for n in boundary.inputs),
            bytes_out=sum(nbytes(n) for n in boundary.outputs),
            work=math.fsum(self._share(n) for n in computing),
            notes=self._notes.get(partition.name, ()),
            patterns=tuple(
                PatternReport(claim.name, tuple(prefix + n.name for n in claim.nodes if is_compute(n)))
                for claim in partition.patterns
            ),
            seconds=float(f"{seconds:.3g}"),
        )

    def _crossing(self, partition: Partition) -> tuple[Node, ...]:
        boundary = self._boundaries[partition.name]
        return (*boundary.inputs, *boundary.outputs)

    def _share(self, node: Node) -> float:
        return work(node) / self._work if self._work else 0.0
