"""Views at the border of a partition: the runtime does them by strides, for nothing, so they stay outside."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from torch.fx import Node

from delegate.edge.node import is_constant, is_static, nbytes, op_name

# Permutations are not among them: a library may do them within what comes before or after.
_FREE = frozenset(
    f"aten.{name}"
    for name in (
        "view.default", "_unsafe_view.default", "squeeze.default", "squeeze.dim", "squeeze.dims", "unsqueeze.default",
        "expand.default", "slice.Tensor", "select.int", "alias.default", "detach.default",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Border:
    """Views to leave outside of a partition.

    Args:
        before: of its inputs, in topological order.
        behind: of its results, in topological order.
    """

    before: tuple[Node, ...] = ()
    behind: tuple[Node, ...] = ()


def views_at_the_border(members: Sequence[Node], kept: Set[Node], delegated: Set[Node]) -> Border:
    """The views at the border of a partition of which fewer bytes cross it where they stay outside.

    A view that others of the partition need stays, and so does one of a dynamic size, and one between two partitions,
    whose tensors may stay on a device.

    Args:
        members: in topological order.
        kept: nodes that stay in any case.
        delegated: the nodes of all partitions.
    """
    inside = set(members)
    before: list[Node] = []
    for node in members:
        if _is_free(node, kept) and _moves_in(node, inside, delegated):
            inside.discard(node)
            before.append(node)
    behind: list[Node] = []
    for node in reversed(members):
        if node in inside and _is_free(node, kept) and _moves_out(node, inside, delegated):
            inside.discard(node)
            behind.append(node)
    return Border(tuple(before), tuple(reversed(behind)))


def _is_free(node: Node, kept: Set[Node]) -> bool:
    return op_name(node) in _FREE and len(node.all_input_nodes) == 1 and is_static(node) and node not in kept


def _moves_in(node: Node, inside: Set[Node], delegated: Set[Node]) -> bool:
    """Whether it reads what the host gives, which nothing else inside reads, and makes fewer bytes of it."""
    (source,) = node.all_input_nodes
    if source in inside or (source in delegated and op_name(source) not in _FREE) or is_constant(source):
        return False
    return nbytes(node) < nbytes(source) and not any(u in inside and u is not node for u in source.users)


def _moves_out(node: Node, inside: Set[Node], delegated: Set[Node]) -> bool:
    """Whether the host alone reads it, and what it reads, which is made inside, has fewer bytes or leaves anyway."""
    (source,) = node.all_input_nodes
    if source not in inside or any(user in inside or user in delegated for user in node.users):
        return False
    leaves = any(user not in inside and user is not node for user in source.users)
    return leaves or nbytes(source) < nbytes(node)
