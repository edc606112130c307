"""Estimated seconds of nodes on each place, and of partition calls: by a profile, and corrected by measurements."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence, Set
from dataclasses import replace

from torch.fx import Node

from delegate.costs.profile import MachineProfile, PlaceRates, Rate
from delegate.costs.quantities import FUNCTION, LIKE, VIEW, Quantities, quantities_of
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


_LEAST_SHARE = 0.05  # of a measured part: the least seconds of its nodes beside its call


class CorrectedEstimates(Estimates):
    """Estimates, times a factor for each node.

    The factor of a node in a measured part is the measured seconds of the part over its estimated ones. Of several
    parts with a node in the same place, the smallest one counts, because it says most about the node. Nodes that were
    not measured in a place have the factor of all parts together: estimates err alike in all places.

    Args:
        estimates: The estimates that are corrected.
        backends: the places that a plan may use, besides kernels.
    """

    def __init__(self, estimates: Estimates, backends: Collection[str]) -> None:
        places = {*backends, PORTABLE}
        super().__init__(estimates.profile, places if estimates.places is None else places & estimates.places)
        self._factors: dict[tuple[str, Node], float] = {}
        self._sizes: dict[tuple[str, Node], float] = {}
        self._measured = self._estimated = 0.0  # seconds of all parts

    def node(self, node: Node, place: str) -> float:
        """Return the seconds of a node; see `Estimates.node`."""
        factor = self._factors.get((place, node))
        if factor is None:
            factor = self._measured / self._estimated if self._estimated else 1.0
        return super().node(node, place) * factor

    def correct_call(self, place: str, seconds: float) -> None:
        """Replace the seconds of a call into a backend, whatever crosses its border."""
        self.profile = self.profile.with_place(place, replace(self.profile.rates(place), call=Rate(seconds)))

    def correct(self, place: str, nodes: Sequence[Node], seconds: float) -> None:
        """Correct the estimates for the nodes of one part.

        Args:
            place: the backend of a partition, or "portable".
            nodes: the nodes of the partition, or one node on a kernel.
            seconds: what the part took, with the call of a partition.
        """
        estimated = math.fsum(Estimates.node(self, node, place) for node in nodes)
        if not estimated:
            return
        call = 0.0 if place == PORTABLE else self.call(place, crossing_values(nodes))
        seconds = max(seconds - call, _LEAST_SHARE * seconds)
        self._measured, self._estimated = self._measured + seconds, self._estimated + estimated
        for node in nodes:
            if len(nodes) <= self._sizes.get((place, node), math.inf):
                self._factors[place, node], self._sizes[place, node] = seconds / estimated, len(nodes)
