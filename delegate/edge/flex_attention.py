"""flex_attention becomes the operators of its dense form: scores of all pairs, changed and masked, a softmax."""

from __future__ import annotations

from typing import Any

import torch
from torch._higher_order_ops.flex_attention import math_attention
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from delegate.edge.build import inherited
from delegate.edge.decompose import Decomposer
from delegate.edge.graphs import graph_modules
from delegate.edge.program import META_VALUE

_FLEX_ATTENTION = torch.ops.higher_order.flex_attention


def lower_flex_attention(root: GraphModule, decomposer: Decomposer) -> None:
    """Write every flex_attention out, in place, bodies of control flow included.

    Raises:
        LoweringError: torch cannot trace how scores are changed or masked.
    """
    for module in graph_modules(root):
        for node in module.graph.find_nodes(op="call_function", target=_FLEX_ATTENTION):
            with module.graph.inserting_before(node):
                dense = _dense(module, node)
            node.replace_all_uses_with(dense)
            module.graph.erase_node(node)
            decomposer.expand([dense])


def _dense(module: GraphModule, node: Node) -> Node:
    """A call of torch's dense form on the tensors among the node's arguments alone."""
    nodes: list[Node] = []
    map_arg((node.args, node.kwargs), nodes.append)
    bodies = {n: getattr(module, str(n.target)) for n in nodes if n.op == "get_attr"}
    operands = [n for n in dict.fromkeys(nodes) if n not in bodies]
    arguments = node.args, node.kwargs  # the node itself will be gone

    def attend(*values: Any) -> Any:
        known: dict[Node, Any] = {**bodies, **dict(zip(operands, values, strict=True))}
        filled: Any = map_arg(arguments, known.__getitem__)
        return math_attention(*filled[0], **filled[1])

    dense = module.graph.call_function(attend, tuple(operands))
    dense.meta = {**inherited(node), META_VALUE: node.meta[META_VALUE]}
    return dense
