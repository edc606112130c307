"""Assignment by preference: each backend in turn forms its partitions of what those before it have left.

What a backend gets depends on those before it alone. A partition, once formed, is one unit for those behind.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from torch.fx import Node

from delegate.backends.aot import Claim
from delegate.edge.node import elements, is_compute, is_constant, tensors
from delegate.partitioner.border import Border, views_at_the_border
from delegate.partitioner.cost import Sizes, call_seconds, is_layout, kernel_seconds, work
from delegate.partitioner.numbers import is_number
from delegate.partitioner.scheduling import schedule
from delegate.partitioner.units import Dependencies, merged, ordered
from delegate.verdict import YES, Reason, Verdict, no

MAX_ROUNDS = 16  # of giving partitions back; what is still too small after them is given back for good
SMALL_SHARE = 0.01  # of a method's work: a partition with more stands, whatever its call costs
SMALL_NODES = 8  # a partition with more nodes that compute pays for its call by what their kernels' dispatch takes

Verdicts = dict[str, Verdict]  # backend -> its verdict on one node


@dataclass(frozen=True, slots=True)
class Stretch:
    """Nodes that run together.

    Args:
        backend: None for nodes that stay on the host.
        nodes: in topological order.
        patterns: that the backend claimed among them.
    """

    backend: str | None
    nodes: tuple[Node, ...]
    patterns: tuple[Claim, ...] = ()


@dataclass(frozen=True, slots=True)
class Worth:
    """When a partition is worth its call.

    Args:
        min_size: see `PartitionRules.min_partition_size`; at 0 every partition is.
        pinned: nodes whose partition is kept whatever its size.
        has_kernel: whether a kernel runs a node as it stands.
        most_constants: backend -> elements of constants that a partition may hold; None for any number.
    """

    min_size: int
    pinned: Set[Node]
    has_kernel: Callable[[Node], bool]
    most_constants: Mapping[str, int | None]


def assign(
    nodes: Sequence[Node],
    verdicts: Mapping[Node, Verdicts],
    claims: Mapping[str, Sequence[Claim]],
    backends: Sequence[str],
    worth: Worth,
) -> list[Stretch]:
    """Stretches that hold every node once, in an order that may run; each one of a backend is a partition.

    A partition that is not worth its call is given back: its nodes go to the next backend that takes them, else to the
    host, and their verdicts say so. So are views at its border that the runtime does for nothing.

    Args:
        nodes: of a graph, in its order, without placeholders and output.
        verdicts: of the nodes that compute; changed where nodes are given back.
        claims: backend -> the patterns that it takes.
        backends: in order of preference.
        worth: when a partition is worth its call.
    """
    table = _Assignment(nodes, verdicts, worth)
    for backend in backends:
        tags = sorted({v.tag for by_name in verdicts.values() if (v := by_name[backend]).reason is None})
        own = claims.get(backend, ())
        for tag in dict.fromkeys((*tags, *(claim.verdict.tag for claim in own))):
            table.take(backend, tag, [claim for claim in own if claim.verdict.tag == tag])
    return table.stretches()


@dataclass(slots=True)
class _Unit:
    members: tuple[int, ...]
    backend: str | None = None
    patterns: tuple[Claim, ...] = ()


@dataclass(slots=True)
class _Assignment:
    """The units of one graph in an order that may run, as backend after backend takes its own."""

    nodes: Sequence[Node]
    verdicts: Mapping[Node, Verdicts]
    worth: Worth
    units: list[_Unit] = field(init=False)
    _index: dict[Node, int] = field(init=False)
    _edges: Dependencies = field(init=False)
    _picks: dict[int, int] = field(init=False)  # a node that picks a result -> the node that gives it
    _delegated: set[Node] = field(default_factory=set)
    _sizes: Sizes = field(default_factory=Sizes)
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

    def stretches(self) -> list[Stretch]:
        """The result, neighbours on the host joined."""
        found: list[Stretch] = []
        host: list[Node] = []
        for unit in self.units:
            members = tuple(self.nodes[i] for i in unit.members)
            if unit.backend is None:
                host += members
                continue
            if host:
                found.append(Stretch(None, tuple(host)))
                host = []
            found.append(Stretch(unit.backend, members, unit.patterns))
        return [*found, Stretch(None, tuple(host))] if host else found

    def take(self, backend: str, tag: str, claims: Sequence[Claim]) -> None:
        """Form the partitions of one backend and tag out of what is left."""
        free = {i for unit in self.units if unit.backend is None for i in unit.members}
        wanted = [c for c in claims if all(self._index.get(n) in free for n in c.nodes)]
        own = self._own(free, backend, tag)
        stands: set[tuple[int, ...]] = set()  # partitions that were found to be worth their call
        for last in [False] * MAX_ROUNDS + [True]:
            units, glued = self._glued(wanted, backend)
            taken = self._taken(units, glued, own)
            host = {p for p, unit in enumerate(units) if unit.backend is None and p not in taken}
            runs = schedule(taken, self._edges.between([u.members for u in units], host))
            ours = [tuple(sorted(i for p in run.units for i in units[p].members)) for run in runs if run.taken]
            small = {m: why for m in ours if m not in stands and (why := self._too_small(m)) is not None}
            if last or not small:
                break
            stands.update(m for m in ours if m not in small)
            for members, why in small.items():
                self._give_back(own.intersection(members), backend, why)
                own.difference_update(members)
            given = {self.nodes[i] for members in small for i in members}.intersection(self.verdicts)
            wanted = [c for c in wanted if given.isdisjoint(c.nodes)]
        self._delegated |= {self.nodes[i] for members in ours for i in members}
        parts = [self._cut([units[p].members for p in run.units], backend) if run.taken else [] for run in runs]
        patterns = self._by_partition(wanted, list(itertools.chain(*parts)))
        self.units = []
        for run, pieces in zip(runs, parts, strict=True):
            for piece in pieces:
                self._settle(backend, piece, patterns.get(piece, ()))
            if not run.taken:
                self.units += [units[p] for p in run.units]

    def _own(self, free: Set[int], backend: str, tag: str) -> set[int]:
        """What the backend takes alone, of what is left."""
        said = ((i, self.verdicts.get(self.nodes[i], {}).get(backend)) for i in free)
        return {i for i, v in said if v is not None and v.reason is None and v.tag == tag}

    def _by_partition(
        self, claims: Sequence[Claim], partitions: Sequence[tuple[int, ...]]
    ) -> dict[tuple[int, ...], list[Claim]]:
        """The claims by the partition that they are in."""
        home = {i: members for members in partitions for i in members} if claims else {}
        found: dict[tuple[int, ...], list[Claim]] = {}
        for claim in claims:
            found.setdefault(home[self._index[claim.nodes[0]]], []).append(claim)
        return found

    def _cut(self, units: Sequence[Sequence[int]], backend: str) -> list[tuple[int, ...]]:
        """The nodes of a partition, or of several in a row where its constants are too many for one.

        Args:
            units: that stay together, in an order that may run.
            backend: whose it is.
        """
        most = self.worth.most_constants.get(backend)
        whole = tuple(sorted(itertools.chain(*units)))
        if (
            most is None
            or _elements({s for i in whole for s in self.nodes[i].all_input_nodes if is_constant(s)}) <= most
        ):
            return [whole]
        pieces: list[list[int]] = [[]]
        held: set[Node] = set()
        total = 0
        home: dict[Any, list[int]] = {}
        for unit in units:
            nodes = [self.nodes[m] for m in unit]
            origin = home.get(nodes[0].args[0]) if nodes[0].target is operator.getitem else None
            constants = {s for n in nodes for s in n.all_input_nodes if is_constant(s)}
            if origin is None and pieces[-1] and total + _elements(constants - held) > most:
                pieces.append([])
                held, total = set(), 0
            total += _elements(constants - held)
            held |= constants
            piece = pieces[-1] if origin is None else origin  # what picks a result goes with what gives it
            piece += unit
            home.update(dict.fromkeys(nodes, piece))
        return [tuple(sorted(piece)) for piece in pieces]

    def _settle(self, backend: str, members: Sequence[int], patterns: Sequence[Claim]) -> None:
        """Add a partition, with the views at its border as units of the host before and behind it."""
        claimed = {n: c for c in patterns for n in c.nodes}
        for node in claimed.keys() & self.verdicts.keys():
            self.verdicts[node][backend] = claimed[node].verdict
        kept = self.worth.pinned | claimed.keys()
        nodes = [self.nodes[i] for i in members]
        border = views_at_the_border(nodes, kept, self._delegated) if self.worth.min_size else Border()
        outside = (*border.before, *border.behind)
        self._delegated.difference_update(outside)
        for node in outside:
            self.verdicts[node][backend] = no(Reason.BORDER, "the runtime does it without a copy")
        left = {self._index[n] for n in outside}
        self.units += [_Unit((self._index[n],)) for n in border.before]
        self.units.append(_Unit(tuple(i for i in members if i not in left), backend, tuple(patterns)))
        self.units += [_Unit((self._index[n],)) for n in border.behind]

    def _glued(self, claims: list[Claim], backend: str) -> tuple[list[_Unit], set[int]]:
        """The units with those of each claim as one, in an order that may run, and which these are.

        A claim that would form a cycle is taken out of the list, and its nodes say so.
        """
        if not claims:
            return self.units, set()
        while True:
            groups = merged([self._index[n] for n in claim.nodes] for claim in claims)
            inside = {i for group in groups for i in group}
            single = [u for u in self.units if u.backend is not None or u.members[0] not in inside]
            units = [*single, *(_Unit(tuple(group)) for group in groups)]
            host = set(range(len(single)))
            edges = self._edges.between([u.members for u in units], host)
            order, cycles = ordered(edges, [u.members[0] for u in units])
            if not cycles:
                break
            broken = {i for p in cycles if p >= len(single) for i in units[p].members}
            for claim in claims:
                if self._index[claim.nodes[0]] in broken:
                    self._dissolve(claim, backend)
            claims[:] = [c for c in claims if self._index[c.nodes[0]] not in broken]
            if not claims:
                return self.units, set()
        place = {p: at for at, p in enumerate(order)}
        return [units[p] for p in order], {place[p] for p in range(len(single), len(units))}

    def _dissolve(self, claim: Claim, backend: str) -> None:
        for node in claim.nodes:
            verdict = self.verdicts.get(node, {}).get(backend, YES)
            if not verdict:
                self.verdicts[node][backend] = no(Reason.CYCLE, f"as part of {claim.name!r}")

    def _taken(self, units: Sequence[_Unit], glued: Set[int], own: Set[int]) -> set[int]:
        """The units of the host that the backend takes; one that picks a result of another goes with that other."""
        taken = {p for p, unit in enumerate(units) if unit.members[0] in own and unit.backend is None}
        if not self._picks:
            return taken | glued
        home = {i for p in taken | glued for i in units[p].members}
        place = {unit.members[0]: p for p, unit in enumerate(units) if unit.backend is None and p not in glued}
        for i, source in self._picks.items():  # in the order of the graph, since one may pick of another
            if i in place and source in home:
                taken.add(place[i])
                home.add(i)
        return taken | glued

    def _too_small(self, members: Sequence[int]) -> Verdict | None:
        """Why a partition is not worth its call, if so: it holds too few nodes that do work, or too little of it."""
        if not self.worth.pinned.isdisjoint(self.nodes[i] for i in members):
            return None
        working = [n for i in members if is_compute(n := self.nodes[i]) and not is_layout(n)]
        least = self.worth.min_size
        if len(working) < least:
            what = "nothing that computes" if least == 1 else f"fewer than {least} nodes that compute"
            return no(Reason.TOO_SMALL, f"the partition would hold {what}")
        if not least or len(working) > SMALL_NODES or not all(map(self.worth.has_kernel, working)):
            return None
        return self._too_cheap([self.nodes[i] for i in members], working)

    def _too_cheap(self, members: Sequence[Node], working: Sequence[Node]) -> Verdict | None:
        kernels = sum([kernel_seconds(n, self._sizes) for n in working])
        inside = set(members)
        sources = {s for n in members for s in n.all_input_nodes if s not in inside and not s.meta.get("constant")}
        results = [n for n in members if any(user not in inside for user in n.users)]
        call = call_seconds(sum([self._sizes[n] for n in (*sources, *results)]))
        if kernels >= call or not self._is_small_share(sum(map(work, working))):
            return None
        what = f"its call would take about {call * 1e6:.0f} us, and kernels {kernels * 1e6:.0f} us for its nodes"
        return no(Reason.SLOWER, what, "partitioning.min_partition_size: 0 delegates it all the same")

    def _is_small_share(self, share: int) -> bool:
        """Whether some work is a small share of the graph's, which is added up only as far as that takes."""
        while share >= SMALL_SHARE * self._counted and self._place < len(self.nodes):
            node = self.nodes[self._place]
            self._counted += work(node) if node in self.verdicts else 0
            self._place += 1
        return share < SMALL_SHARE * self._counted

    def _give_back(self, members: Iterable[int], backend: str, why: Verdict) -> None:
        """Turn the yes of a backend on these nodes into a refusal."""
        for i in members:
            self.verdicts[self.nodes[i]][backend] = why


def _elements(constants: Set[Node]) -> int:
    return sum(elements(t) for node in constants for t in tensors(node))
