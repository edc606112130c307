"""Assignment by preference: each backend forms its partitions from the nodes that earlier backends left.

Later backends never change the partitions of earlier ones. A finished partition is one unit for all later backends.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from torch.fx import Node

from delegate.backend.aot import Claim
from delegate.costs.estimates import Estimates, crossing_values
from delegate.costs.quantities import is_layout, work
from delegate.edge.node import elements, is_compute, is_constant, is_number, is_static, nbytes, op_name, tensors
from delegate.partitioner.plan import Partition, Unit
from delegate.partitioner.scheduling import Dependencies, schedule, topological_order, union_overlapping
from delegate.plugins import PORTABLE
from delegate.verdict import YES, Reason, Verdict, no

MAX_ROUNDS = 16  # of rejecting partitions; the last round accepts the partitions that are still too small
SMALL_SHARE = 0.01  # of a method's work: a partition with more is accepted, whatever its call costs
SMALL_NODES = 8  # with more computing nodes, a partition saves more kernel dispatch than its call costs

Verdicts = dict[str, Verdict]  # backend -> its verdict on one node


@dataclass(frozen=True, slots=True)
class CostThreshold:
    """The limits below which a partition costs more than it saves.

    Args:
        min_size: see `PartitionRules.min_partition_size`; 0 accepts every partition.
        pinned: nodes whose partition is accepted at any size.
        has_kernel: returns if a kernel runs a node without decomposition.
        most_constants: backend -> most elements of constants in a partition; None for no limit.
        costs: the estimated seconds of kernels and of calls.
        by_costs: a partition has to be cheaper than kernels; else only one with little of the work has to.
    """

    min_size: int
    pinned: Set[Node]
    has_kernel: Callable[[Node], bool]
    most_constants: Mapping[str, int | None]
    costs: Estimates
    by_costs: bool = False


def assign(
    nodes: Sequence[Node],
    verdicts: Mapping[Node, Verdicts],
    claims: Mapping[str, Sequence[Claim]],
    backends: Sequence[str],
    threshold: CostThreshold,
) -> list[Unit]:
    """Return the partitions, without names, and the nodes of the host in a valid order.

    A partition below the threshold is rejected, and its nodes go to the next backend that supports them, else to the
    host, and their verdicts give the reason. Views at the boundary that the runtime computes without a copy leave, too.

    Args:
        nodes: A graph's nodes in its order, without placeholders and output.
        verdicts: Verdicts on the nodes that compute; updated for nodes of rejected partitions.
        claims: backend -> its accepted pattern matches.
        backends: Backends in order of preference.
        threshold: limits of an accepted partition.
    """
    table = _Assignment(nodes, verdicts, threshold)
    for backend in backends:
        tags = sorted({v.tag for by_name in verdicts.values() if (v := by_name[backend]).reason is None})
        own = claims.get(backend, ())
        for tag in dict.fromkeys((*tags, *(claim.verdict.tag for claim in own))):
            table.take(backend, tag, [claim for claim in own if claim.verdict.tag == tag])
    return [unit for members in table.units for unit in table.output(members)]


@dataclass(slots=True)
class _Unit:
    members: tuple[int, ...]
    backend: str | None = None
    patterns: tuple[Claim, ...] = ()


@dataclass(slots=True)
class _Assignment:
    """The units of one graph in a valid order, updated backend by backend."""

    nodes: Sequence[Node]
    verdicts: Mapping[Node, Verdicts]
    threshold: CostThreshold
    units: list[_Unit] = field(init=False)
    _index: dict[Node, int] = field(init=False)
    _edges: Dependencies = field(init=False)
    _picks: dict[int, int] = field(init=False)  # a getitem node -> the node whose result it picks
    _delegated: set[Node] = field(default_factory=set)
    _counted: int = 0  # the work of nodes up to _place
    _place: int = 0

    def __post_init__(self) -> None:
        self._index = {node: i for i, node in enumerate(self.nodes)}
        self._edges = Dependencies(self.nodes)
        self._picks = {
            i: self._index[source]
            for i, node in enumerate(self.nodes)
            if node.target is operator.getitem and not is_number(node)
            for source in node.all_input_nodes
            if source in self._index
        }
        self.units = [_Unit((i,)) for i in range(len(self.nodes))]

    def output(self, unit: _Unit) -> Sequence[Unit]:
        """Return a unit as a partition, or as its nodes if they stay on the host."""
        nodes = tuple(self.nodes[i] for i in unit.members)
        return nodes if unit.backend is None else [Partition("", unit.backend, nodes, patterns=unit.patterns)]

    def take(self, backend: str, tag: str, claims: Sequence[Claim]) -> None:
        """Form the partitions of one backend and tag from the nodes on the host."""
        free = {i for unit in self.units if unit.backend is None for i in unit.members}
        matches = [c for c in claims if all(self._index.get(n) in free for n in c.nodes)]
        own = self._own(free, backend, tag)
        accepted: set[tuple[int, ...]] = set()  # partitions over the threshold
        for last in [False] * MAX_ROUNDS + [True]:
            units, merged = self._merge_claims(matches, backend)
            taken = self._take_units(units, merged, own)
            host = {p for p, unit in enumerate(units) if unit.backend is None and p not in taken}
            runs = schedule(taken, self._edges.between([u.members for u in units], host))
            partitions = [tuple(sorted(i for p in run.units for i in units[p].members)) for run in runs if run.taken]
            small = {
                m: why for m in partitions if m not in accepted and (why := self._too_small(m, backend)) is not None
            }
            if last or not small:
                break
            accepted.update(m for m in partitions if m not in small)
            for members, why in small.items():
                self._reject(own.intersection(members), backend, why)
                own.difference_update(members)
            rejected = {self.nodes[i] for members in small for i in members}.intersection(self.verdicts)
            matches = [c for c in matches if rejected.isdisjoint(c.nodes)]
        self._delegated |= {self.nodes[i] for members in partitions for i in members}
        split = [self._split([units[p].members for p in run.units], backend) if run.taken else [] for run in runs]
        patterns = self._by_partition(matches, list(itertools.chain(*split)))
        self.units = []
        for run, parts in zip(runs, split, strict=True):
            for part in parts:
                self._add_partition(backend, part, patterns.get(part, ()))
            if not run.taken:
                self.units += [units[p] for p in run.units]

    def _own(self, free: Set[int], backend: str, tag: str) -> set[int]:
        """Return the free nodes that the backend supports outside of patterns."""
        answers = ((i, self.verdicts.get(self.nodes[i], {}).get(backend)) for i in free)
        return {i for i, v in answers if v is not None and v.reason is None and v.tag == tag}

    def _by_partition(
        self, claims: Sequence[Claim], partitions: Sequence[tuple[int, ...]]
    ) -> dict[tuple[int, ...], list[Claim]]:
        """Group the claims by their partition."""
        partition_of = {i: members for members in partitions for i in members} if claims else {}
        grouped: dict[tuple[int, ...], list[Claim]] = {}
        for claim in claims:
            grouped.setdefault(partition_of[self._index[claim.nodes[0]]], []).append(claim)
        return grouped

    def _split(self, units: Sequence[Sequence[int]], backend: str) -> list[tuple[int, ...]]:
        """Split a partition into several in a row if its constants are too many for one.

        Args:
            units: The partition's units in a valid order; a unit is never split.
            backend: The backend that runs the partition.
        """
        most = self.threshold.most_constants.get(backend)
        members = tuple(sorted(itertools.chain(*units)))
        if (
            most is None
            or _elements({s for i in members for s in self.nodes[i].all_input_nodes if is_constant(s)}) <= most
        ):
            return [members]
        parts: list[list[int]] = [[]]
        held: set[Node] = set()
        total = 0
        part_of: dict[Any, list[int]] = {}
        for unit in units:
            nodes = [self.nodes[m] for m in unit]
            origin = part_of.get(nodes[0].args[0]) if nodes[0].target is operator.getitem else None
            constants = {s for n in nodes for s in n.all_input_nodes if is_constant(s)}
            if origin is None and parts[-1] and total + _elements(constants - held) > most:
                parts.append([])
                held, total = set(), 0
            total += _elements(constants - held)
            held |= constants
            part = parts[-1] if origin is None else origin  # a getitem stays with the producer of its result
            part += unit
            part_of.update(dict.fromkeys(nodes, part))
        return [tuple(sorted(part)) for part in parts]

    def _add_partition(self, backend: str, members: Sequence[int], patterns: Sequence[Claim]) -> None:
        """Add a partition, with its boundary views as units of the host before and after it."""
        claimed = {n: c for c in patterns for n in c.nodes}
        for node in claimed.keys() & self.verdicts.keys():
            self.verdicts[node][backend] = claimed[node].verdict
        fixed = self.threshold.pinned | claimed.keys()
        nodes = [self.nodes[i] for i in members]
        before, after = boundary_views(nodes, fixed, self._delegated) if self.threshold.min_size else ([], [])
        outside = (*before, *after)
        self._delegated.difference_update(outside)
        for node in outside:
            self.verdicts[node][backend] = no(Reason.BORDER, "the runtime does it without a copy")
        moved = {self._index[n] for n in outside}
        self.units += [_Unit((self._index[n],)) for n in before]
        self.units.append(_Unit(tuple(i for i in members if i not in moved), backend, tuple(patterns)))
        self.units += [_Unit((self._index[n],)) for n in after]

    def _merge_claims(self, claims: list[Claim], backend: str) -> tuple[list[_Unit], set[int]]:
        """Merge the units of each claim; return all units in a valid order, and the positions of the merged ones.

        A claim that would form a cycle is removed from the list, and the verdicts of its nodes give this reason.
        """
        if not claims:
            return self.units, set()
        while True:
            groups = union_overlapping([self._index[n] for n in claim.nodes] for claim in claims)
            inside = {i for group in groups for i in group}
            single = [u for u in self.units if u.backend is not None or u.members[0] not in inside]
            units = [*single, *(_Unit(tuple(group)) for group in groups)]
            host = set(range(len(single)))
            edges = self._edges.between([u.members for u in units], host)
            order, cycles = topological_order(edges, [u.members[0] for u in units])
            if not cycles:
                break
            cyclic = {i for p in cycles if p >= len(single) for i in units[p].members}
            for claim in claims:
                if self._index[claim.nodes[0]] in cyclic:
                    self._reject_claim(claim, backend)
            claims[:] = [c for c in claims if self._index[c.nodes[0]] not in cyclic]
            if not claims:
                return self.units, set()
        place = {p: at for at, p in enumerate(order)}
        return [units[p] for p in order], {place[p] for p in range(len(single), len(units))}

    def _reject_claim(self, claim: Claim, backend: str) -> None:
        for node in claim.nodes:
            verdict = self.verdicts.get(node, {}).get(backend, YES)
            if not verdict:
                self.verdicts[node][backend] = no(Reason.CYCLE, f"as part of {claim.name!r}")

    def _take_units(self, units: Sequence[_Unit], merged: Set[int], own: Set[int]) -> set[int]:
        """Return the units of the host that the backend takes; a getitem goes with the producer of its result."""
        taken = {p for p, unit in enumerate(units) if unit.members[0] in own and unit.backend is None}
        if not self._picks:
            return taken | merged
        inside = {i for p in taken | merged for i in units[p].members}
        place = {unit.members[0]: p for p, unit in enumerate(units) if unit.backend is None and p not in merged}
        for i, source in self._picks.items():  # in the order of the graph, as a getitem may pick from another one
            if i in place and source in inside:
                taken.add(place[i])
                inside.add(i)
        return taken | merged

    def _too_small(self, members: Sequence[int], backend: str) -> Verdict | None:
        """Return the refusal of a partition with too few computing nodes or too little work; else None."""
        if not self.threshold.pinned.isdisjoint(self.nodes[i] for i in members):
            return None
        working = [n for i in members if is_compute(n := self.nodes[i]) and not is_layout(n)]
        least = self.threshold.min_size
        if len(working) < least:
            what = "nothing that computes" if least == 1 else f"fewer than {least} nodes that compute"
            return no(Reason.TOO_SMALL, f"the partition would hold {what}")
        is_large = len(working) > SMALL_NODES and not self.threshold.by_costs
        if not least or is_large or not all(map(self.threshold.has_kernel, working)):
            return None
        return self._too_cheap([self.nodes[i] for i in members], working, backend)

    def _too_cheap(self, members: Sequence[Node], working: Sequence[Node], backend: str) -> Verdict | None:
        costs = self.threshold.costs
        kernels = sum([costs.node(n, PORTABLE) for n in working])
        call = costs.partition(backend, working if self.threshold.by_costs else (), crossing_values(members))
        if kernels >= call or not (self.threshold.by_costs or self._is_small_share(sum(map(work, working)))):
            return None
        what = f"its call would take about {call * 1e6:.0f} us, but kernels about {kernels * 1e6:.0f} us for its nodes"
        return no(Reason.SLOWER, what, "partitioning.min_partition_size: 0 delegates it anyway")

    def _is_small_share(self, share: int) -> bool:
        """Return if some work is a small share of the graph's work, which is summed only until this is decided."""
        while share >= SMALL_SHARE * self._counted and self._place < len(self.nodes):
            node = self.nodes[self._place]
            self._counted += work(node) if node in self.verdicts else 0
            self._place += 1
        return share < SMALL_SHARE * self._counted

    def _reject(self, members: Iterable[int], backend: str, why: Verdict) -> None:
        """Replace the verdicts of a backend on these nodes by a refusal."""
        for i in members:
            self.verdicts[self.nodes[i]][backend] = why


