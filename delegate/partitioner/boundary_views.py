"""Views at the boundary of a partition. The runtime computes them by strides, without a copy, so they stay outside."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from torch.fx import Node

from delegate.edge.node import is_constant, is_static, nbytes, op_name

# Permutations are not in the list: a library may fuse them with its operators before or after.
_FREE = frozenset(
    f"aten.{name}"
    for name in (
        "view.default", "_unsafe_view.default", "squeeze.default", "squeeze.dim", "squeeze.dims", "unsqueeze.default",
        "expand.default", "slice.Tensor", "select.int", "alias.default", "detach.default",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class BoundaryViews:
    """Views to move out of a partition.

    Args:
        before: views of inputs, in topological order.
        after: views of results, in topological order.
    """

    before: tuple[Node, ...] = ()
    after: tuple[Node, ...] = ()


def boundary_views(members: Sequence[Node], fixed: Set[Node], delegated: Set[Node]) -> BoundaryViews:
    """Return the views that reduce the bytes across the boundary of a partition if they run outside.

    A view stays if other members need it, or if its size is dynamic. It also stays between two partitions, because
    their tensors may stay on a device.

    Args:
        members: in topological order.
        fixed: nodes that always stay.
        delegated: the nodes of all partitions.
    """
    inside = set(members)
    before: list[Node] = []
    for node in members:
        if _is_free(node, fixed) and _moves_in(node, inside, delegated):
            inside.discard(node)
            before.append(node)
    after: list[Node] = []
    for node in reversed(members):
        if node in inside and _is_free(node, fixed) and _moves_out(node, inside, delegated):
            inside.discard(node)
            after.append(node)
    return BoundaryViews(tuple(before), tuple(reversed(after)))


def _is_free(node: Node, fixed: Set[Node]) -> bool:
    return op_name(node) in _FREE and len(node.all_input_nodes) == 1 and is_static(node) and node not in fixed


def _moves_in(node: Node, inside: Set[Node], delegated: Set[Node]) -> bool:
    """Return if the node reads a value of the host that no other member reads, and its result is smaller."""
    (source,) = node.all_input_nodes
    if source in inside or (source in delegated and op_name(source) not in _FREE) or is_constant(source):
        return False
    return nbytes(node) < nbytes(source) and not any(u in inside and u is not node for u in source.users)


def _moves_out(node: Node, inside: Set[Node], delegated: Set[Node]) -> bool:
    """Return if only the host reads the node, and its source, a member, is smaller or leaves the partition anyway."""
    (source,) = node.all_input_nodes
    if source not in inside or any(user in inside or user in delegated for user in node.users):
        return False
    leaves = any(user not in inside and user is not node for user in source.users)
    return leaves or nbytes(source) < nbytes(node)
