"""Plan: which backend runs which nodes of a method, in which partitions and order, and why not elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from torch.fx import Node

from delegate.backends.aot import Claim
from delegate.edge.program import EdgeProgram
from delegate.verdict import Verdict


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """Nodes that become one delegate call.

    Args:
        name: unique in the plan and the plans of its control flow, e.g. "xnnpack_0".
        backend: that runs it.
        nodes: in topological order, with the getitem nodes that pick results of its members.
        in_parts: those of them that the backend takes in parts.
        patterns: those that the backend claimed as one.
    """

    name: str
    backend: str
    nodes: tuple[Node, ...]
    in_parts: tuple[Node, ...] = ()
    patterns: tuple[Claim, ...] = ()


Unit = Node | Partition
Group = tuple[tuple[str, ...], ...]  # partitions by name: those of different branches run at the same time


@dataclass(frozen=True, slots=True, eq=False)
class NodePlan:
    """Where one node runs.

    Args:
        node: of the program's graph; a node that computes, and more than sizes.
        op: name of its operator.
        verdicts: backend -> its verdict, for all backends of the plan.
        backend: that runs it; None for portable.
        partition: name of its partition; None for portable.
    """

    node: Node
    op: str
    verdicts: Mapping[str, Verdict]
    backend: str | None
    partition: str | None


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Where all nodes of one graph run.

    Args:
        program: the method, or one graph of a method's control flow.
        backends: that were asked, in order of preference.
        nodes: the nodes that compute, in the graph's order.
        partitions: in the order in which they run.
        order: nodes of the host and partitions in an order that may run; placeholders and output are not in it.
        notes: for people, e.g. patterns of the configuration that matched nothing.
        nested: plans of the graphs of control flow, by the target of their get_attr node.
        is_nested: whether it is itself such a plan.
        to_take_apart: compound nodes that must be taken apart before anything can be lowered: nobody runs them as they
            stand. The graph is planned again then.
        together: groups of partitions of this graph that run at the same time.
    """

    program: EdgeProgram
    backends: tuple[str, ...]
    nodes: tuple[NodePlan, ...]
    partitions: tuple[Partition, ...]
    order: tuple[Unit, ...]
    notes: tuple[str, ...] = ()
    nested: Mapping[str, Plan] = field(default_factory=dict)
    is_nested: bool = False
    to_take_apart: tuple[Node, ...] = ()
    together: tuple[Group, ...] = ()

    def walk(self) -> Iterator[Plan]:
        """This plan and all that are nested in it, outermost first."""
        yield self
        for plan in self.nested.values():
            yield from plan.walk()

    def __str__(self) -> str:
        counts = Counter(n.backend or "portable" for n in self.nodes)
        places = ", ".join(f"{count} nodes {place}" for place, count in counts.items())
        lines = [f"{self.program.name}: {len(self.partitions)} partitions; {places or 'no nodes'}"]
        lines += [f"  {p.name}: {', '.join(n.name for n in p.nodes)}" for p in self.partitions]
        lines += [f"  at the same time: {' | '.join(', '.join(names) for names in group)}" for group in self.together]
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join([*lines, *(str(plan) for plan in self.nested.values())])