def _elements(constants: Set[Node]) -> int:
    return sum(elements(t) for node in constants for t in tensors(node))


# Views that the runtime computes by strides, without a copy, so at a boundary they stay outside.
# Permutations are not in the list: a library may fuse them with its operators before or after.
_FREE = frozenset(
    f"aten.{name}"
    for name in (
        "view.default", "_unsafe_view.default", "squeeze.default", "squeeze.dim", "squeeze.dims", "unsqueeze.default",
        "expand.default", "slice.Tensor", "select.int", "alias.default", "detach.default",
    )
)  # fmt: skip


def boundary_views(members: Sequence[Node], fixed: Set[Node], delegated: Set[Node]) -> tuple[list[Node], list[Node]]:
    """Return the views that reduce the bytes across the boundary of a partition if outside, before and after it.

    A view stays if other members need it, or if its size is dynamic. It also stays between two partitions, because
    their tensors may stay on a device.

    Args:
        members: The unit's nodes in topological order.
        fixed: nodes that always stay.
        delegated: the nodes of all partitions.
    """
    inside = set(members)
    before: list[Node] = []
    for node in members:
        if _is_free(node, fixed) and _moves_in(node, inside, delegated):
            inside.discard(node)
            before.append(node)
    after: list[Node] = []
    for node in reversed(members):
        if node in inside and _is_free(node, fixed) and _moves_out(node, inside, delegated):
            inside.discard(node)
            after.append(node)
    return before, after[::-1]


def _is_free(node: Node, fixed: Set[Node]) -> bool:
    return op_name(node) in _FREE and len(node.all_input_nodes) == 1 and is_static(node) and node not in fixed


def _moves_in(node: Node, inside: Set[Node], delegated: Set[Node]) -> bool:
    """Return if the node reads a value of the host that no other member reads, and its result is smaller."""
    (source,) = node.all_input_nodes
    if source in inside or (source in delegated and op_name(source) not in _FREE) or is_constant(source):
        return False
    return nbytes(node) < nbytes(source) and not any(u in inside and u is not node for u in source.users)


def _moves_out(node: Node, inside: Set[Node], delegated: Set[Node]) -> bool:
    """Return if only the host reads the node, and its source, a member, is smaller or leaves the partition anyway."""
    (source,) = node.all_input_nodes
    if source not in inside or any(user in inside or user in delegated for user in node.users):
        return False
    leaves = any(user not in inside and user is not node for user in source.users)
    return leaves or nbytes(source) < nbytes(node)
