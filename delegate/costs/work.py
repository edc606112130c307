"""The operations of a node: multiply-adds, elements and bytes; and the operators that only change layouts."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from torch.fx import Node

from delegate.edge.node import arguments, elements, nbytes, op_name, size, tensor, tensors
from delegate.edge.torch_private import HigherOrderOperator

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


def multiply_adds(node: Node) -> int | None:
    """Return the multiply-adds of a product, a convolution or attention; None for other operators."""
    count = _MULTIPLY_ADDS.get(op_name(node))
    return None if count is None else count(node)


def work(node: Node) -> int:
    """Return the estimated operations of a node: 2 per multiply-add, else 1 per element read or written.

    Views have none, and neither has control flow, since the nodes of its graphs are counted.
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


def _recurrent(node: Node) -> int:
    """Return the multiply-adds of a recurrent layer: each weight once for each step and sequence."""
    args = arguments(node)
    steps = elements(tensor(args["input"])) // max(size(tensor(args["input"]).shape[-1]), 1)
    return steps * sum(elements(tensor(weight)) for weight in args["params"])


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
    **{f"aten.{name}.input": _recurrent for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")},
}
