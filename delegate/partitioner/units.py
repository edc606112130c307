"""Units of a schedule (nodes, claimed patterns, partitions), and the graph of their dependencies."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence, Set

from torch.fx import Node

from delegate.partitioner.symints import is_number


class Dependencies:
    """The dependencies of nodes. Numbers order only the nodes of the host, as they are no inputs of regions.

    Args:
        nodes: of a graph, in its order, without placeholders and output; identified by their positions from here on.
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
