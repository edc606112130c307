"""Symbolic numbers in a graph: sizes and what is computed from them. They stay outside partitions.

A region takes only tensors when it runs. A size that it needs it knows from the shapes of its tensors (`meta["val"]`),
so that a symbolic number among the arguments of a delegated node is no input of the region, and orders nothing.
"""

from __future__ import annotations

from typing import Any

from torch.fx import Node

from delegate.edge.node import SYMBOLIC, op_name, tensors
from delegate.edge.program import META_VALUE

_NUMBERS = (int, float, *SYMBOLIC)
_SIZE_OPERATORS = frozenset({"aten.sym_size.int", "aten.sym_stride.int", "aten.sym_numel.default"})


def is_number(node: Node) -> bool:
    """Whether the node gives a number (a plain or a symbolic one) and not tensors."""
    return isinstance(node.meta.get(META_VALUE), _NUMBERS)


def is_size_arithmetic(node: Node) -> bool:
    """Whether the node only computes with sizes, such as sym_size, or operator.mul of two sizes."""
    return is_number(node) and ((name := op_name(node)) in _SIZE_OPERATORS or not name.startswith("aten."))


def unknown_number(node: Node) -> Node | None:
    """The first argument that is a number which the shapes of the node's own tensors do not tell, or None."""
    numbers = [source for source in node.all_input_nodes if is_number(source)]
    if not numbers:
        return None
    shapes = [t.shape for source in node.all_input_nodes for t in tensors(source)]
    known: set[Any] = set().union(*(_symbols(size) for shape in shapes for size in shape))
    return next((n for n in numbers if not _symbols(n.meta[META_VALUE]) <= known), None)


def _symbols(number: Any) -> set[Any]:
    """The free symbols of a number."""
    if isinstance(number, SYMBOLIC):
        return set(number.node.expr.free_symbols)
    return set()
