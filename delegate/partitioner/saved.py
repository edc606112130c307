"""A plan as data, to save, compare and apply: the backend of each node, by a stable identity."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch.fx import Node

from delegate.backend.aot import Claim
from delegate.common.field_checks import build, fault, require_format
from delegate.common.files import read_text, write_text
from delegate.edge.graphs import identity
from delegate.edge.node import is_compute
from delegate.edge.program import DecompositionRound
from delegate.errors import PartitionError
from delegate.partitioner.plan import Partition, Plan
from delegate.verdict import Reason, Verdict, no

_FORMAT = 4
_AFTER = (str(Reason.TOO_SMALL), str(Reason.SLOWER))  # reasons that may follow from other nodes of the partition
BY_THE_PLAN = no(Reason.PINNED, "by the plan")
_EDIT = "save a plan again, of this model with these backends and options, or edit this one"
_NAMED = 3  # most nodes that a message names


@dataclass(frozen=True, slots=True)
class SavedPartition:
    """One partition.

    Args:
        graph: the method, or a graph of its control flow, e.g. "forward" or "forward.true_graph_0".
        name: The partition's name.
        backend: that runs the partition.
        nodes: identities of the computing nodes, e.g. "encoder.0:aten.linear.default#0", in order.
    """

    graph: str
    name: str
    backend: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True, repr=False)
class SavedPlan:
    """The backends of a program's nodes. Nodes without a partition run on portable kernels.

    Example::

        program.plan.save("plan.json")
        again = delegate.to_backend(exported, "xnnpack", placement=delegate.SavedPlan.load("plan.json"))

    Args:
        partitions: Partitions in the order of methods and graphs.
        whole: the compound operators that were preserved, also for nodes that were folded. They depend on the
            queried backends. The plan names nodes of such graphs. None: not known.
        decompositions: the compound nodes that were decomposed before the planned graphs were complete, in rounds.
    """

    partitions: tuple[SavedPartition, ...]
    whole: tuple[str, ...] | None = None
    decompositions: tuple[DecompositionRound, ...] = ()

    @classmethod
    def of(cls, plans: Sequence[Plan]) -> SavedPlan:
        """Return the data of plans, one per method."""
        programs, parts = [plan.program for plan in plans], [part for plan in plans for part in plan.walk()]
        return cls(
            tuple(_save_partition(part.program.name, p) for part in parts for p in part.partitions),
            tuple(sorted({op for program in programs for op in program.preserved})),
            tuple(each for program in programs for each in program.decompositions),
        )

    def __repr__(self) -> str:
        count, nodes = len(self.partitions), sum(len(p.nodes) for p in self.partitions)
        if not count:
            return "<SavedPlan of no partition>"
        partitions = f"{count} partition{'s' * (count != 1)} on {', '.join(self.backends)}"
        return f"<SavedPlan of {partitions}, {nodes} node{'s' * (nodes != 1)}>"

    def to_json(self) -> str:
        """Return the plan as JSON, one partition per line; equal plans have equal texts."""
        lines = ",\n".join(json.dumps(asdict(p), ensure_ascii=False) for p in self.partitions)
        whole = "" if self.whole is None else f'"whole": {json.dumps(self.whole)}, '
        rounds = f'"decompositions": {json.dumps(self.decompositions)}, ' if self.decompositions else ""
        return f'{{"format": {_FORMAT}, {whole}{rounds}"partitions": [\n{lines}\n]}}\n'

    @classmethod
    def from_json(cls, source: str, where: str = "") -> SavedPlan:
        """Return the plan in a text from `to_json`; raise PartitionError for other texts.

        `where` is for the message.
        """
        try:
            return cls.from_data(json.loads(source))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            what = f"the plan cannot be read, {fault(error)}"
            raise PartitionError(what, where=where, remedy="save it again: `program.plan.save(path)`") from error

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> SavedPlan:
        """Return the plan of parsed JSON; raises KeyError, TypeError or ValueError for other data."""
        require_format(data, _FORMAT)
        plan = build(cls, data)
        _require_unique_nodes(plan.partitions)
        if not all(nodes for each in plan.decompositions for nodes in each.values()):
            raise ValueError("decompositions should have nodes for each graph")
        return plan

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan to a file; raises PartitionError if writing fails."""
        write_text(path, self.to_json(), "the plan")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SavedPlan:
        """Read a plan from a file; raises PartitionError if the file has no plan."""
        return cls.from_json(read_text(path, "the plan", "save one: `program.plan.save(path)`"), str(path))

    @property
    def backends(self) -> tuple[str, ...]:
        """The backends that run nodes, in alphabetical order."""
        return tuple(sorted({p.backend for p in self.partitions}))

    def places(self) -> dict[tuple[str, str], str]:
        """Return the backend of each node, by (graph, identity of the node)."""
        return {(p.graph, node): p.backend for p in self.partitions for node in p.nodes}

    def _list_decomposed(self) -> dict[tuple[str, str], None]:
        rounds = (each.items() for each in self.decompositions)
        return {(graph, node): None for each in rounds for graph, nodes in each for node in nodes}

    def differences(self, other: SavedPlan) -> tuple[str, ...]:
        """Return the nodes that moved from this plan to another, one line per node, without names of partitions.

        If the plans preserve different operators, their nodes differ, and the first line reports this. The time and the
        text are linear in the plans.
        """
        mine, others = self.places(), other.places()
        in_one = sorted({*(self.whole or ())} ^ {*(other.whole or ())})
        moved = [
            f"{graph}: {node}: {mine.get((graph, node), 'portable')} -> {others.get((graph, node), 'portable')}"
            for graph, node in dict.fromkeys((*mine, *others))
            if mine.get((graph, node)) != others.get((graph, node))
        ]
        note = f"operators that only one of the plans preserves, so that nodes differ: {', '.join(in_one)}"
        return (note, *moved) if moved and in_one and None not in (self.whole, other.whole) else tuple(moved)

    def require_applied(self, plans: Sequence[Plan], where: str = "", remedy: str = _EDIT) -> None:
        """Raise PartitionError if plans of this plan's partitioners assign a node to another backend.

        `where`, the origin of this plan, and `remedy` are for the message.
        """
        applied = SavedPlan.of(plans)
        actual = applied.places()
        done = applied._list_decomposed()
        if missing := [key for key in self._list_decomposed() if key not in done]:
            graph, node = missing[0]
            what = f"the plan cannot be applied: {graph} has no node {node} to decompose"
            raise PartitionError(what, where=where, remedy=remedy)
        lost = [(*key, backend) for key, backend in self.places().items() if actual.get(key) != backend]
        if lost:
            causes = sorted(
                ((_obstacle(plans, *key), *key) for key in lost), key=lambda item: item[0].startswith(_AFTER)
            )
            named = "; ".join(
                f"{node} of {graph} on {backend} ({why})" for why, graph, node, backend in causes[:_NAMED]
            )
            more = f"; and {len(lost) - _NAMED} more" if len(lost) > _NAMED else ""
            raise PartitionError(f"the plan cannot be applied: {named}{more}", where=where, remedy=remedy)


