"""Estimates that are corrected by the measured seconds of program parts."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from torch.fx import Node

from delegate.costs.estimates import Estimates, crossing_values
from delegate.costs.profile import Rate
from delegate.plugins import PORTABLE

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
