"""What plugins are given and must leave as it is: graphs that others read after them, weights that are the model's own.

A plugin that writes to one of them changes what everybody else computes, the user's own model too, without a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, Node

_SAMPLED = 3  # places along each dimension of a weight that are compared: a weight is rescaled or turned as a whole


class _Seen(NamedTuple):
    target: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    val: Any


class Untouched:
    """A graph and weights as they are now.

    Args:
        graph: of which nodes and arguments are remembered.
        weights: of which some elements are.
    """

    def __init__(self, graph: Graph, weights: Mapping[Node, torch.Tensor] | None = None) -> None:
        self._graph, self._weights = graph, weights or {}
        self._nodes = _nodes(graph)
        self._elements = {node: _sample(weight) for node, weight in self._weights.items()}

    def change(self) -> str:
        """What has changed since, in words; empty where nothing has."""
        for node, elements in self._elements.items():
            if not torch.equal(elements, _sample(self._weights[node])):
                return f"wrote to the weight {node.name}, which is the model's own"
        now = _nodes(self._graph)
        if list(now) != list(self._nodes):
            return "added, removed or moved nodes of a graph that others read too"
        changed = (
            n.name for n, seen in now.items() if any(a is not b for a, b in zip(seen, self._nodes[n], strict=True))
        )
        name = next(changed, None)
        return "" if name is None else f"changed the node {name} of a graph that others read too"


def _nodes(graph: Graph) -> dict[Node, _Seen]:
    return {n: _Seen(n.target, n.args, n.kwargs, n.meta.get("val")) for n in graph.nodes}


def _sample(weight: torch.Tensor) -> torch.Tensor:
    """The bytes of a few elements, which NaN equals too."""
    steps = tuple(slice(None, None, max(1, size // _SAMPLED)) for size in weight.shape)
    return weight.detach()[steps].clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)