@dataclass(frozen=True, slots=True)
class AppliedPlan:
    """A plan that decides where the nodes of a program run; it separates nodes of different partitions.

    Args:
        partitions: graph and name of a node -> its partition.
        refusal: the verdict on a node that a backend supports but the plan assigns to another one.
        name_of: returns the name of a node.
    """

    partitions: Mapping[tuple[str, str], SavedPartition]
    refusal: Verdict = BY_THE_PLAN
    name_of: Callable[[Node], str] = identity

    @classmethod
    def of(cls, plan: SavedPlan, refusal: Verdict) -> AppliedPlan:
        """Return a saved plan to apply."""
        return cls({(p.graph, node): p for p in plan.partitions for node in p.nodes}, refusal)

    def apply(
        self, graph: str, verdicts: Mapping[Node, dict[str, Verdict]], claims: Mapping[str, Sequence[Claim]]
    ) -> dict[str, Sequence[Claim]]:
        """Refuse nodes of one graph on other backends, tag the others by partition, and return the remaining claims."""
        partition_of = {node: self.partitions.get((graph, self.name_of(node))) for node in verdicts}
        for node, own in verdicts.items():
            partition = partition_of[node]
            for backend, verdict in own.items():
                if verdict and partition is not None and partition.backend == backend:
                    own[backend] = replace(verdict, tag=verdict.tag + partition.name)
                elif verdict:
                    own[backend] = self.refusal
        remaining: dict[str, Sequence[Claim]] = {}
        for backend, claimed in claims.items():
            whole = []
            for claim in claimed:
                first, *others = dict.fromkeys(partition_of[n] for n in claim.nodes if n in partition_of)
                if not others and first is not None and first.backend == backend:
                    whole.append(replace(claim, verdict=replace(claim.verdict, tag=claim.verdict.tag + first.name)))
            remaining[backend] = whole
        return remaining


def _save_partition(graph: str, partition: Partition) -> SavedPartition:
    nodes = tuple(identity(n) for n in partition.nodes if is_compute(n))
    return SavedPartition(graph, partition.name, partition.backend, nodes)


def _obstacle(plans: Iterable[Plan], graph: str, node: str, backend: str) -> str:
    """Return the reason why a node does not run on the backend that a saved plan names."""
    parts = [part for plan in plans for part in plan.walk() if part.program.name == graph]
    if not parts:
        return f"there is no graph {graph}"
    planned = next((n for part in parts for n in part.nodes if identity(n.node) == node), None)
    if planned is None:
        return f"{graph} has no such node"
    return str(planned.verdicts[backend])


def _require_unique_nodes(partitions: Iterable[SavedPartition]) -> None:
    partition_of: dict[tuple[str, str], str] = {}
    names: set[tuple[str, str]] = set()
    for partition in partitions:
        if (partition.graph, partition.name) in names:
            raise ValueError(f"two partitions of {partition.graph} have the name {partition.name}")
        names.add((partition.graph, partition.name))
        for node in partition.nodes:
            if (partition.graph, node) in partition_of:
                other = partition_of[partition.graph, node]
                places = f"in {other} and in {partition.name}" if other != partition.name else f"twice in {other}"
                raise ValueError(f"{node} of {partition.graph} appears {places}")
            partition_of[partition.graph, node] = partition.name
