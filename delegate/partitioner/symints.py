"""Symbolic numbers in a graph: sizes, and numbers computed from sizes. They stay outside partitions.

The inputs of a region are only tensors. A region gets the sizes that it needs from the shapes of its tensors
(`meta["val"]`). So a symbolic number among the arguments of a delegated node is no input and creates no dependency.
"""

from __future__ import annotations

from typing import Any

from torch.fx import Node

from delegate.edge.node import SYMBOLIC, op_name, tensors
from delegate.edge.program import META_VALUE

_NUMBERS = (int, float, *SYMBOLIC)
_SIZE_OPERATORS = frozenset({"aten.sym_size.int", "aten.sym_stride.int", "aten.sym_numel.default"})


def is_number(node: Node) -> bool:
    """Return if the result of the node is a plain or symbolic number, not tensors."""
    return isinstance(node.meta.get(META_VALUE), _NUMBERS)


def is_size_arithmetic(node: Node) -> bool:
    """Return if the node only computes sizes, such as sym_size, or operator.mul of two sizes."""
    return is_number(node) and ((name := op_name(node)) in _SIZE_OPERATORS or not name.startswith("aten."))


def unknown_number(node: Node) -> Node | None:
    """Return the first argument that is a number and does not follow from the shapes of the node's tensors, or None."""
    numbers = [source for source in node.all_input_nodes if is_number(source)]
    if not numbers:
        return None
    shapes = [t.shape for source in node.all_input_nodes for t in tensors(source)]
    known: set[Any] = set().union(*(_symbols(size) for shape in shapes for size in shape))
    return next((n for n in numbers if not _symbols(n.meta[META_VALUE]) <= known), None)


def _symbols(number: Any) -> set[Any]:
    """Return the free symbols of a number."""
    if isinstance(number, SYMBOLIC):
        return set(number.node.expr.free_symbols)
    return set()
