"""Common subexpression elimination: equal computations are computed once."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from torch.fx import Graph, Node

from delegate.edge.build import is_pure
from delegate.edge.graphs import graph_modules
from delegate.edge.passes.result import PassResult
from delegate.edge.program import EdgeProgram


@dataclass(frozen=True, slots=True)
class CommonSubexpressionElimination:
    """A pass that merges pure nodes with the same operator and arguments; linear in the size of the graph."""

    def __call__(self, program: EdgeProgram) -> PassResult:
        merged = sum(_merge(module.graph) for module in graph_modules(program.graph_module))
        return PassResult(program, merged > 0)


def _merge(graph: Graph) -> int:
    merged = 0
    first: dict[Hashable, Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or not is_pure(node):
            continue
        key = (node.target, _key(node.args), tuple((k, _key(v)) for k, v in sorted(node.kwargs.items())))
        same = first.setdefault(key, node)
        if same is not node:
            node.replace_all_uses_with(same)
            graph.erase_node(node)
            merged += 1
    return merged


def _key(value: Any) -> Hashable:
    """Return a key that distinguishes values that are equal in Python: 1, 1.0 and True, and 0.0 and -0.0."""
    if isinstance(value, Node):
        return value
    if isinstance(value, list | tuple):
        return tuple(map(_key, value))
    return (type(value), repr(value))
