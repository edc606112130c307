"""A check for libraries that are wrong if a tensor without elements becomes one with elements.

A dynamic size may be 0. A sum over it is 0, a mean is NaN, and so on. Some libraries return what was in memory, others
fail.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import torch
from torch.fx import Node

from delegate.backends.region import Region
from delegate.edge.node import tensors
from delegate.edge.operator_names import base_name

# Operators that add up products over a size.
PRODUCTS = frozenset(
    f"aten.{name}" for name in ("addmm", "baddbmm", "bmm", "linear", "matmul", "mm", "scaled_dot_product_attention")
)
MEANS = frozenset(f"aten.{name}" for name in ("mean", "std", "var", "var_mean"))


def collapsed_sizes(region: Region, operators: Set[str] | None = None) -> dict[str, str]:
    """Return the nodes that may read an empty tensor and return one that is not: name -> why, for a refusal.

    Args:
        region: with the ranges of its sizes.
        operators: the operators that the library computes wrong then, without overloads; None: all.
    """
    least = {symbol: bounds.lower for symbol, bounds in region.range_constraints.items() if bounds.lower == 0}
    if not least:
        return {}
    return {
        node.name: f"its input {source.name} may be empty, and its result is not; export the size with Dim(..., min=1)"
        for node in region.calls
        if operators is None or base_name(node) in operators
        for source in node.all_input_nodes
        if any(_is_lost(size, node, least) for t in tensors(source) for size in t.shape)
    }


def _is_lost(size: Any, node: Node, least: Mapping[Any, Any]) -> bool:
    """Return true if a size may be 0 while no result of a node is empty."""
    if not isinstance(size, torch.SymInt):
        return False
    symbols = {s: least[s] for s in size.node.expr.free_symbols if s in least}
    if not symbols or size.node.expr.subs(symbols) != 0:
        return False
    return any(all(_at(other, symbols) != 0 for other in result.shape) for result in tensors(node))


def _at(size: Any, symbols: Mapping[Any, Any]) -> Any:
    return size.node.expr.subs(symbols) if isinstance(size, torch.SymInt) else size
