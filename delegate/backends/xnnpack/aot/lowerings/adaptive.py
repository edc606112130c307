"""Adaptive pooling, whose window sizes follow from the input and result sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from torch.fx import Node

from delegate.backends.lowering import every
from delegate.backends.xnnpack.aot.builder import RegionBuilder
from delegate.backends.xnnpack.aot.layout import NHWC, Size
from delegate.backends.xnnpack.aot.lowerings.indexing import concatenate, take
from delegate.backends.xnnpack.aot.lowerings.nan import propagate_nan_along
from delegate.backends.xnnpack.aot.lowerings.pooling import Windows, average, channels_known, maxima_only
from delegate.backends.xnnpack.aot.lowerings.reduction import reduce
from delegate.backends.xnnpack.aot.lowerings.table import TABLE, floats, ranks
from delegate.backends.xnnpack.aot.operand import Operand, shape_of
from delegate.edge.node import tensors
from delegate.verdict import YES, Reason, Verdict, no

_MAX_PARTS = 32  # windows along one dimension that are computed one by one


def _has_supported_windows(node: Node) -> Verdict:
    """The result is of size 1, or its sizes and those of the input are known now, with few windows where uneven."""
    in_sizes, out_sizes = shape_of(cast(Node, node.args[0]))[2:], tensors(node)[0].shape[2:]
    if all(w == 1 for w in out_sizes):
        return YES
    if not all(isinstance(s, int) for s in (*in_sizes, *out_sizes)):
        return no(Reason.DYNAMIC_SHAPE, "the windows depend on the dynamic height or width")
    if any(g % w and w > _MAX_PARTS for g, w in zip(in_sizes, out_sizes, strict=True)):
        return no(
            Reason.SLOWER, f"{list(in_sizes)} in {list(out_sizes)} uneven windows, which XNNPACK takes one by one"
        )
    return YES


def _pool_windows(
    builder: RegionBuilder, x: Operand, counts: Sequence[Size], reduce_windows: Callable[..., Operand]
) -> Operand:
    """Pool along the height, then along the width.

    `reduce_windows(x, dim)` reduces a dimension to size 1.
    """
    for dim, count in zip((2, 3), counts, strict=True):
        size = x.shape[dim]
        if count == 1:
            x = reduce_windows(x, dim)
            continue
        spans = [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]
        parts = [reduce_windows(take(builder, x, dim, span, span[1] - span[0]), dim) for span in spans]
        x = concatenate(builder, parts, dim)
    return x


@TABLE.lowers(
    "aten._adaptive_avg_pool2d.default", check=every(floats, ranks(4), channels_known, _has_supported_windows)
)
def adaptive_avg_pool(builder: RegionBuilder, node: Node) -> None:
    """Lower to MEAN for one window, AVERAGE_POOL_2D for equal windows, else a MEAN per row and column of windows."""
    x, shape = builder.operand(node.args[0]), shape_of(node)
    in_sizes, out_sizes = list(x.shape[2:]), list(shape[2:])
    if all(w == 1 for w in out_sizes):
        builder.set(node, reduce(builder, "MEAN", x, [2, 3], keepdim=True))
    elif any(g % w for g, w in zip(in_sizes, out_sizes, strict=True)):
        builder.set(
            node, _pool_windows(builder, x, out_sizes, lambda y, dim: reduce(builder, "MEAN", y, [dim], keepdim=True))
        )
    else:
        kernel = [g // w for g, w in zip(in_sizes, out_sizes, strict=True)]
        windows = Windows(kernel, kernel, [0, 0], in_sizes, out_sizes)
        builder.set(node, average(builder, builder.reorder(x, NHWC), windows))


@TABLE.lowers(
    "aten.adaptive_max_pool2d.default",
    check=every(floats, ranks(4), channels_known, _has_supported_windows, maxima_only),
    keep=True,
)
def adaptive_max_pool(builder: RegionBuilder, node: Node) -> None:
    """Lower to a REDUCE_MAX of each row and column of windows."""

    def maxima(x: Operand, dim: int) -> Operand:
        y = reduce(builder, "REDUCE_MAX", x, [dim], keepdim=True)
        return propagate_nan_along(builder, y, x, [dim], keepdim=True)

    out_sizes = tensors(node)[0].shape[2:]
    builder.set(node, _pool_windows(builder, builder.operand(node.args[0]), out_sizes, maxima))
