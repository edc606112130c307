"""Estimated seconds of a graph's nodes on each place, and of partition calls, by a machine's profile."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Set

from torch.fx import Node

from delegate.costs.kinds import FUNCTION, LIKE, VIEW
from delegate.costs.profile import MachineProfile, PlaceRates, Rate
from delegate.costs.quantities import Quantities, quantities_of
from delegate.edge.node import is_constant, nbytes
from delegate.plugins import PORTABLE

_AVOIDED = 1e6  # seconds of a node in a place that a plan may not use


class Estimates:
    """The estimated seconds of nodes and calls. Quantities of a node are computed once.

    Args:
        profile: The machine's profile.
        places: those that a plan may use; None: all.
    """

    def __init__(self, profile: MachineProfile, places: Set[str] | None = None) -> None:
        self.profile, self.places = profile, places
        self._quantities: dict[Node, Quantities] = {}
        self._nbytes: dict[Node, int] = {}
        self._rates: dict[tuple[str, str], Rate] = {}

    def node(self, node: Node, place: str) -> float:
        """Return the seconds of a node.

        Args:
            node: A node of an edge graph.
            place: the name of the backend in whose partition it is, or "portable".
        """
        return self.seconds(self.quantities(node), place)

    def seconds(self, quantities: Quantities, place: str) -> float:
        """Return the seconds of a node with these quantities."""
        kind, units, nbytes, on_kernels = quantities
        if kind == VIEW:
            return 0.0
        if self.places is not None and place not in self.places:
            return _AVOIDED
        rate = self._rates.get((place, kind))
        if rate is None:
            rate = self._rates[place, kind] = _rate(self.profile.rates(place), kind)
        seconds = rate.call + rate.unit * units + rate.byte * nbytes
        return seconds * on_kernels if place == PORTABLE else seconds

    def is_free(self, node: Node) -> bool:
        """Return true if a node takes no time in any place."""
        return self.quantities(node).kind == VIEW

    def call(self, place: str, crossing: Iterable[Node]) -> float:
        """Return the seconds for calling a partition, without its work.

        Args:
            place: its backend.
            crossing: the values that go in and out, without constants.
        """
        sizes = [self.nbytes(node) for node in crossing]
        return self.profile.rates(place).call.seconds(len(sizes), sum(sizes))

    def partition(self, place: str, nodes: Iterable[Node], crossing: Iterable[Node]) -> float:
        """Return the seconds of a partition: of its nodes, and of its call; see `call`."""
        return sum([self.node(node, place) for node in nodes]) + self.call(place, crossing)

    def nbytes(self, node: Node) -> int:
        """Return the bytes of a node's results."""
        count = self._nbytes.get(node)
        if count is None:
            count = self._nbytes[node] = nbytes(node)
        return count

    def quantities(self, node: Node) -> Quantities:
        """Return what the seconds of a node depend on."""
        known = self._quantities.get(node)
        if known is None:
            known = self._quantities[node] = quantities_of(node, self.nbytes)
        return known


def crossing_values(members: Collection[Node]) -> list[Node]:
    """Return the values that go into a partition and out of it, without constants."""
    inside = set(members)
    sources = {s for node in members for s in node.all_input_nodes if s not in inside and not is_constant(s)}
    return [*sources, *(node for node in members if any(user not in inside for user in node.users))]


def _rate(rates: PlaceRates, kind: str) -> Rate:
    """Return the rate of a kind; a kind that was not measured has the rate of the most similar one."""
    operators = rates.operators
    return operators.get(kind) or operators.get(LIKE.get(kind, "")) or operators[FUNCTION]
