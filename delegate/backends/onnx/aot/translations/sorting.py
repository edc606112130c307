"""Sorting, and the largest or smallest elements."""

from __future__ import annotations

from typing import Any

from torch.fx import Node

from delegate.backends.lowering import every
from delegate.backends.onnx.aot.translations.row import INDICES, axis_of, floating_inputs, ints, ops, row
from delegate.edge.node import arguments, tensor
from delegate.verdict import YES, Reason, Verdict, no


def _known_size(node: Node) -> Verdict:
    """The number of sorted elements is known before it runs."""
    source = node.all_input_nodes[0]
    shape = tensor(source).shape
    if len(shape) and isinstance(shape[arguments(node)["dim"]], int):
        return YES
    return no(Reason.DYNAMIC_SHAPE, f"the size of {source.name} along dim is not known")


def _known_count(node: Node) -> Verdict:
    """k is a number, of at least one dimension."""
    k = arguments(node)["k"]
    if isinstance(k, int) and tensor(node.all_input_nodes[0]).dim():
        return YES
    return no(Reason.DYNAMIC_SHAPE, f"k={k}")


def topk(x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """Always in order: torch lets any be given where `sorted` is False."""
    return ops().TopK(x, ints([k]), axis=axis_of(dim, x), largest=int(largest), sorted=1)


def sort(x: Any, dim: int = -1, descending: bool = False) -> Any:
    """All of them, the smallest first."""
    return topk(x, x.shape[axis_of(dim, x)], dim, descending)


def stable_sort(x: Any, *, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
    """Providers that run it leave equal elements in their order."""
    return sort(x, dim, descending)


def kth_smallest(x: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    """The last of the k smallest."""
    op, axis = ops(), axis_of(dim, x)
    last = ints([k - 1]) if keepdim else op.Constant(value_int=k - 1)
    return tuple(op.Gather(result, last, axis=axis) for result in topk(x, k, axis, largest=False))


_FLOATS = every(floating_inputs, _known_size)

ROWS = (
    row("aten.topk.default", ("TopK",), every(floating_inputs, _known_count), also=INDICES, translate=topk),
    row("aten.sort.default", ("TopK",), _FLOATS, also=INDICES, translate=sort),
    row("aten.sort.stable", ("TopK(stable)",), _FLOATS, also=INDICES, translate=stable_sort),
    row(
        "aten.kthvalue.default", ("TopK",), every(floating_inputs, _known_count), also=INDICES,
        translate=kth_smallest, between=("Gather",),
    ),
)  # fmt: skip
