"""Assignment: every node to the first backend that takes it, then to partitions that are worth their call."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from torch.fx import Node

from delegate.edge.node import is_compute
from delegate.partitioner.cost import is_layout
from delegate.partitioner.numbers import is_number
from delegate.partitioner.scheduling import HOST, Run, schedule
from delegate.verdict import Reason, Verdict, no

MAX_ROUNDS = 16  # of giving partitions back; what is still too small after them is given back in place

Verdicts = dict[str, Verdict]  # backend -> its verdict on one node


@dataclass(frozen=True, slots=True)
class Stretch:
    """A run of the schedule.

    Args:
        backend: None for nodes that stay on the host.
        nodes: in topological order.
    """

    backend: str | None
    nodes: tuple[Node, ...]


def assign(
    nodes: Sequence[Node],
    verdicts: Mapping[Node, Verdicts],
    backends: Sequence[str],
    min_size: int,
    pinned: Set[Node],
) -> list[Stretch]:
    """Stretches that hold every node once, in an order that may run; each one of a backend is a partition.

    Where a partition is too small it is given back: its nodes go to the next backend that takes them, else to the
    host, their verdicts become `Reason.TOO_SMALL`, and the graph is scheduled again. The most preferred backend
    gives back first, since its nodes may complete a partition of another.

    Args:
        nodes: of a graph, in its order, without placeholders and output.
        verdicts: of the nodes that compute; changed where a partition is given back.
        backends: in order of preference.
        min_size: see `PartitionRules.min_partition_size`.
        pinned: nodes whose partition is kept whatever its size.
    """
    palette = _Palette(verdicts, backends)
    edges = _Edges(nodes)
    colours = _colours(nodes, palette)
    for _ in range(MAX_ROUNDS):
        runs = schedule(colours, edges.predecessors(colours))
        small = [run for run in runs if run.colour != HOST and _too_small(nodes, run, min_size, pinned)]
        if not small:
            break
        first = min(run.colour for run in small)
        for run in small:
            if run.colour == first:
                palette.give_back([nodes[i] for i in run.nodes], first, min_size)
        colours = _colours(nodes, palette)
    else:
        runs = _settle(nodes, schedule(colours, edges.predecessors(colours)), palette, min_size, pinned)
    return [Stretch(palette.backend(run.colour), tuple(nodes[i] for i in run.nodes)) for run in runs]


def _colours(nodes: Sequence[Node], palette: _Palette) -> list[int]:
    """The colour of every node; one that picks a result of another (getitem) has the colour of that other."""
    found: dict[Node, int] = {}
    for node in nodes:
        if node.target is operator.getitem and node.args[0] in found:
            found[node] = HOST if is_number(node) else found[node.args[0]]  # type: ignore[index]
        else:
            found[node] = palette.colour(node)
    return list(found.values())


def _too_small(nodes: Sequence[Node], run: Run, min_size: int, pinned: Set[Node]) -> bool:
    """Whether a partition holds too few nodes that do work, and none that was pinned to it."""
    members = [nodes[i] for i in run.nodes]
    if not pinned.isdisjoint(members):
        return False
    return sum(is_compute(n) and not is_layout(n) for n in members) < min_size


def _settle(
    nodes: Sequence[Node], runs: Sequence[Run], palette: _Palette, min_size: int, pinned: Set[Node]
) -> list[Run]:
    """The runs with those that are too small left to the host where they stand, which keeps the order valid."""
    settled: list[Run] = []
    for run in runs:
        if run.colour == HOST or not _too_small(nodes, run, min_size, pinned):
            settled.append(run)
            continue
        members = [nodes[i] for i in run.nodes]
        while any(palette.colour(node) != HOST for node in members):
            palette.give_back(members, max(palette.colour(node) for node in members), min_size)
        settled.append(Run(HOST, run.nodes))
    return settled


class _Palette:
    """The colours: one per backend and tag, numbered by preference; HOST for what no backend takes."""

    def __init__(self, verdicts: Mapping[Node, Verdicts], backends: Sequence[str]) -> None:
        self._verdicts, self._names = verdicts, tuple(backends)
        ranks = {name: rank for rank, name in enumerate(backends)}
        self._keys = sorted({(ranks[name], v.tag) for by_name in verdicts.values() for name, v in by_name.items() if v})
        self._numbers = {(backends[rank], tag): HOST + 1 + i for i, (rank, tag) in enumerate(self._keys)}

    def backend(self, colour: int) -> str | None:
        """The backend of a colour."""
        return None if colour == HOST else self._names[self._keys[colour - HOST - 1][0]]

    def colour(self, node: Node) -> int:
        """The colour of the most preferred backend that takes a node."""
        verdicts = self._verdicts.get(node)
        if verdicts:
            for name in self._names:
                if (verdict := verdicts[name]).reason is None:
                    return self._numbers[name, verdict.tag]
        return HOST

    def give_back(self, nodes: Sequence[Node], colour: int, min_size: int) -> None:
        """Turn the verdicts of a colour's backend on these nodes into refusals."""
        name = self.backend(colour)
        verdict = no(Reason.TOO_SMALL, f"the partition would hold fewer than {min_size} nodes that compute")
        for node in nodes:
            if name is not None and node in self._verdicts and self.colour(node) == colour:
                self._verdicts[node][name] = verdict


class _Edges:
    """Which nodes must run before which. Numbers order the nodes of the host only: regions do not take them."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        index = {node: i for i, node in enumerate(nodes)}
        self._tensors: list[list[int]] = []
        self._numbers: dict[int, list[int]] = {}
        numbers = {node for node in nodes if is_number(node)}
        for i, node in enumerate(nodes):
            sources = node.all_input_nodes
            self._tensors.append([index[s] for s in sources if s in index and s not in numbers])
            if not numbers.isdisjoint(sources):
                self._numbers[i] = [index[s] for s in sources if s in numbers]

    def predecessors(self, colours: Sequence[int]) -> list[list[int]]:
        """Per node, its predecessors under these colours."""
        found = list(self._tensors)
        for i, numbers in self._numbers.items():
            if colours[i] == HOST:
                found[i] = found[i] + numbers
        return found
