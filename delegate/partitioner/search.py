"""The search for the cheapest plan of one graph: ways to assign its nodes, and what they cost.

A way is a place for each node. `planning` forms the partitions of each way under all rules, and takes the cheapest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch.fx import Node

from delegate.costs.estimates import Estimates, crossing_values
from delegate.edge.node import is_constant, is_number
from delegate.partitioner.plan import Partition, Unit
from delegate.plugins import PORTABLE
from delegate.verdict import Reason, no

MIXED = "mixed"
# A mixed plan has to be this much cheaper than the best of one backend: its estimate has more errors that may add up.
_CLEARLY = 0.6
NOT_CHOSEN = no(Reason.SLOWER, "by the estimates", "name the backends to decide it yourself")

Way = Mapping[Node, str]  # node -> its place: a backend, or "portable"


@dataclass(frozen=True, slots=True)
class Search:
    """A search for the cheapest plan.

    Args:
        costs: the estimates that decide.
        way: the name of the way that every graph takes if it has it; None: the cheapest one of each graph.
    """

    costs: Estimates
    way: str | None = None

    def choose(self, seconds: Mapping[str, float]) -> str:
        """Return the way to take, of those with estimated seconds."""
        return self.way if self.way is not None and self.way in seconds else cheapest(seconds)[0]


def ways(
    nodes: Sequence[Node], places: Mapping[Node, Sequence[str]], backends: Iterable[str], costs: Estimates
) -> dict[str, Way]:
    """Return the ways to compare, by name: each backend with kernels for the rest, kernels alone, and a mixed one.

    Args:
        nodes: The graph's nodes in its order, without placeholders and output.
        places: node that computes -> the places that can run it, the backends first and in order of preference; none if
            it has to be decomposed first.
        backends: Backends in order of preference.
        costs: the estimates.
    """
    found: dict[str, Way] = {place: _prefer(place, places) for place in (*backends, PORTABLE)}
    found = {name: way for name, way in found.items() if name == PORTABLE or name in way.values()}
    mixed = _cheapest_run(nodes, places, (*(name for name in found if name != PORTABLE), PORTABLE), costs)
    return found if mixed in found.values() else {**found, MIXED: mixed}


def _prefer(place: str, places: Mapping[Node, Sequence[str]]) -> Way:
    """Return the way that runs each node in one place if that can, else on a kernel, else on any backend."""
    return {
        node: place if place in able or not able else PORTABLE if PORTABLE in able else able[0]
        for node, able in places.items()
    }


def _cheapest_run(
    nodes: Sequence[Node], places_of: Mapping[Node, Sequence[str]], places: Sequence[str], costs: Estimates
) -> Way:
    """Return the way with the least cost if the nodes ran one by one in the order of the graph.

    The cost so far depends on the earlier nodes only by the place of the last one. So it is enough to store the best
    way that ends in each place (Viterbi's algorithm), in O(nodes * places^2).
    """
    count = range(len(places))
    alive = _alive_bytes(nodes, costs)
    rates = [costs.profile.rates(place).call for place in places]
    enter = [0.0 if place == PORTABLE else rate.call for place, rate in zip(places, rates, strict=True)]
    byte = [0.0 if place == PORTABLE else rate.byte for place, rate in zip(places, rates, strict=True)]
    spent = [0.0 if place == PORTABLE else math.inf for place in places]
    came: list[list[int]] = []
    for node, passing in zip(nodes, alive, strict=True):
        leave = [seconds + byte[p] * passing for p, seconds in enumerate(spent)]
        first = min(count, key=leave.__getitem__)
        before, after = [], []
        able = places_of.get(node)
        for p in count:
            changed = leave[first] + enter[p] + byte[p] * passing
            stays = spent[p] <= changed
            before.append(p if stays else first)
            own = 0.0 if able is None else costs.node(node, places[p]) if places[p] in able or not able else math.inf
            after.append((spent[p] if stays else changed) + own)
        came.append(before)
        spent = after
    place = min(count, key=lambda p: spent[p])
    way: dict[Node, str] = {}
    for node, before in zip(reversed(nodes), reversed(came), strict=True):
        if node in places_of:
            follows = next((way[user] for user in node.users if user in way), None) if costs.is_free(node) else None
            way[node] = places[place] if follows is None or follows not in places_of[node] else follows
        place = before[place]
    return way


def _alive_bytes(nodes: Sequence[Node], costs: Estimates) -> list[int]:
    """Return for each node the bytes of the values that are computed before it, and used by it or later."""
    index = {node: i for i, node in enumerate(nodes)}
    change = [0] * (len(nodes) + 1)
    sources = dict.fromkeys(source for node in nodes for source in (node, *node.all_input_nodes))
    for source in sources:
        if is_constant(source) or is_number(source):
            continue
        last = max((index.get(user, len(nodes) - 1) for user in source.users), default=-1)
        start = index.get(source, -1) + 1
        if last >= start:
            size = costs.nbytes(source)
            change[start] += size
            change[last + 1] -= size
    alive, total = [], 0
    for i in range(len(nodes)):
        total += change[i]
        alive.append(total)
    return alive


def seconds_of(order: Iterable[Unit], costs: Estimates) -> float:
    """Return the estimated seconds of a plan: its nodes, and the calls of its partitions with what crosses borders."""
    return math.fsum(
        costs.partition(unit.backend, unit.nodes, crossing_values(unit.nodes))
        if isinstance(unit, Partition)
        else costs.node(unit, PORTABLE)
        for unit in order
    )


def comparable(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return the estimates of ways, with more for a mixed one, which has to be clearly cheaper."""
    return {name: own / (_CLEARLY if name == MIXED else 1.0) for name, own in seconds.items()}


def cheapest(seconds: Mapping[str, float]) -> list[str]:
    """Return the names of ways, the cheapest first by `comparable` estimates.

    Kernels come before a backend whose plan equals theirs, because none of its partitions is worth the call.
    """
    fair = comparable(seconds)
    return sorted(fair, key=lambda name: (fair[name], name != PORTABLE))
