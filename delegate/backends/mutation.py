"""MutationGuard: a record of a graph and its weights, which finds what a plugin has changed; and copies of graphs.

A plugin must not change its arguments: graphs that others read later, and the model's own weights. Otherwise it would
silently change the results of others, including those of the user's own model. A plugin that the user did not name
works on copies of graphs, so that lowering goes on without it.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import sympy
import torch
from torch.fx import Graph, Node

from delegate.edge.graphs import copy_node

_Container = dict[Any, Any] | list[Any] | tuple[Any, ...]
_SAMPLED = 3  # places along each dimension of a weight that are compared: a weight is rescaled or turned as a whole


class _Seen(NamedTuple):
    """All fields of a node. Its arguments are immutable containers; those in its metadata are read one level deep."""

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
        self._nodes = {node: _seen(node) for node in graph.nodes}
        self._elements = {node: _sample(weight) for node, weight in self._weights.items()}

    def change(self) -> str:
        """Return a description of the change since the record; empty if there is none."""
        if weight := self.written_weight():
            return f"wrote to the weight {weight} of the model"
        now = {node: _seen(node) for node in self._graph.nodes}
        if list(now) != list(self._nodes):
            return "added, removed or moved nodes of a graph that others read too"
        for node, seen in now.items():
            before = self._nodes[node]
            for field, old, new in zip(_Seen._fields, before, seen, strict=True):
                if _any_differs(old, new):
                    return f"changed the node {before.name[0]} of a graph that others read too: its {field}"
        return ""

    def written_weight(self) -> str:
        """Return the name of a weight that has changed since the record; empty if none has."""
        changed = (n for n, elements in self._elements.items() if not torch.equal(elements, _sample(self._weights[n])))
        return next((node.name for node in changed), "")


class GraphCopy:
    """A copy of a graph, with a record of it.

    Args:
        graph: the graph.

    Attributes:
        of: node of the graph -> its copy.
        original: copy -> node of the graph.
        guard: finds what has changed in the copy.
    """

    def __init__(self, graph: Graph) -> None:
        copied, self.of = Graph(), dict[Node, Node]()
        copied.owning_module = graph.owning_module
        for node in graph.nodes:
            copy = copy_node(copied, node, self.of)
            copy.meta = {key: _copy(value) for key, value in node.meta.items()}
            self.of[node] = copy
        self.original = {copy: node for node, copy in self.of.items()}
        self.guard = MutationGuard(copied)


def _copy(value: Any) -> Any:
    """Return a copy of a plain container of metadata, and other values unchanged."""
    return value.copy() if type(value) in (dict, list) else value


def _seen(node: Node) -> _Seen:
    meta: list[Any] = [*node.meta]
    for value in node.meta.values():
        meta += _leaf(value)
        if isinstance(value, dict):
            meta += (*value, *value.values())
        elif isinstance(value, list | tuple):
            meta += (leaf for item in value for leaf in _leaf(item))
    fields = (node.name,), (node.op,), (node.target,), (node.args,), (node.kwargs,), tuple(node.users), tuple(meta)
    return _Seen(*fields)


def _flat(value: _Container) -> Iterator[Any]:
    """Yield the leaves of nested containers, their kinds and lengths, and the sizes and dtypes of tensors."""
    yield from (dict, *value) if isinstance(value, dict) else (type(value), len(value))
    for item in value.values() if isinstance(value, dict) else value:
        if isinstance(item, dict | list | tuple):
            yield from _flat(item)
        else:
            yield from _leaf(item)


def _leaf(item: Any) -> tuple[Any, ...]:
    """Return an object; with its dtype and sizes if it is a tensor."""
    if isinstance(item, torch.Tensor):
        return (item, item.dtype, *(size if isinstance(size, int) else size.node.expr for size in item.shape))
    return (item,)


def _any_differs(old: tuple[Any, ...], new: tuple[Any, ...]) -> bool:
    if len(old) != len(new):
        return True
    return not all(map(operator.is_, old, new)) and any(map(_differs, old, new))


def _differs(old: Any, new: Any) -> bool:
    """Return true if two objects differ. Plain data and containers may be created again, so they are compared."""
    if old is new:
        return False
    if isinstance(old, dict | list | tuple) and isinstance(new, dict | list | tuple):
        return _any_differs(tuple(_flat(old)), tuple(_flat(new)))
    return not (isinstance(old, str | int | sympy.Expr) and type(old) is type(new) and old == new)


def _sample(weight: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a few elements, so that NaN is equal to NaN."""
    steps = tuple(slice(None, None, max(1, size // _SAMPLED)) for size in weight.shape)
    return weight.detach()[steps].clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)
