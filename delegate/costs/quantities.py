"""What the seconds of a node depend on: its kind, its units of work, and the bytes that it moves."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch.fx import Node

from delegate.costs.kinds import (
    ATTENTION,
    AVERAGE,
    BY_RESULT,
    BY_ROW,
    CONVOLUTION,
    COPY,
    DEPTHWISE,
    PERMUTE,
    POINTWISE,
    RESIZE,
    SORT,
    TRANSPOSED,
    VIEW,
    VOLUME,
    WIDE_DEPTHWISE,
    WINDOW,
    kind_of,
    on_kernels,
)
from delegate.costs.work import multiply_adds
from delegate.edge.node import arguments, is_compute, is_constant, op_name, size, tensor, tensors
from delegate.edge.torch_private import HigherOrderOperator

_WORD = 4  # bytes of the numbers whose operations a rate counts; those of float64 take twice the time
_CACHE = 2**20  # bytes of a cache that is fast; only what a node moves beyond them costs by bytes
_NARROW = 25  # elements of a window for which libraries have a depthwise convolution of their own
_LANES = 16  # channels that vector instructions compute at once: with fewer, much of their work is thrown away
_EXPONENTIAL = 96  # multiply-adds that one exponential of attention takes as long as
# A word in the name of a resize -> the elements that it reads for one of its result.
_TAPS = {"nearest": 1, "trilinear": 8, "bilinear": 4, "linear": 2, "bicubic": 16}


class Quantities(NamedTuple):
    """What the seconds of a node depend on; see `Rate`.

    Args:
        kind: see `delegate.costs.kinds`.
        units: multiply-adds; or elements, times how often each is worked on.
        nbytes: the bytes that a product or a resize moves; those that another operator moves beyond a fast cache; or
            the rows of one that works row by row.
        on_kernels: how many times as long as others of its kind it takes on the portable kernels.
    """

    kind: str
    units: float
    nbytes: int
    on_kernels: float = 1.0


FREE = Quantities(VIEW, 0, 0)


def quantities_of(node: Node, nbytes: Callable[[Node], int]) -> Quantities:
    """Return what the seconds of a node depend on.

    Args:
        node: A node of an edge graph.
        nbytes: returns the bytes of a node's results.
    """
    if not is_compute(node) or isinstance(node.target, HigherOrderOperator):
        return FREE
    kind = kind_of(op_name(node))
    if kind == VIEW or (kind in (COPY, PERMUTE) and all(map(is_constant, node.all_input_nodes))):
        return FREE  # copies of weights are made when the program is loaded
    own, sources = nbytes(node), [nbytes(source) for source in node.all_input_nodes]
    if "expand" in op_name(node) and [own] == sources:
        return FREE
    moved = own + sum(sources)
    count = multiply_adds(node)
    if count is not None:
        args, units = arguments(node), count * max(tensors(node)[0].element_size() / _WORD, 1)
        if kind == CONVOLUTION:
            kind, units = _convolution(args), units * (1 + _LANES / max(size(tensor(node).shape[1]), 1))
        elif kind == ATTENTION:
            units *= 1 + _EXPONENTIAL / max(sum(size(tensor(args[name]).shape[-1]) for name in ("query", "value")), 1)
        return Quantities(kind, units, moved)
    elements = (own if kind in BY_RESULT else max(own, *sources, 0)) / _WORD
    if kind in (WINDOW, AVERAGE) and "kernel_size" in (args := arguments(node)) and "im" not in op_name(node):
        elements = own / _WORD * math.prod(map(size, args["kernel_size"]))
    elif kind == RESIZE:
        elements *= _taps(node)
    elif kind in BY_ROW:
        return _by_row(kind, node)
    beyond = moved if kind == RESIZE else max(moved - _CACHE, 0)
    return Quantities(kind, elements, beyond, on_kernels(op_name(node)))


def _convolution(args: Mapping[str, Any]) -> str:
    """Return the kind of a convolution: transposed, depthwise, with a kernel of one element, 3-D, or any other."""
    weight, groups = tensor(args["weight"]), args.get("groups", 1)
    if args.get("transposed"):
        return TRANSPOSED
    if isinstance(groups, int) and groups > 1 and size(weight.shape[1]) == 1:
        return DEPTHWISE if math.prod(size(number) for number in weight.shape[2:]) <= _NARROW else WIDE_DEPTHWISE
    if all(size(number) == 1 for number in weight.shape[2:]):
        return POINTWISE
    return VOLUME if weight.dim() == 5 else CONVOLUTION


def _by_row(kind: str, node: Node) -> Quantities:
    """Return the elements and rows of what an operator works on along one dimension."""
    shape, dim = tensors(node.all_input_nodes[0])[0].shape, arguments(node).get("dim", -1)
    length = max(size(shape[dim]), 1) if shape and isinstance(dim, int) else 1
    elements = math.prod(map(size, shape))
    units = elements * (max(math.log2(length), 1) if kind == SORT else 1)
    return Quantities(kind, units, elements // length, on_kernels(op_name(node)))


def _taps(node: Node) -> float:
    """Return how many elements a resize reads for one of its result; antialiased ones read all that they shrink."""
    name = op_name(node)
    taps = next((count for word, count in _TAPS.items() if word in name), 1)
    if "_aa" not in name:
        return taps
    source = tensors(node.all_input_nodes[0])[0]
    return taps * max(math.prod(map(size, source.shape)) / max(math.prod(map(size, tensor(node).shape)), 1), 1)
