"""Adaptive pooling: windows whose sizes follow from the sizes of the input and of the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from torch.fx import Node

from delegate.backends.lowering import every
from delegate.backends.xnnpack.builder import RegionBuilder
from delegate.backends.xnnpack.layout import NHWC, Size
from delegate.backends.xnnpack.lowerings.indexing import concatenate, take
from delegate.backends.xnnpack.lowerings.nan import kept_along
from delegate.backends.xnnpack.lowerings.pooling import Windows, averaged, channels_known, maxima_alone
from delegate.backends.xnnpack.lowerings.reduction import reduce
from delegate.backends.xnnpack.lowerings.table import TABLE, floats, ranks
from delegate.backends.xnnpack.operand import Operand, shape_of
from delegate.edge.node import tensors
from delegate.verdict import YES, Reason, Verdict, no

_MAX_PARTS = 32  # windows along one dimension that are taken one by one


def _adaptive(node: Node) -> Verdict:
    """The result is of size 1, or its sizes and those of the input are known now, with few windows where uneven."""
    given, wanted = shape_of(cast(Node, node.args[0]))[2:], tensors(node)[0].shape[2:]
    if all(w == 1 for w in wanted):
        return YES
    if not all(isinstance(s, int) for s in (*given, *wanted)):
        return no(Reason.DYNAMIC_SHAPE, "the windows depend on the dynamic height or width")
    if any(g % w and w > _MAX_PARTS for g, w in zip(given, wanted, strict=True)):
        return no(Reason.SLOWER, f"{list(given)} in {list(wanted)} uneven windows, which XNNPACK takes one by one")
    return YES


def _adapted(builder: RegionBuilder, x: Operand, wanted: Sequence[Size], over: Callable[..., Operand]) -> Operand:
    """Windows of height, then of width: `over(x, dim)` is what becomes of a dimension, which is kept with size 1."""
    for dim, count in zip((2, 3), wanted, strict=True):
        size = x.shape[dim]
        if count == 1:
            x = over(x, dim)
            continue
        spans = [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]
        parts = [over(take(builder, x, dim, span, span[1] - span[0]), dim) for span in spans]
        x = concatenate(builder, parts, dim)
    return x


@TABLE.lowers("aten._adaptive_avg_pool2d.default", check=every(floats, ranks(4), channels_known, _adaptive))
def adaptive_avg_pool(builder: RegionBuilder, node: Node) -> None:
    """MEAN to one element, AVERAGE_POOL_2D with equal windows, else a MEAN of each row and column of windows."""
    x, shape = builder.operand(node.args[0]), shape_of(node)
    given, wanted = list(x.shape[2:]), list(shape[2:])
    if all(w == 1 for w in wanted):
        builder.set(node, reduce(builder, "MEAN", x, [2, 3], keepdim=True))
    elif any(g % w for g, w in zip(given, wanted, strict=True)):
        builder.set(node, _adapted(builder, x, wanted, lambda y, dim: reduce(builder, "MEAN", y, [dim], keepdim=True)))
    else:
        kernel = [g // w for g, w in zip(given, wanted, strict=True)]
        windows = Windows(kernel, kernel, [0, 0], given, wanted)
        builder.set(node, averaged(builder, builder.reorder(x, NHWC), windows))


@TABLE.lowers(
    "aten.adaptive_max_pool2d.default",
    check=every(floats, ranks(4), channels_known, _adaptive, maxima_alone),
    keep=True,
)
def adaptive_max_pool(builder: RegionBuilder, node: Node) -> None:
    """REDUCE_MAX of each row and column of windows."""

    def maxima(x: Operand, dim: int) -> Operand:
        y = reduce(builder, "REDUCE_MAX", x, [dim], keepdim=True)
        return kept_along(builder, y, x, [dim], keepdim=True)

    wanted = tensors(node)[0].shape[2:]
    builder.set(node, _adapted(builder, builder.operand(node.args[0]), wanted, maxima))
