"""Replacement of flex_attention by its dense form: the scores of all pairs, modified and masked, and a softmax."""

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
    """Replace every flex_attention, in place, also in bodies of control flow.

    Raises:
        LoweringError: torch cannot trace the modification or the mask of scores.
    """
    for module in graph_modules(root):
        for node in module.graph.find_nodes(op="call_function", target=_FLEX_ATTENTION):
            with module.graph.inserting_before(node):
                dense = _dense(module, node)
            node.replace_all_uses_with(dense)
            module.graph.erase_node(node)
            decomposer.expand([dense])


def _dense(module: GraphModule, node: Node) -> Node:
    """Return a call of torch's dense form whose only arguments are the tensors of the node."""
    nodes: list[Node] = []
    map_arg((node.args, node.kwargs), nodes.append)
    bodies = {n: getattr(module, str(n.target)) for n in nodes if n.op == "get_attr"}
    operands = [n for n in dict.fromkeys(nodes) if n not in bodies]
    arguments = node.args, node.kwargs  # the node itself will be erased

    def attend(*values: Any) -> Any:
        known: dict[Node, Any] = {**bodies, **dict(zip(operands, values, strict=True))}
        filled: Any = map_arg(arguments, known.__getitem__)
        return math_attention(*filled[0], **filled[1])

    dense = module.graph.call_function(attend, tuple(operands))
    dense.meta = {**inherited(node), META_VALUE: node.meta[META_VALUE]}
    return dense
