"""List scheduling: orders a coloured acyclic graph so that nodes of one colour form few contiguous runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

HOST = 0  # the colour of nodes that stay outside partitions; backends' colours follow by priority


@dataclass(frozen=True, slots=True)
class Run:
    """Nodes of one colour that stand together in the schedule.

    Args:
        colour: of all its nodes.
        nodes: indices in ascending order, which is a topological order.
    """

    colour: int
    nodes: tuple[int, ...]


class _Ready:
    """Nodes whose predecessors are all scheduled, by colour."""

    def __init__(self, colours: Sequence[int], urgency: Sequence[int]) -> None:
        self._colours, self._urgency = colours, urgency
        self._nodes: dict[int, list[int]] = {}
        self._most_urgent: dict[int, int] = {}

    def add(self, node: int) -> None:
        colour = self._colours[node]
        self._nodes.setdefault(colour, []).append(node)
        self._most_urgent[colour] = max(self._most_urgent.get(colour, 0), self._urgency[node])

    def take(self, colour: int) -> list[int]:
        """All nodes of the colour that are ready, which then are so no more."""
        self._most_urgent.pop(colour, None)
        return self._nodes.pop(colour, [])

    def next_colour(self) -> int | None:
        """What to run next: the host, which keeps nothing waiting, else the colour with the longest way to go."""
        if HOST in self._nodes:
            return HOST
        return max(self._nodes, key=lambda colour: (self._most_urgent[colour], -colour), default=None)


def schedule(colours: Sequence[int], predecessors: Sequence[Sequence[int]]) -> list[Run]:
    """Runs that hold every node once, each after all its predecessors.

    Every run takes all that can be reached without leaving its colour, so it is maximal, and being contiguous it is
    convex. With one colour beside HOST the number of its runs is the least that any valid order has: a node's run is
    the greatest number of separate stretches of that colour on a path to it. With more colours this is a heuristic:
    the colour goes first from which the most changes of colour must still follow.

    A node without predecessors, such as the decoding of a quantized weight, waits for its first user if that has its
    colour: else all of them would stand in the first run.

    Args:
        colours: per node.
        predecessors: per node, indices that are all smaller than its own.

    Takes O(nodes + edges), for a number of colours that does not grow with the graph.
    """
    users: list[list[int]] = [[] for _ in colours]
    for node, sources in enumerate(predecessors):
        for source in sources:
            users[source].append(node)
    waiting = [len(sources) for sources in predecessors]
    ready = _Ready(colours, _urgency(colours, users))
    for node, count in enumerate(waiting):
        if not count:
            ready.add(node)

    run_of = [0] * len(colours)
    run_colours: list[int] = []
    while (colour := ready.next_colour()) is not None:
        while batch := ready.take(colour):
            for node in batch:
                run_of[node] = len(run_colours)
                for user in users[node]:
                    waiting[user] -= 1
                    if not waiting[user]:
                        ready.add(user)
        run_colours.append(colour)
    for node, sources in enumerate(predecessors):
        first = min((run_of[user] for user in users[node]), default=run_of[node])
        if not sources and run_colours[first] == colours[node]:
            run_of[node] = first
    return _collect(run_of, run_colours)


def _urgency(colours: Sequence[int], users: Sequence[Sequence[int]]) -> list[int]:
    """Per node: how many further partitions a path from it has at most to enter."""
    urgency = [0] * len(colours)
    for node in range(len(colours) - 1, -1, -1):
        colour = colours[node]
        for user in users[node]:
            entered = colours[user] not in (HOST, colour)
            urgency[node] = max(urgency[node], urgency[user] + entered)
    return urgency


def _collect(run_of: Sequence[int], run_colours: Sequence[int]) -> list[Run]:
    """The runs with their nodes in the graph's own order, which keeps lifetimes as the author wrote them."""
    members: list[list[int]] = [[] for _ in run_colours]
    for node, run in enumerate(run_of):
        members[run].append(node)
    return [Run(colour, tuple(nodes)) for colour, nodes in zip(run_colours, members, strict=True) if nodes]
