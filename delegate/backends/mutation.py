"""MutationGuard: a record of a graph and its weights, which finds what a plugin has changed.

A plugin must not change its arguments: graphs that others read later, and the model's own weights. Otherwise it would
silently change the results of others, including those of the user's own model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import sympy
import torch
from torch.fx import Graph, Node

_SAMPLED = 3  # places along each dimension of a weight that are compared: a weight is rescaled or turned as a whole


class _Seen(NamedTuple):
    """All fields of a node. Arguments and metadata are flat, with the items of containers and the sizes of tensors."""

    name: tuple[str]
    op: tuple[str]
    target: tuple[Any]
    args: tuple[Any, ...]
    kwargs: tuple[Any, ...]
    users: tuple[Node, ...]
    meta: tuple[Any, ...]


class MutationGuard:
    """A record of a graph and its weights, which reports later changes.

    Args:
        graph: the graph; the record holds its nodes with names, arguments, users and metadata.
        weights: the weights; the record holds some elements of each.
    """

    def __init__(self, graph: Graph, weights: Mapping[Node, torch.Tensor] | None = None) -> None:
        self._graph, self._weights = graph, weights or {}
        self._nodes = _nodes(graph)
        self._elements = {node: _sample(weight) for node, weight in self._weights.items()}

    def change(self) -> str:
        """Return a description of the change since the record; empty if there is none."""
        for node, elements in self._elements.items():
            if not torch.equal(elements, _sample(self._weights[node])):
                return f"wrote to the weight {node.name} of the model"
        now = _nodes(self._graph)
        if list(now) != list(self._nodes):
            return "added, removed or moved nodes of a graph that others read too"
        for node, seen in now.items():
            before = self._nodes[node]
            for field, old, new in zip(_Seen._fields, before, seen, strict=True):
                if len(old) != len(new) or any(map(_differs, old, new)):
                    return f"changed the node {before.name[0]} of a graph that others read too: its {field}"
        return ""


def _nodes(graph: Graph) -> dict[Node, _Seen]:
    return {n: _seen(n) for n in graph.nodes}


def _seen(node: Node) -> _Seen:
    args, kwargs, meta = (tuple(_flat(value)) for value in (node.args, node.kwargs, node.meta))
    return _Seen((node.name,), (node.op,), (node.target,), args, kwargs, tuple(node.users), meta)


def _flat(value: Any) -> Iterator[Any]:
    """Yield the leaves of nested containers, their kinds and lengths, and the sizes and dtypes of tensors."""
    if isinstance(value, dict):
        yield from (dict, *value)
        value = value.values()
    else:
        yield from (type(value), len(value))
    for item in value:
        if isinstance(item, dict | list | tuple):
            yield from _flat(item)
            continue
        yield item
        if isinstance(item, torch.Tensor):
            yield item.dtype
            yield from (size if isinstance(size, int) else size.node.expr for size in item.shape)


def _differs(old: Any, new: Any) -> bool:
    """Return true if two objects differ. Plain data may be created again, so its values are compared."""
    return old is not new and not (isinstance(old, str | int | sympy.Expr) and type(old) is type(new) and old == new)


def _sample(weight: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a few elements, so that NaN is equal to NaN."""
    steps = tuple(slice(None, None, max(1, size // _SAMPLED)) for size in weight.shape)
    return weight.detach()[steps].clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)
