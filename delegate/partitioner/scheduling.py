"""Scheduling: the dependencies of units (nodes, claimed patterns, partitions), and an order in few contiguous runs."""

from __future__ import annotations

import heapq
import sys
from collections.abc import Container, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from torch.fx import Node

from delegate.edge.node import is_number

_NO_USER = sys.maxsize


@dataclass(frozen=True, slots=True)
class Run:
    """Adjacent units of the schedule.

    Args:
        taken: True for units of the backend, which form a partition.
        units: indices in ascending order, which is a topological order and preserves the lifetimes of the model.
    """

    taken: bool
    units: tuple[int, ...]


def schedule(taken: Container[int], predecessors: Sequence[Sequence[int]]) -> list[Run]:
    """Order the units in runs, alternately of the backend and of others; each unit comes after its predecessors.

    Every run has all units that can be reached without a unit of the other kind, so it is maximal; since it is
    contiguous, it is convex. No valid order has fewer runs: a unit's run is the largest number of kind changes
    on a path to it.

    A unit without predecessors joins the run of its first user, if both are of the same kind. An example is the
    decoding of a quantized weight. Otherwise all such units would be in the first run.

    Args:
        taken: the units that the backend takes.
        predecessors: per unit, indices that are all smaller than its own.

    Takes O(units + edges).
    """
    run_of: list[int] = []  # those of the backend have odd numbers
    first_user: dict[int, int] = {}  # of units without predecessors
    for unit, sources in enumerate(predecessors):
        run = max([run_of[source] for source in sources]) if sources else 0
        run_of.append(run + ((unit in taken) ^ (run & 1)))
        if not sources:
            first_user[unit] = _NO_USER
    for unit, sources in enumerate(predecessors):
        for source in sources:
            if source in first_user:
                first_user[source] = min(first_user[source], run_of[unit])
    for unit, run in first_user.items():
        if run != _NO_USER and (run & 1) == (run_of[unit] & 1):
            run_of[unit] = run
    members: list[list[int]] = [[] for _ in range(max(run_of, default=-1) + 1)]
    for unit, run in enumerate(run_of):
        members[run].append(unit)
    return [Run(bool(run & 1), tuple(units)) for run, units in enumerate(members) if units]


class Dependencies:
    """The dependencies of nodes. Numbers order only the nodes of the host, as they are not inputs of regions.

    Args:
        nodes: A graph's nodes in its order, without placeholders and output; from here on they are positions.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        index = {node: i for i, node in enumerate(nodes)}
        self.tensors: list[list[int]] = []
        self.numbers: dict[int, list[int]] = {}
        numbers = {node for node in nodes if is_number(node)}
        for i, node in enumerate(nodes):
            sources = node.all_input_nodes
            self.tensors.append([index[s] for s in sources if s in index and s not in numbers])
            if numbers and not numbers.isdisjoint(sources):
                self.numbers[i] = [index[s] for s in sources if s in numbers]

    def between(self, units: Sequence[Sequence[int]], host: Set[int]) -> list[list[int]]:
        """Return the predecessors of each unit, once for each use.

        Args:
            units: positions of their nodes; every node is in one unit.
            host: units that numbers order.
        """
        unit_of = [0] * len(self.tensors)
        for number, members in enumerate(units):
            for i in members:
                unit_of[i] = number
        predecessors: list[list[int]] = []
        for number, members in enumerate(units):
            if len(members) == 1:
                sources = [unit_of[s] for s in self.tensors[members[0]]]
            else:
                sources = [unit for i in members for s in self.tensors[i] if (unit := unit_of[s]) != number]
            if self.numbers and number in host:
                sources += [unit_of[s] for i in members for s in self.numbers.get(i, ())]
            predecessors.append(sources)
        return predecessors


def union_overlapping(groups: Iterable[Sequence[int]]) -> list[list[int]]:
    """Unite groups that share a member; the members are in ascending order."""
    parent: dict[int, int] = {}

    def root(member: int) -> int:
        while parent[member] != member:
            parent[member] = parent[parent[member]]
            member = parent[member]
        return member

    for group in groups:
        for member in group:
            parent.setdefault(member, member)
            parent[root(member)] = root(group[0])
    united: dict[int, list[int]] = {}
    for member in sorted(parent):
        united.setdefault(root(member), []).append(member)
    return list(united.values())


def topological_order(predecessors: Sequence[Sequence[int]], rank: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return a topological order of units, as close to their ranks as possible, and the units on or between cycles.

    Takes O(edges * log(units)).
    """
    users: list[list[int]] = [[] for _ in predecessors]
    waiting = [len(sources) for sources in predecessors]
    for unit, sources in enumerate(predecessors):
        for source in sources:
            users[source].append(unit)
    ready = [(rank[unit], unit) for unit, count in enumerate(waiting) if not count]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, unit = heapq.heappop(ready)
        order.append(unit)
        for user in users[unit]:
            waiting[user] -= 1
            if not waiting[user]:
                heapq.heappush(ready, (rank[user], user))
    return order, _without_ends(set(range(len(predecessors))).difference(order), users)


def _without_ends(blocked: set[int], users: Mapping[int, Sequence[int]] | Sequence[Sequence[int]]) -> list[int]:
    """Return the units from which a cycle can be reached, of those that a cycle blocks."""
    outgoing = {unit: sum(user in blocked for user in users[unit]) for unit in blocked}
    sources: dict[int, list[int]] = {unit: [] for unit in blocked}
    for unit in blocked:
        for user in users[unit]:
            if user in blocked:
                sources[user].append(unit)
    ends = [unit for unit, count in outgoing.items() if not count]
    while ends:
        end = ends.pop()
        blocked.discard(end)
        for source in sources[end]:
            outgoing[source] -= 1
            if not outgoing[source]:
                ends.append(source)
    return sorted(blocked)
