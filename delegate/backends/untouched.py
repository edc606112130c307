"""What plugins are given and must leave as it is: graphs that others read after them, weights that are the model's own.

A plugin that writes to one of them changes what everybody else computes, the user's own model too, without a word.
So does one that makes a plain number of a dynamic size, or compares it: it goes by the size of the export, and torch
takes the answer for a fact of all calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, Node

from delegate.edge.node import symbolic_numbers

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
        self._sizes = _environment(graph)
        self._decided = 0 if self._sizes is None else len(self._sizes.guards)

    def change(self) -> str:
        """What has changed since, in words; empty where nothing has."""
        for node, elements in self._elements.items():
            if not torch.equal(elements, _sample(self._weights[node])):
                return f"wrote to the weight {node.name}, which is the model's own"
        now = _nodes(self._graph)
        if list(now) != list(self._nodes):
            return "added, removed or moved nodes of a graph that others read too"
        if self._sizes is not None and len(self._sizes.guards) > self._decided:
            decided = self._sizes.guards[self._decided].expr
            return f"went by what sizes are in the export alone: {decided}"
        changed = (
            n.name for n, seen in now.items() if any(a is not b for a, b in zip(seen, self._nodes[n], strict=True))
        )
        name = next(changed, None)
        return "" if name is None else f"changed the node {name} of a graph that others read too"


def _environment(graph: Graph) -> Any:
    """Where torch keeps what is known of the graph's dynamic sizes; None where it has none."""
    sizes = (size for n in graph.nodes for size in symbolic_numbers(n.meta.get("val")))
    return next((size.node.shape_env for size in sizes), None)


def _nodes(graph: Graph) -> dict[Node, _Seen]:
    return {n: _Seen(n.target, n.args, n.kwargs, n.meta.get("val")) for n in graph.nodes}


def _sample(weight: torch.Tensor) -> torch.Tensor:
    """The bytes of a few elements, which NaN equals too."""
    steps = tuple(slice(None, None, max(1, size // _SAMPLED)) for size in weight.shape)
    return weight.detach()[steps].clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)
