"""Plan: the backend of each node of a method, the partitions with their order and parallel groups, and the reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from torch.fx import Node

from delegate.backends.aot import Claim
from delegate.edge.program import EdgeProgram
from delegate.errors import PartitionError
from delegate.verdict import Verdict


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """Nodes that become one delegate call.

    Args:
        name: unique in the plan and the plans of its control flow, e.g. "xnnpack_0".
        backend: that runs it.
        nodes: in topological order, with the getitem nodes of its members' results.
        in_parts: nodes that are decomposed for the backend.
        patterns: pattern matches of the backend.
    """

    name: str
    backend: str
    nodes: tuple[Node, ...]
    in_parts: tuple[Node, ...] = ()
    patterns: tuple[Claim, ...] = ()


Unit = Node | Partition
Group = tuple[tuple[str, ...], ...]  # branches of partitions by name; the branches run in parallel


@dataclass(frozen=True, slots=True, eq=False)
class NodePlan:
    """The backend and partition of one node.

    Args:
        node: of the program's graph; it computes more than sizes.
        op: name of its operator.
        verdicts: by backend, for all backends of the plan.
        backend: that runs the node; None for portable.
        partition: name of its partition; None for portable.
    """

    node: Node
    op: str
    verdicts: Mapping[str, Verdict]
    backend: str | None
    partition: str | None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Plan:
    """The backends and partitions of all nodes of one graph.

    Args:
        program: the method, or one graph of a method's control flow.
        backends: in order of preference.
        nodes: the nodes that compute, in the graph's order.
        partitions: in the order in which they run.
        order: nodes of the host and partitions in a valid order, without placeholders and output.
        notes: for people, e.g. patterns of the configuration that matched nothing.
        nested: plans of the graphs of control flow, by the target of their get_attr node.
        is_nested: True for a plan of a graph of control flow.
        needs_decomposition: compound nodes that no backend and no kernel runs. They must be decomposed and the graph
            planned again before it can be lowered.
        together: groups of partitions of this graph that run in parallel.
    """

    program: EdgeProgram
    backends: tuple[str, ...]
    nodes: tuple[NodePlan, ...]
    partitions: tuple[Partition, ...]
    order: tuple[Unit, ...]
    notes: tuple[str, ...] = ()
    nested: Mapping[str, Plan] = field(default_factory=dict)
    is_nested: bool = False
    needs_decomposition: tuple[Node, ...] = ()
    together: tuple[Group, ...] = ()

    def walk(self) -> Iterator[Plan]:
        """Yield this plan and its nested plans, outermost first."""
        yield self
        for plan in self.nested.values():
            yield from plan.walk()

    def __repr__(self) -> str:
        return f"<Plan of {self._summary()}>"

    def _summary(self) -> str:
        counts = Counter(n.backend or "portable" for n in self.nodes)
        summary = ", ".join(f"{count} nodes {backend}" for backend, count in counts.items())
        return f"{self.program.name}: {len(self.partitions)} partitions; {summary or 'no nodes'}"

    def __str__(self) -> str:
        lines = [self._summary()]
        lines += [f"  {p.name}: {', '.join(n.name for n in p.nodes)}" for p in self.partitions]
        lines += [f"  at the same time: {' | '.join(', '.join(names) for names in group)}" for group in self.together]
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join([*lines, *(str(plan) for plan in self.nested.values())])


Place = tuple[int, int]  # the number of a group, and of a branch in it


def describe_group(group: Group) -> str:
    """Return the branches of a group as text for messages."""
    return " and ".join(" with ".join(branch) for branch in group)


def with_parallel_groups(plan: Plan, place: Callable[[Plan, Partition], Place | None]) -> Plan:
    """Return the plan and its nested plans with groups of partitions that run in parallel.

    Args:
        plan: of one method.
        place: returns the group and branch of a partition; None for a partition without a group.

    Raises:
        PartitionError: a partition needs a result of another branch.
    """
    members: dict[int, dict[int, list[str]]] = {}
    for partition in plan.partitions:
        if (at := place(plan, partition)) is not None:
            members.setdefault(at[0], {}).setdefault(at[1], []).append(partition.name)
    groups = tuple(
        tuple(tuple(names) for _, names in sorted(branches.items()))
        for _, branches in sorted(members.items())
        if len(branches) > 1
    )
    for group in groups:
        _require_independent(plan, group)
    nested = {name: with_parallel_groups(part, place) for name, part in plan.nested.items()}
    return replace(plan, together=groups, nested=nested)


def _require_independent(plan: Plan, group: Group) -> None:
    """Raise PartitionError if a partition depends on a partition of another branch."""
    branch = {name: number for number, names in enumerate(group) for name in names}
    depends_on: dict[Node, Mapping[int, str]] = {}  # node -> branch -> a partition of it that the node depends on
    for unit in plan.order:
        nodes = unit.nodes if isinstance(unit, Partition) else (unit,)
        before: dict[int, str] = {}
        for source in _sources(nodes):
            before.update(depends_on.get(source, {}))
        if isinstance(unit, Partition) and (own := branch.get(unit.name)) is not None:
            others = [name for number, name in before.items() if number != own]
            if others:
                raise PartitionError(
                    f"{others[0]} and {unit.name} cannot run at the same time: the second needs results of the first",
                    where=plan.program.name,
                    remedy="name parts of the model that do not depend on each other",
                )
            before[own] = unit.name
        depends_on.update(dict.fromkeys(nodes, before))


def _sources(nodes: Iterable[Node]) -> Iterable[Node]:
    return (source for node in nodes for source in node.all_input_nodes)
