"""Replacement of operators with several views of one tensor (unbind, split, chunk) by one view for each result.

A write through one of several views has no inverse. A write through a select or a slice has one.
"""

from __future__ import annotations

from itertools import accumulate
from operator import getitem

import torch
from torch.fx import Graph, Node

from delegate.edge.build import make_like
from delegate.edge.node import arguments, op_name, tensors

aten = torch.ops.aten

_SPLITS = {
    "aten.unbind.int", "aten.split.Tensor", "aten.split.sizes", "aten.split_with_sizes.default", "aten.chunk.default",
    "aten.tensor_split.sections", "aten.tensor_split.indices",
}  # fmt: skip


def single_views(graph: Graph) -> None:
    """Replace these operators in place, except if parts have symbolic sizes along the split dimension."""
    for node in list(graph.nodes):
        if op_name(node) in _SPLITS:
            _replace(node)


def _replace(node: Node) -> None:
    args, parts = arguments(node), tensors(node)
    source, dim = node.args[0], args["dim"]
    unbound = node.target is aten.unbind.int
    sizes = [1] * len(parts) if unbound else [part.shape[dim] for part in parts]
    if not all(isinstance(size, int) for size in sizes) or any(user.target is not getitem for user in node.users):
        return
    starts = [0, *accumulate(sizes)]
    for item in list(node.users):
        place = int(item.args[1])  # type: ignore[arg-type]
        with node.graph.inserting_before(item):
            if unbound:
                view = make_like(item, aten.select.int, (source, dim, place), {})
            else:
                view = make_like(item, aten.slice.Tensor, (source, dim, starts[place], starts[place + 1]), {})
        item.replace_all_uses_with(view)
        node.graph.erase_node(item)
    node.graph.erase_node(node)
