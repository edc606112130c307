"""The values of `to_backend(placement=...)`, and `PlacementPolicy`, the base class of your own choice.

A `SavedPlan` is a value too: it has the backend of every node. `strategies.py` has the strategy of each.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from delegate.costs.quantities import work
from delegate.edge.graphs import identity
from delegate.edge.node import module_path
from delegate.errors import PartitionError
from delegate.partitioner.plan import NodePlan, Plan
from delegate.partitioner.saved import SavedPartition, SavedPlan
from delegate.verdict import Verdict

PathLike = str | os.PathLike[str]
Objective = Literal["latency", "memory", "file size"]


@dataclass(frozen=True, slots=True)
class ByPreference:
    """Run a node on the first backend, in the order of preference, that supports it, without measuring anything.

    Example::

        placement = delegate.ByPreference(lockfile="model.lock")
        program = delegate.to_backend(exported, "xnnpack", placement=placement)

    Args:
        lockfile: path of a lockfile to write, with the backend of each node.
    """

    lockfile: PathLike | None = None


@dataclass(frozen=True, slots=True)
class Estimated:
    """Take the plan with the least estimated time, by the profile of a machine. The default if no backend is named.

    Plans with estimates that are close run in turns on the example inputs of the export, and the fastest is taken.

    Example::

        placement = delegate.Estimated(race=0)
        program = delegate.to_backend(exported, placement=placement)

    Args:
        race: most seconds for running such plans, which also take at most half the time of lowering. 0: none run, so
            that equal models have equal plans.
        machine: path of another machine's profile, from `delegate calibrate`. None: the profile of this machine.
        lockfile: path of a lockfile to write, with the backend of each node.
    """

    race: float = 2.0
    machine: PathLike | None = None
    lockfile: PathLike | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """Run single-backend and mixed plans, and take the best; see docs/how-to/placement.md.

    Example::

        placement = delegate.Measured(lockfile="model.lock")
        program = delegate.to_backend(exported, ["openvino", "xnnpack"], placement=placement)

    Args:
        budget: seconds for compiling candidates and measuring them. None: as configured, which is 60 unless changed.
        objective: what is least in the best plan. None: as configured, which is the latency unless changed.
        lockfile: path of a lockfile to write, with the backend of each node and its measured cost.
        cluster: address of a Ray cluster, as for `ray.init`. Candidates are measured on its nodes that have the
            backends as resources. None: this machine measures. A cluster requires the package in plugins/ray.
    """

    budget: float | None = None
    objective: Objective | None = None
    lockfile: PathLike | None = None
    cluster: str | None = None


@dataclass(frozen=True, slots=True)
class Remote:
    """Take the best plan by measurements of another machine, where `delegate measure` runs a bundle of programs.

    Example::

        placement = delegate.Remote("model.bundle", ["phone.costs"])
        program = delegate.to_backend(exported, "xnnpack", placement=placement)

    Without costs the plan of the first candidate is used meanwhile. At least one of `bundle` and `costs` is required,
    and the package in plugins/remote.

    Args:
        bundle: path of the bundle to write, with the candidates' programs and inputs. With costs it has the plans that
            are promising by these.
        costs: path of the results that `delegate measure` wrote, or a list, one for each bundle.
        objective: see `Measured`.
        lockfile: path of a lockfile to write, with the backend of each node and its measured cost.
    """

    bundle: PathLike | None = None
    costs: PathLike | Sequence[PathLike] = ()
    objective: Objective | None = None
    lockfile: PathLike | None = None


@dataclass(frozen=True, slots=True)
class Replay:
    """Place every node as in a lockfile, without measuring anything.

    Example::

        program = delegate.to_backend(exported, "xnnpack", placement=delegate.Replay("model.lock"))

    Args:
        locked: path of the lockfile to apply.
        lockfile: path of a lockfile to write, with the versions of this machine.
    """

    locked: PathLike
    lockfile: PathLike | None = None


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


PlacementRequest = ByPreference | Estimated | Measured | Remote | Replay | SavedPlan | PlacementPolicy
