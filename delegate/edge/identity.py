"""Stable identities of nodes: module path, operator, ordinal. The same in every run, whatever torch.fx calls them."""

from __future__ import annotations

from collections import Counter

from torch.fx import Node

from delegate.edge.graphs import META_IDENTITY, graph_modules
from delegate.edge.node import module_path, op_name
from delegate.edge.program import EdgeProgram


def identify(program: EdgeProgram) -> EdgeProgram:
    """Give every call in the graphs of a program an identity, where it has none yet.

    An identity is kept by passes that do not touch its node; what they make new gets the next ordinals of its module
    and operator.
    """
    for module in graph_modules(program.graph_module):
        calls = [n for n in module.graph.nodes if n.op == "call_function"]
        taken = {n.meta[META_IDENTITY] for n in calls if META_IDENTITY in n.meta}
        ordinals: Counter[str] = Counter()
        for node in calls:
            if META_IDENTITY not in node.meta:
                node.meta[META_IDENTITY] = _next(f"{module_path(node)}:{op_name(node)}", ordinals, taken)
    return program


def _next(kind: str, ordinals: Counter[str], taken: set[str]) -> str:
    while (name := f"{kind}#{ordinals[kind]}") in taken:
        ordinals[kind] += 1
    taken.add(name)
    return name


def identity(node: Node) -> str:
    """E.g. "encoder.layer.0:aten.linear.default#1"; of a node that has none, its name."""
    return str(node.meta.get(META_IDENTITY, node.name))
