"""A plan as data, to save, compare and apply: the backend of each node, by a stable identity."""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field
from typing import Any

from torch.fx import Node

from delegate.edge.graphs import identity
from delegate.edge.node import is_compute
from delegate.edge.program import DecompositionRound, EdgeProgram
from delegate.errors import PartitionError
from delegate.field_checks import fault, items
from delegate.files import read_text, write_text
from delegate.partitioner.partitioner import Partitioner
from delegate.partitioner.plan import Group, Partition, Place, Plan, with_parallel_groups
from delegate.partitioner.support_query import Check
from delegate.verdict import Reason, Verdict, no

_FORMAT = 4  # 1 had no preserved operators, 2 no parallel groups, 3 no decompositions
_AFTER = (str(Reason.TOO_SMALL), str(Reason.SLOWER))  # reasons that may follow from other nodes of the partition
BY_THE_PLAN = no(Reason.PINNED, "by the plan")
_EDIT = "save a plan again, of this model with these backends and options, or edit this one"
_NO_GROUP = (-1, -1)  # the group and branch of a partition that is in none
_NAMED = 3  # most nodes that a message names

_Groups = Sequence[Sequence[Sequence[str]]]  # of branches of partitions


@dataclass(frozen=True, slots=True)
class SavedPartition:
    """One partition.

    Args:
        graph: the method, or a graph of its control flow, e.g. "forward" or "forward.true_graph_0".
        name: of the partition.
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
        partitions: in the order of methods and graphs.
        whole: the compound operators that were preserved, also those of nodes that were folded. They depend on the
            queried backends. The plan names nodes of such graphs. None: not known.
        together: groups of branches of partitions, by name; the branches of a group run in parallel.
        decompositions: the compound nodes that were decomposed before the planned graphs were complete, in rounds.
    """

    partitions: tuple[SavedPartition, ...]
    whole: tuple[str, ...] | None = None
    together: tuple[Group, ...] = ()
    decompositions: tuple[DecompositionRound, ...] = ()

    @classmethod
    def of(cls, plans: Sequence[Plan]) -> SavedPlan:
        """Return the data of plans, one per method."""
        programs, parts = [plan.program for plan in plans], [part for plan in plans for part in plan.walk()]
        return cls(
            tuple(_saved(part.program.name, p) for part in parts for p in part.partitions),
            tuple(sorted({op for program in programs for op in program.preserved})),
            tuple(group for part in parts for group in part.together),
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
        together = f'"together": {json.dumps(self.together)}, ' if self.together else ""
        rounds = f'"decompositions": {json.dumps(self.decompositions)}, ' if self.decompositions else ""
        return f'{{"format": {_FORMAT}, {whole}{together}{rounds}"partitions": [\n{lines}\n]}}\n'

    @classmethod
    def from_json(cls, text: str, where: str = "") -> SavedPlan:
        """Return the plan of a text of `to_json`; raise PartitionError for other texts. `where` is for the message."""
        try:
            data = json.loads(text)
            if type(data["format"]) is not int or not 1 <= data["format"] <= _FORMAT:
                raise ValueError(f"its format is {data['format']!r}, but only formats 1 to {_FORMAT} are supported")
            whole = data.get("whole")
            if whole is not None and not _is_texts(whole):
                raise ValueError("whole should be a list of operators")
            partitions = tuple(_partition(p) for p in items(data, "partitions"))
            _require_unique_nodes(partitions)
            together = _groups(data.get("together", []), {p.name for p in partitions})
            rounds = tuple(map(_round, items({"decompositions": [], **data}, "decompositions")))
            return cls(partitions, None if whole is None else tuple(whole), together, rounds)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            what = f"the plan cannot be read, {fault(error)}"
            raise PartitionError(what, where=where, remedy="save it again: `program.plan.save(path)`") from error

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

    def _decomposed(self) -> dict[tuple[str, str], None]:
        rounds = (each.items() for each in self.decompositions)
        return {(graph, node): None for each in rounds for graph, nodes in each for node in nodes}

    def differences(self, other: SavedPlan) -> tuple[str, ...]:
        """Return the nodes that moved from this plan to another, one line per node, without names of partitions.

        The partitions that no longer run in parallel follow, then those that do now, at most one line per partition. If
        the plans preserve different operators, their nodes differ, and the first line reports this. The time and the
        text are linear in the plans.
        """
        mine, others = self.places(), other.places()
        in_one = sorted({*(self.whole or ())} ^ {*(other.whole or ())})
        moved = [
            f"{graph}: {node}: {mine.get((graph, node), 'portable')} -> {others.get((graph, node), 'portable')}"
            for graph, node in dict.fromkeys((*mine, *others))
            if mine.get((graph, node)) != others.get((graph, node))
        ]
        for word, before, after in (("no longer", other, self), ("now", self, other)):
            moved += sorted(_concurrent(word, before._concurrency(), after._concurrency()))
        note = f"operators that only one of the plans preserves, so that nodes differ: {', '.join(in_one)}"
        return (note, *moved) if moved and in_one and None not in (self.whole, other.whole) else tuple(moved)

    def _concurrency(self) -> list[list[list[str]]]:
        """Return the groups as sorted branches of partitions, each named by its first node, not by its own name."""
        first = {p.name: f"{p.graph}: {p.nodes[0]}" for p in self.partitions if p.nodes}
        groups = ([sorted(first[n] for n in names if n in first) for names in group] for group in self.together)
        return [sorted(filter(None, group)) for group in groups]

    def with_parallel_groups(self, plan: Plan) -> Plan:
        """Return a plan of this plan's partitioners with the parallel groups of this plan.

        Raises:
            PartitionError: a partition needs a result of another branch.
        """
        if not self.together:
            return plan
        partition_of = {(p.graph, node): p.name for p in self.partitions for node in p.nodes}
        branches = [(g, b, names) for g, group in enumerate(self.together) for b, names in enumerate(group)]
        places = {name: (g, b) for g, b, names in branches for name in names}

        def place(part: Plan, partition: Partition) -> Place | None:
            own = (partition_of.get((part.program.name, identity(n))) for n in partition.nodes if is_compute(n))
            return next((places[name] for name in own if name in places), None)

        return with_parallel_groups(plan, place)

    def partitioners(
        self, partitioners: Iterable[Partitioner], refusal: Verdict = BY_THE_PLAN
    ) -> tuple[Partitioner, ...]:
        """Return partitioners that assign every node as in this plan.

        Args:
            partitioners: to replace.
            refusal: the verdict on a node that a backend supports but the plan assigns to another one.

        Raises:
            PartitionError: the plan names a backend that is not among the partitioners.
        """
        inner = tuple(partitioners)
        unknown = sorted(set(self.backends) - {p.backend for p in inner})
        if unknown:
            remedy = "name it too, or lower without the plan"
            raise PartitionError(
                f"the plan runs nodes on {unknown[0]!r}, which is not among the backends", remedy=remedy
            )
        return tuple(AsPlanned(p, self, refusal) for p in inner)

    def require_applied(self, plans: Sequence[Plan], where: str = "", remedy: str = _EDIT) -> None:
        """Raise PartitionError if plans of this plan's partitioners assign a node to another backend.

        `where`, the origin of this plan, and `remedy` are for the message.
        """
        applied = SavedPlan.of(plans)
        actual = applied.places()
        done = applied._decomposed()
        if missing := [key for key in self._decomposed() if key not in done]:
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


@dataclass(slots=True)
class AsPlanned(Partitioner):
    """The partitioner of one backend in a saved plan; it separates nodes of different partitions.

    Args:
        inner: the replaced partitioner.
        saved: the plan.
        refusal: the verdict on a node that the backend supports but the plan assigns to another one.
    """

    inner: Partitioner
    saved: SavedPlan
    refusal: Verdict = BY_THE_PLAN
    _partition_of: Mapping[tuple[str, str], str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        Partitioner.__init__(self, self.inner.backend, self.inner.options)
        own = (p for p in self.saved.partitions if p.backend == self.inner.backend)
        self._partition_of = {(p.graph, node): p.name for p in own for node in p.nodes}

    def partition(self, program: EdgeProgram, check: Check) -> Mapping[Node, Verdict]:
        return {n: self._verdict(program.name, n, check) for n in program.graph.nodes if is_compute(n)}

    def _verdict(self, graph: str, node: Node, check: Check) -> Verdict:
        partition = self._partition_of.get((graph, identity(node)))
        verdict = check(node)
        if partition is None:
            return self.refusal if verdict else verdict
        return Verdict(tag=f"{verdict.tag}{partition}", in_parts=verdict.in_parts) if verdict else verdict


def _concurrent(word: str, before: _Groups, after: _Groups) -> Iterator[str]:
    """Yield lines on the pairs of partitions that run in parallel in the groups `after` and not in `before`.

    Two partitions run in parallel if they are in different branches of one group. A line covers partitions of one
    branch and all in later branches. It names only a few and counts the others, as the number of pairs is quadratic.

    Args:
        word: "now" or "no longer".
        before, after: see `SavedPlan._concurrency`.
    """
    places = {name: (g, b) for g, group in enumerate(before) for b, branch in enumerate(group) for name in branch}
    for group in after:
        total = 0  # partitions of later branches
        counts: Counter[int | tuple[int, int]] = Counter()  # of them, by group in `before` and by place
        same: dict[tuple[int, int], list[str]] = {}  # the first of them by place
        others: dict[int, list[str]] = {}  # the first of them of two groups: at least one is not the partition's group
        for branch in reversed(group):
            own: dict[tuple[int, int], list[str]] = {}
            for name in branch:
                own.setdefault(places.get(name, _NO_GROUP), []).append(name)
            for place, names in own.items():
                count = total - counts[place[0]] + counts[place]
                distant = next((o for g, o in others.items() if g != place[0]), [])
                if count:
                    verb = "runs" if len(names) == 1 else "run"
                    partners = _few([*same.get(place, []), *distant], count)
                    yield f"{_few(names, len(names))} {word} {verb} at the same time as {partners}"
            total += len(branch)
            for place, names in own.items():
                counts.update({place[0]: len(names), place: len(names)})
                _extend(same.setdefault(place, []), names)
                if len(others) < 2 or place[0] in others:
                    _extend(others.setdefault(place[0], []), names)


def _few(names: Sequence[str], count: int) -> str:
    """Return the first names as text, with the number of the others."""
    named = names[:_NAMED]
    more = f" and {count - len(named)} more" if count > len(named) else ""
    return ", ".join(named) + more


def _extend(known: list[str], names: Iterable[str]) -> None:
    """Add names to a list, up to the most that a message names."""
    known += itertools.islice(names, _NAMED - len(known))


def _saved(graph: str, partition: Partition) -> SavedPartition:
    nodes = tuple(identity(n) for n in partition.nodes if is_compute(n))
    return SavedPartition(graph, partition.name, partition.backend, nodes)


def _partition(data: Mapping[str, Any]) -> SavedPartition:
    texts = {key: data[key] for key in ("graph", "name", "backend")}
    nodes = data["nodes"]
    if not all(isinstance(t, str) for t in texts.values()) or not _is_texts(nodes):
        raise ValueError("a partition should have graph, name and backend as text, and a list of nodes")
    return SavedPartition(**texts, nodes=tuple(nodes))


def _round(data: Mapping[str, Any]) -> DecompositionRound:
    if not data or not all(_is_texts(nodes) and nodes for nodes in data.values()):
        raise ValueError("a round of decompositions should have lists of nodes by graph")
    return {graph: tuple(nodes) for graph, nodes in data.items()}


def _groups(data: Any, names: Set[str]) -> tuple[Group, ...]:
    """Return the parallel groups of a saved plan; raise if a partition is in several branches or does not exist."""
    if not isinstance(data, list) or not all(isinstance(group, list) and all(map(_is_texts, group)) for group in data):
        raise ValueError("together should be a list of groups of branches, each branch a list of names of partitions")
    for group in data:
        if len(group) < 2 or not all(group):
            raise ValueError("a group of together should have at least two branches, and each branch a partition")
    seen: set[str] = set()
    for name in (name for group in data for branch in group for name in branch):
        if name not in names or name in seen:
            raise ValueError(f"together names {name!r}, {'twice' if name in names else 'which is not a partition'}")
        seen.add(name)
    return tuple(tuple(map(tuple, group)) for group in data)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


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
