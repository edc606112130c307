"""Plan: the backend of each node of a method, the partitions with their order, and the reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from torch.fx import Node

from delegate.backend.aot import Claim
from delegate.edge.program import EdgeProgram
from delegate.verdict import Verdict


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """Nodes that become one delegate call.

    Args:
        name: unique in the plan and the plans of its control flow, e.g. "xnnpack_0".
        backend: that runs it.
        nodes: Nodes in topological order, with the getitem nodes of its members' results.
        in_parts: nodes that are decomposed for the backend.
        patterns: pattern matches of the backend.
    """

    name: str
    backend: str
    nodes: tuple[Node, ...]
    in_parts: tuple[Node, ...] = ()
    patterns: tuple[Claim, ...] = ()


Unit = Node | Partition


@dataclass(frozen=True, slots=True, eq=False)
class NodePlan:
    """The backend and partition of one node.

    Args:
        node: A node of the program's graph that computes more than sizes.
        op: name of its operator.
        verdicts: Backend name -> its verdict, for all backends of the plan.
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
        backends: Backends in order of preference.
        nodes: the nodes that compute, in the graph's order.
        partitions: The partitions in the order in which they run.
        order: nodes of the host and partitions in a valid order, without placeholders and output.
        notes: Notes for people, e.g. patterns of the configuration that matched nothing.
        nested: plans for the graphs of control flow, by the target of their get_attr node.
        is_nested: True for the plan of a control-flow graph.
        needs_decomposition: compound nodes that no backend and no kernel runs. They must be decomposed and the graph
            planned again before it can be lowered.
        seconds: way -> the estimated seconds of calling this graph; the chosen way is the first one.
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
    seconds: Mapping[str, float] = field(default_factory=dict)

    def walk(self) -> Iterator[Plan]:
        """Yield this plan and its nested plans, outermost first."""
        yield self
        for plan in self.nested.values():
            yield from plan.walk()

    def all_partitions(self) -> Iterator[Partition]:
        """Yield the partitions of this plan and of its nested plans."""
        return (partition for plan in self.walk() for partition in plan.partitions)

    def total_seconds(self) -> dict[str, float]:
        """Return way -> the estimated seconds of a call, with each graph of control flow once."""
        totals: dict[str, float] = {}
        for plan in self.walk():
            least = min(plan.seconds.values(), default=0.0)
            for way in self.seconds:
                totals[way] = totals.get(way, 0.0) + plan.seconds.get(way, least)
        return totals

    def __repr__(self) -> str:
        return f"<Plan of {self._summary()}>"

    def _summary(self) -> str:
        counts = Counter(n.backend or "portable" for n in self.nodes)
        summary = ", ".join(f"{count} nodes {backend}" for backend, count in counts.items())
        return f"{self.program.name}: {len(self.partitions)} partitions; {summary or 'no nodes'}"

    def __str__(self) -> str:
        lines = [self._summary()]
        lines += [f"  {p.name}: {', '.join(n.name for n in p.nodes)}" for p in self.partitions]
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join([*lines, *(str(plan) for plan in self.nested.values())])
