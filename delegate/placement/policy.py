"""A choice of your own: the support of the backends for each node, and the class that places nodes by it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch.export import ExportedProgram

from delegate.accuracy.bounds import Verify
from delegate.costs.quantities import work
from delegate.edge.graphs import identity
from delegate.edge.node import module_path
from delegate.errors import ConfigError, PartitionError
from delegate.lowering.compiler import Compiler
from delegate.partitioner.plan import NodePlan, Plan
from delegate.partitioner.saved import BY_THE_PLAN, SavedPartition, SavedPlan
from delegate.placement.strategy import Placed, Strategy
from delegate.verdict import Verdict


@dataclass(frozen=True, slots=True)
class NodeSupport:
    """The support of the backends for one node.

    Args:
        graph: the method, or a graph of its control flow, e.g. "forward.true_graph_0".
        identity: stable name of the node, as in saved plans, e.g. "encoder.0:aten.linear.default#0".
        op: name of its operator, e.g. "aten.linear.default".
        module: path of its module; empty if it is in none.
        work: estimated operations: 2 per multiply-add, else 1 per element read or written.
        verdicts: Backend name -> its verdict, in order of preference.
    """

    graph: str
    identity: str
    op: str
    module: str
    work: int
    verdicts: Mapping[str, Verdict]

    @property
    def supported_by(self) -> tuple[str, ...]:
        """The backends that support the node, in order of preference."""
        return tuple(name for name, verdict in self.verdicts.items() if verdict)


@dataclass(frozen=True, slots=True)
class SupportTable:
    """The support of the backends for all nodes of a program.

    Args:
        backends: Backends in order of preference.
        nodes: those that compute, in the order of methods and graphs.
    """

    backends: tuple[str, ...]
    nodes: tuple[NodeSupport, ...]

    @classmethod
    def of(cls, plans: Sequence[Mapping[str, Plan]]) -> SupportTable:
        """Return the plan table of one graph per method: backend -> the plan that prefers it.

        So the verdict on a node counts the patterns of its backend.
        """
        nodes = []
        for by_backend in plans:
            for parts in zip(*(plan.walk() for plan in by_backend.values()), strict=True):
                for same in zip(*(part.nodes for part in parts), strict=True):
                    verdicts = {name: n.verdicts[name] for name, n in zip(by_backend, same, strict=True)}
                    nodes.append(_support(parts[0].program.name, same[0], verdicts))
        return cls(tuple(plans[0]) if plans else (), tuple(nodes))

    def plan(self, choose: Callable[[NodeSupport], str | None]) -> SavedPlan:
        """Return the plan of a choice for each node.

        Args:
            choose: returns the name of a backend that supports the node; None for portable kernels. Neighbours on one
                backend share a partition if their partition is convex.
        """
        nodes_of: dict[tuple[str, str], list[str]] = {}
        for node in self.nodes:
            if (backend := choose(node)) is not None:
                nodes_of.setdefault((node.graph, backend), []).append(node.identity)
        return SavedPlan(
            tuple(SavedPartition(graph, backend, backend, tuple(own)) for (graph, backend), own in nodes_of.items())
        )

    def require_supported(self, plan: SavedPlan) -> None:
        """Raise PartitionError if a plan has a node that the table does not have, or its backend does not support."""
        rows = {(node.graph, node.identity): node for node in self.nodes}
        for (graph, name), backend in plan.places().items():
            row = rows.get((graph, name))
            if row is None or not row.verdicts[backend]:
                why = f"{backend} does not support it ({row.verdicts[backend]})" if row else "there is no such node"
                remedy = "place only nodes of the table, each on a backend of its `supported_by`"
                raise PartitionError(f"the policy places {name} of {graph} on {backend}: {why}", remedy=remedy)


def _support(graph: str, node: NodePlan, verdicts: Mapping[str, Verdict]) -> NodeSupport:
    return NodeSupport(graph, identity(node.node), node.op, module_path(node.node), work(node.node), verdicts)


class PlacementPolicy(ABC):
    """A choice of one backend for each node, from the support of the backends. See docs/how-to/placement.md.

    Example::

        class Last(delegate.PlacementPolicy):
            def place(self, table):
                return table.plan(lambda node: node.supported_by[-1] if node.supported_by else None)


        program = delegate.to_backend(exported, "xnnpack", placement=Last())
    """

    @abstractmethod
    def place(self, table: SupportTable) -> SavedPlan:
        """Return the plan, in which nodes without a partition run on portable kernels.

        The method is called once for a program, and `to_backend` raises a PartitionError for a node on a backend that
        does not support it. The plan is applied as it is, with partitions of any size.

        Args:
            table: the support of the requested backends; empty if there are none.
        """


class ByPolicy(Strategy):
    """Place as a policy of the user chooses."""

    is_cacheable = False  # nobody can compare the code of a policy

    def __init__(self, policy: PlacementPolicy) -> None:
        super().__init__()
        self._policy = policy

    def place(self, compiler: Compiler, exported: Mapping[str, ExportedProgram], check: Verify) -> Placed:
        table = SupportTable.of(compiler.plan_each_backend_first())
        plan = self._policy.place(table)
        if not isinstance(plan, SavedPlan):
            what = f"{type(self._policy).__name__}.place returned a {type(plan).__name__}"
            raise ConfigError(what, where="placement", remedy="return a delegate.SavedPlan, e.g. of `table.plan`")
        compiler.apply(plan, BY_THE_PLAN)
        table.require_supported(plan)
        return Placed(compiler, exported)
