"""Indices that change between iterations: bodies of control flow select by an index tensor, not by a number.

A number among the arguments of an operator is fixed when a program is bound to memory. So, for a counter `i` of a loop,
`x[i]` becomes index_select, and `y[i] = ...` becomes index_put.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from delegate.edge.build import inherited, make_like
from delegate.edge.graphs import graph_modules
from delegate.edge.node import arguments, op_name, tensor
from delegate.edge.program import META_VALUE

aten = torch.ops.aten


def index_by_tensors(root: GraphModule) -> None:
    """Rewrite the bodies of control flow in a program, in place; its own graph does not change."""
    for module in list(graph_modules(root))[1:]:
        for node in list(module.graph.nodes):
            rewrite = _REWRITES.get(op_name(node)) if node.op == "call_function" else None
            if rewrite is not None and _changes(arguments(node)["index"]):
                with module.graph.inserting_before(node):
                    node.replace_all_uses_with(rewrite(node))
                module.graph.erase_node(node)


def _changes(index: object) -> bool:
    return isinstance(index, Node) and bool(free_unbacked_symbols(index.meta[META_VALUE]))


def _select(node: Node) -> Node:
    args = arguments(node)
    part = make_like(node, aten.index_select.default, (args["self"], args["dim"], _place(node)), {})
    return make_like(node, aten.squeeze.dims, (part, [args["dim"]]), {})


def _select_scatter(node: Node) -> Node:
    args = arguments(node)
    dim = int(args["dim"]) % tensor(node).dim()
    source = make_like(node, aten.unsqueeze.default, (args["src"], dim), {})
    return make_like(node, aten.index_put.default, (args["self"], [*[None] * dim, _place(node)], source), {})


def _place(node: Node) -> Node:
    """Return the index as a tensor of one element."""
    index = node.graph.call_function(aten.full.default, ([1], arguments(node)["index"]), {"dtype": torch.int64})
    index.meta = {**inherited(node), META_VALUE: tensor(node).new_empty([1], dtype=torch.int64)}
    return index


_REWRITES: dict[str, Callable[[Node], Node]] = {
    "aten.select.int": _select,
    "aten.select_copy.int": _select,
    "aten.select_scatter.default": _select_scatter,
}
