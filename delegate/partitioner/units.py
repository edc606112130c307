"""Units: what a schedule does not take apart (nodes, claimed patterns, partitions), and the graph between them."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence, Set

from torch.fx import Node

from delegate.partitioner.numbers import is_number


class Dependencies:
    """Which nodes must run before which. Numbers order the nodes of the host only: regions do not take them.

    Args:
        nodes: of a graph, in its order, without placeholders and output; they go by their positions from here on.
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
        """Per unit, those that must run before it; a unit that needs another several times names it as often.

        Args:
            units: of positions; every node is in one of them.
            host: units that numbers order.
        """
        home = [0] * len(self.tensors)
        for number, members in enumerate(units):
            for i in members:
                home[i] = number
        found: list[list[int]] = []
        for number, members in enumerate(units):
            if len(members) == 1:
                sources = [home[s] for s in self.tensors[members[0]]]
            else:
                sources = [h for i in members for s in self.tensors[i] if (h := home[s]) != number]
            if self.numbers and number in host:
                sources += [home[s] for i in members for s in self.numbers.get(i, ())]
            found.append(sources)
        return found


def merged(groups: Iterable[Sequence[int]]) -> list[list[int]]:
    """The groups, those that share a member as one; members in ascending order."""
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
    found: dict[int, list[int]] = {}
    for member in sorted(parent):
        found.setdefault(root(member), []).append(member)
    return list(found.values())


def ordered(predecessors: Sequence[Sequence[int]], rank: Sequence[int]) -> tuple[list[int], list[int]]:
    """A topological order of units that keeps as close to their ranks as it can, and those on or between cycles.

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


def _without_ends(left: set[int], users: Mapping[int, Sequence[int]] | Sequence[Sequence[int]]) -> list[int]:
    """Of units that wait for a cycle, those from which one can still be reached."""
    outgoing = {unit: sum(user in left for user in users[unit]) for unit in left}
    sources: dict[int, list[int]] = {unit: [] for unit in left}
    for unit in left:
        for user in users[unit]:
            if user in left:
                sources[user].append(unit)
    ends = [unit for unit, count in outgoing.items() if not count]
    while ends:
        end = ends.pop()
        left.discard(end)
        for source in sources[end]:
            outgoing[source] -= 1
            if not outgoing[source]:
                ends.append(source)
    return sorted(left)
