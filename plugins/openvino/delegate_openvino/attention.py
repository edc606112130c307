"""Attention: rows of a mask that see nothing."""

from __future__ import annotations

import torch
from torch.fx import Graph, Node


def zero_where_nothing_is_seen(graph: Graph, attended: Node, mask: Node) -> Node:
    """Set rows that are masked completely to zero, as torch does; OpenVINO's results are NaN.

    Args:
        graph: The graph to which the nodes are appended.
        attended: The result of attention [..., length, head size].
        mask: Its boolean mask, or floats to add [..., length, keys].

    Returns:
        The corrected result.
    """
    aten = torch.ops.aten
    value = mask.meta["val"]
    seen = mask if value.dtype is torch.bool else graph.call_function(aten.gt.Scalar, (mask, float("-inf")))
    some = graph.call_function(aten.any.dim, (seen, -1, True))
    none = graph.call_function(aten.logical_not.default, (some,))
    masked = graph.call_function(aten.masked_fill.Scalar, (attended, none, 0.0))
    rows = value[..., :1]
    for node, result in (
        (seen, value.bool()),
        (some, rows.bool()),
        (none, rows.bool()),
        (masked, attended.meta["val"]),
    ):
        node.meta.setdefault("val", result)
    return masked
