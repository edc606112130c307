"""Checks if kernels run a node without decomposition."""

from __future__ import annotations

from torch.fx import Graph, Node

from delegate.edge.decompose import compound_nodes
from delegate.edge.node import dtype_of, op_name, tensors
from delegate.kernels.selection import Kernels


def has_kernel(node: Node, kernels: Kernels) -> bool:
    """Return if a kernel without torch runs the node's operator on its dtypes."""
    dtypes = {d for n in (node, *node.all_input_nodes) for t in tensors(n) if (d := dtype_of(t.dtype))}
    find, op = kernels.torch_free.find, op_name(node)
    return find(op, dtypes) is not None or find(op, dtypes, allocates=True) is not None


def compounds_without_kernel(graph: Graph, kernels: Kernels) -> list[Node]:
    """Return the nodes without a kernel that can be decomposed."""
    return [n for n in compound_nodes(graph) if not has_kernel(n, kernels)]
