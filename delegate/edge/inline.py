"""Inlining of the regions of a program's graph that only set torch's own modes."""

from __future__ import annotations

from typing import Any

from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from delegate.edge.graphs import PRESERVED_METADATA

_VMAP = "torch._functorch.predispatch"  # where torch has the calls that begin and end a vmap


class NotSimple(Exception):
    """Raised if the fast path of `to_edge` does not support a graph; the message is the reason."""


def inlined(module: GraphModule) -> Graph:
    """Return a copy of the module's graph, with metadata, in which grad-mode and disabled autocast are inlined.

    Raises:
        NotSimple: the graph has other submodules (control flow, enabled autocast) or a vmap.
    """
    graph = Graph()
    env: dict[Node, Any] = {}
    for node in module.graph.find_nodes(op="placeholder"):
        env[node] = graph.node_copy(node)
        env[node].meta = _preserved_metadata(node)
    graph.output(_copy_body(module, graph, env))
    return graph


def _copy_body(module: GraphModule, graph: Graph, env: dict[Node, Any]) -> Any:
    """Copy all nodes between placeholders and output; return the output's argument in terms of the copy."""
    for node in module.graph.nodes:
        if node.op in ("placeholder", "output", "get_attr"):
            continue
        region = _region(node)
        if region is not None:
            body_node, operands = region
            body = getattr(module, str(body_node.target))
            inner = dict(zip(body.graph.find_nodes(op="placeholder"), map_arg(operands, env.__getitem__), strict=True))
            env[node] = _copy_body(body, graph, inner)
        elif isinstance(node.args[0] if node.args else None, Node) and isinstance(env.get(node.args[0]), list | tuple):
            env[node] = env[node.args[0]][node.args[1]]  # getitem of an inlined region
        else:
            env[node] = graph.node_copy(node, env.__getitem__)
            env[node].meta = _preserved_metadata(node)
    return map_arg(module.graph.output_node().args[0], env.__getitem__)


def _region(node: Node) -> tuple[Any, tuple[Any, ...]] | None:
    """Return the body and the operands of a region to inline; None for another node."""
    match getattr(node.target, "__name__", ""), node.args:
        case "wrap_with_set_grad_enabled", (_, body, *operands):
            return body, tuple(operands)
        case "wrap_with_autocast", (_, _, False, _, body, *operands):
            return body, tuple(operands)
    if getattr(node.target, "__module__", "") == _VMAP:
        raise NotSimple(f"{node.name} is part of a vmap")
    if any(isinstance(a, Node) and a.op == "get_attr" for a in node.all_input_nodes):
        raise NotSimple(f"{node.name} has a body of its own")
    return None


def _preserved_metadata(node: Node) -> dict[str, Any]:
    return {key: node.meta[key] for key in PRESERVED_METADATA if key in node.meta}
