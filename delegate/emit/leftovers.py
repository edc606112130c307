"""What of a graph kernels cannot run as it stands."""

from __future__ import annotations

from torch.fx import Graph, Node

from delegate.edge.decompose import compound_nodes
from delegate.edge.node import dtype_of, op_name, tensors
from delegate.runtime.kernels import Kernels


def compounds_without_kernel(graph: Graph, kernels: Kernels) -> list[Node]:
    """The nodes that no kernel runs and that can be decomposed."""
    return [n for n in compound_nodes(graph) if not _has_kernel(n, kernels)]


def _has_kernel(node: Node, kernels: Kernels) -> bool:
    dtypes = {d for n in (node, *node.all_input_nodes) for t in tensors(n) if (d := dtype_of(t.dtype))}
    return kernels.torch_free.find(op_name(node), dtypes) is not None
