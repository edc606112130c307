"""Estimated seconds of the nodes of a graph on each place, and of the calls of partitions, by a machine's profile."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import NamedTuple

from torch._ops import HigherOrderOperator
from torch.fx import Node

from delegate.costs.kinds import (
    BY_RESULT,
    CONVOLUTION,
    COPY,
    DEPTHWISE,
    FUNCTION,
    PERMUTE,
    POINTWISE,
    VIEW,
    WIDE_DEPTHWISE,
    kind_of,
)
from delegate.costs.profile import PlaceRates, Profile, Rate
from delegate.costs.work import multiply_adds
from delegate.edge.node import arguments, is_compute, is_constant, nbytes, op_name, size, tensor, tensors

_NARROW = 25  # elements of a window for which libraries have a depthwise convolution of their own
_WORD = 4  # bytes of the numbers whose operations a rate counts; those of float64 take twice the time


class Quantities(NamedTuple):
    """What the seconds of a node depend on; see `Rate`."""

    kind: str
    units: float
    nbytes: int


_FREE = Quantities(VIEW, 0, 0)


class Estimates:
    """The estimated seconds of nodes and calls. Quantities of a node are computed once.

    Args:
        profile: of the machine.
    """

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self._quantities: dict[Node, Quantities] = {}
        self._nbytes: dict[Node, int] = {}
        self._rates: dict[tuple[str, str], Rate] = {}

    def node(self, node: Node, place: str) -> float:
        """Return the seconds of a node.

        Args:
            node: of an edge graph.
            place: the name of the backend in whose partition it is, or "portable".
        """
        kind, units, nbytes = self.quantities(node)
        if kind == VIEW:
            return 0.0
        rate = self._rates.get((place, kind))
        if rate is None:
            rate = self._rates[place, kind] = _rate(self.profile.rates(place), kind)
        return rate.call + rate.unit * units + rate.byte * nbytes

    def is_free(self, node: Node) -> bool:
        """Return true if a node takes no time in any place."""
        return self.quantities(node).kind == VIEW

    def call(self, place: str, crossing: Iterable[Node]) -> float:
        """Return the seconds of the call of a partition without its work.

        Args:
            place: its backend.
            crossing: the values that go in and out, without constants.
        """
        return self.profile.rates(place).call.seconds(0, sum([self.nbytes(node) for node in crossing]))

    def partition(self, place: str, nodes: Iterable[Node], crossing: Iterable[Node]) -> float:
        """Return the seconds of a partition: of its nodes, and of its call; see `call`."""
        return sum([self.node(node, place) for node in nodes]) + self.call(place, crossing)

    def nbytes(self, node: Node) -> int:
        """Return the bytes of the results of a node."""
        count = self._nbytes.get(node)
        if count is None:
            count = self._nbytes[node] = nbytes(node)
        return count

    def quantities(self, node: Node) -> Quantities:
        """Return what the seconds of a node depend on."""
        known = self._quantities.get(node)
        if known is None:
            known = self._quantities[node] = self._measure(node)
        return known

    def _measure(self, node: Node) -> Quantities:
        if not is_compute(node) or isinstance(node.target, HigherOrderOperator):
            return _FREE
        kind = kind_of(op_name(node))
        if kind == VIEW or (kind in (COPY, PERMUTE) and all(map(is_constant, node.all_input_nodes))):
            return _FREE  # copies of weights are made when the program is loaded
        own, sources = self.nbytes(node), [self.nbytes(source) for source in node.all_input_nodes]
        count = multiply_adds(node)
        if count is None:
            return Quantities(kind, (own if kind in BY_RESULT else max(own, *sources, 0)) / _WORD, 0)
        wide = max(tensors(node)[0].element_size() / _WORD, 1)
        return Quantities(_convolution(node) if kind == CONVOLUTION else kind, count * wide, own + sum(sources))


def crossing_values(members: Collection[Node]) -> list[Node]:
    """Return the values that go into a partition and out of it, without constants."""
    inside = set(members)
    sources = {s for node in members for s in node.all_input_nodes if s not in inside and not is_constant(s)}
    return [*sources, *(node for node in members if any(user not in inside for user in node.users))]


def _rate(rates: PlaceRates, kind: str) -> Rate:
    """Return the rate of a kind; of a kind that was not measured, that of the most similar one."""
    operators = rates.operators
    return operators.get(kind) or (operators.get(COPY) if kind == PERMUTE else None) or operators[FUNCTION]


def _convolution(node: Node) -> str:
    """Return the kind of a convolution: depthwise, with a kernel of one element, or any other."""
    args = arguments(node)
    weight, groups = tensor(args["weight"]), args.get("groups", 1)
    if isinstance(groups, int) and groups > 1 and size(weight.shape[1]) == 1:
        return DEPTHWISE if math.prod(size(number) for number in weight.shape[2:]) <= _NARROW else WIDE_DEPTHWISE
    return POINTWISE if all(size(number) == 1 for number in weight.shape[2:]) else CONVOLUTION
