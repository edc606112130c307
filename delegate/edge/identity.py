"""Stable identities of nodes: module path, operator, ordinal. They are equal in every run; torch.fx's names are not."""

from __future__ import annotations

from collections import Counter

from torch.fx import Node

from delegate.edge.graphs import META_IDENTITY, graph_modules
from delegate.edge.node import module_path, op_name
from delegate.edge.program import EdgeProgram


def identify(program: EdgeProgram) -> EdgeProgram:
    """Set the identity of every call in the graphs of a program that has none yet.

    A pass preserves the identity of a node that it does not replace. A new node gets the next ordinal of its module and
    operator.
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
    """Return the identity of a node, e.g. "encoder.layer.0:aten.linear.default#1"; its name if it has none."""
    return str(node.meta.get(META_IDENTITY, node.name))
