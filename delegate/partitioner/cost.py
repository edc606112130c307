"""Estimated operations and seconds of a node, for the report and for small partitions: a guide, not a measurement."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from torch._ops import HigherOrderOperator
from torch.fx import Node

from delegate.edge.node import arguments, elements, nbytes, op_name, size, tensor, tensors

_VIEW_OPERATORS = frozenset(
    f"aten.{name}"
    for name in (
        "view.default", "_unsafe_view.default", "reshape.default", "permute.default", "transpose.int", "t.default",
        "squeeze.default", "squeeze.dim", "squeeze.dims", "unsqueeze.default", "expand.default", "slice.Tensor",
        "select.int", "split.Tensor", "split_with_sizes.default", "chunk.default", "unbind.int", "flatten.using_ints",
        "unflatten.int", "alias.default", "detach.default", "view_copy.default", "permute_copy.default",
        "expand_copy.default", "slice_copy.Tensor", "select_copy.int", "squeeze_copy.dims", "unsqueeze_copy.default",
        "split_copy.Tensor", "split_with_sizes_copy.default", "unbind_copy.int", "alias_copy.default",
    )
)  # fmt: skip
_COPY_OPERATORS = frozenset(
    {"aten.clone.default", "aten.contiguous.default", "aten.lift_fresh_copy.default", "aten.detach_copy.default"}
)


def is_layout(node: Node) -> bool:
    """Return if the node only changes the layout of data; a partition of such nodes does no work."""
    name = op_name(node)
    return name in _VIEW_OPERATORS or name in _COPY_OPERATORS


def traffic(node: Node) -> int:
    """Return the bytes of the inputs and outputs of a node."""
    return sum(map(nbytes, node.all_input_nodes)) + nbytes(node)


# Rounded seconds on one core of a server of 2025, measured by `benchmarks.overhead` and `benchmarks.portable`: of a
# delegate's call, of a kernel's dispatch, of a byte that a call copies or a kernel streams, and of a multiply-add.
# Only their ratios matter, within a factor of two or three.
_CALL, _DISPATCH, _BYTE, _MULTIPLY_ADD = 4e-6, 1e-6, 1.5e-10, 2e-11


class Sizes(dict[Node, int]):
    """Bytes of the outputs of nodes, each computed once."""

    def __missing__(self, node: Node) -> int:
        self[node] = count = nbytes(node)
        return count


def kernel_seconds(node: Node, sizes: Sizes) -> float:
    """Return the estimated seconds of a portable kernel for a node."""
    name = op_name(node)
    if name in _VIEW_OPERATORS:
        return 0.0
    count = _MULTIPLY_ADDS.get(name)
    moved = sum([sizes[source] for source in node.all_input_nodes]) + sizes[node]
    return _DISPATCH + _BYTE * moved + (_MULTIPLY_ADD * count(node) if count is not None else 0.0)


# Nanoseconds per element of the largest input or result, for portable kernels that do not stream. Rounded from timings
# of 128 Ki float32 elements on one busy core: right within a factor of two. All other kernels count as streams.
_SLOW_KERNELS = {
    "aten.sort.default": 15, "aten.sort.stable": 15, "aten.argsort.default": 17, "aten.topk.default": 35,
    "aten.median.dim": 23, "aten.kthvalue.default": 14, "aten.cummax.default": 13, "aten.cumsum.default": 4,
    "aten.cumprod.default": 6, "aten.logcumsumexp.default": 48, "aten.erfinv.default": 11, "aten.erfc.default": 12,
    "aten.lgamma.default": 40, "aten.digamma.default": 35, "aten.i0.default": 140, "aten.fmod.Tensor": 8,
    "aten.div.Tensor_mode": 40, "aten.bucketize.Tensor": 50, "aten.searchsorted.Tensor": 50,
    "aten.grid_sampler_2d.default": 140,
}  # fmt: skip


def one_core_seconds(node: Node, portable: bool) -> float:
    """Return the estimated seconds of a node on one CPU core, by a portable kernel or inside a partition."""
    if isinstance(node.target, HigherOrderOperator):
        return 0.0
    slow = _SLOW_KERNELS.get(op_name(node), 0) if portable else 0
    most = max(elements(t) for n in (node, *node.all_input_nodes) for t in tensors(n)) if slow else 0
    return kernel_seconds(node, Sizes()) + slow * 1e-9 * most


def call_seconds(crossing: int) -> float:
    """Return the estimated seconds of a delegate's call without its work, for so many bytes in and out."""
    return _CALL + _BYTE * crossing


def work(node: Node) -> int:
    """Return the estimated operations of a node: 2 per multiply-add, else 1 per element read or written.

    Views have none. Neither has control flow, since the nodes of its graphs are counted.
    """
    name = op_name(node)
    if name in _VIEW_OPERATORS or isinstance(node.target, HigherOrderOperator):
        return 0
    count = _MULTIPLY_ADDS.get(name)
    if count is not None:
        return 2 * count(node)
    read = sum(elements(t) for source in node.all_input_nodes for t in tensors(source))
    return read + sum(elements(t) for t in tensors(node))


def _convolution(node: Node) -> int:
    """Return the multiply-adds of a convolution: one filter per element of the result (transposed: of the input)."""
    args = arguments(node)
    weight = tensor(args["weight"])
    moved = tensor(args["input"]) if args.get("transposed") or "transpose" in op_name(node) else tensor(node)
    return elements(moved) * math.prod(size(s) for s in weight.shape[1:])


def _attention(node: Node) -> int:
    """Return the multiply-adds of attention on query (..., L, E), key (..., S, E) and value (..., S, V)."""
    args = arguments(node)
    query, key, value = (tensor(args[name]) for name in ("query", "key", "value"))
    rows = elements(query) // max(size(query.shape[-1]), 1)
    return rows * size(key.shape[-2]) * (size(query.shape[-1]) + size(value.shape[-1]))


def _product(argument: str, node: Node) -> int:
    """Return the multiply-adds of a matrix product over the last dimension of one argument."""
    left = tensor(arguments(node)[argument])
    return elements(tensor(node)) * (size(left.shape[-1]) if left.shape else 1)


_MULTIPLY_ADDS: dict[str, Callable[[Node], int]] = {
    "aten.convolution.default": _convolution,
    "aten.conv1d.default": _convolution,
    "aten.conv2d.default": _convolution,
    "aten.conv3d.default": _convolution,
    "aten.conv_transpose2d.input": _convolution,
    "aten.linear.default": partial(_product, "input"),
    "aten.mm.default": partial(_product, "self"),
    "aten.bmm.default": partial(_product, "self"),
    "aten.matmul.default": partial(_product, "self"),
    "aten.addmm.default": partial(_product, "mat1"),
    "aten.baddbmm.default": partial(_product, "batch1"),
    "aten.scaled_dot_product_attention.default": _attention,
}
