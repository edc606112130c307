"""Pooling: maxima and averages, where window sizes of adaptive pooling follow from the sizes of input and result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from ai_edge_litert.schema_py_generated import Padding
from torch.fx import Node

from delegate.backend.lowering import every
from delegate.backends.xnnpack.aot.builder import RegionBuilder
from delegate.backends.xnnpack.aot.layout import NHWC, Size
from delegate.backends.xnnpack.aot.lowerings.indexing import concatenate, pad_zeros, take
from delegate.backends.xnnpack.aot.lowerings.layers import depthwise, spatial
from delegate.backends.xnnpack.aot.lowerings.reduction import reduce
from delegate.backends.xnnpack.aot.lowerings.table import (
    TABLE,
    add_nan,
    arg,
    channels_known,
    clamp_to_one,
    floats,
    propagate_nan_along,
    ranks,
)
from delegate.backends.xnnpack.aot.operand import LOW, Operand, exact, shape_of
from delegate.backends.xnnpack.aot.tflite import Array
from delegate.edge.node import op_name, results_used, tensor, tensors
from delegate.verdict import YES, Reason, Verdict, no

_NEVER_NEGATIVE = ("aten.relu.default", "aten.sigmoid.default", "aten.abs.default", "aten.exp.default")
_MAX_COPIES = 16  # most rows of padding that repeat an edge


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of a pooling node along height and width.

    Args:
        kernel, stride, padding: of the node.
        in_sizes, out_sizes: of its input and of its result.
    """

    kernel: list[int]
    stride: list[int]
    padding: list[int]
    in_sizes: list[Size]
    out_sizes: list[Size]

    @classmethod
    def of(cls, node: Node) -> Windows:
        """Read the windows of a pooling node whose arguments begin with input, kernel, stride, padding."""
        in_sizes, out_sizes = tensor(cast(Node, node.args[0])).shape[2:], tensors(node)[0].shape[2:]
        kernel = spatial(node.args[1], 2, 1)
        stride = spatial(arg(node, 2) or node.args[1], 2, 1)
        return cls(kernel, stride, spatial(arg(node, 3, 0), 2, 0), list(in_sizes), list(out_sizes))

    @property
    def is_static(self) -> bool:
        """Return true if height and width are plain numbers."""
        return all(isinstance(s, int) for s in (*self.in_sizes, *self.out_sizes))

    @property
    def has_gaps(self) -> bool:
        """Return true if there are elements between windows, which XNNPACK's pools do not support."""
        return any(s > k for s, k in zip(self.stride, self.kernel, strict=True))

    def pairs(self) -> list[tuple[int, int]]:
        """Return the padding that windows need, (before, after) per dimension."""
        if not self.is_static:
            return [(p, p) for p in self.padding]
        reach = [(w - 1) * s + k for w, s, k in zip(self.out_sizes, self.stride, self.kernel, strict=True)]
        return [(p, max(0, r - p - g)) for p, r, g in zip(self.padding, reach, self.in_sizes, strict=True)]


def pool(builder: RegionBuilder, name: str, x: Operand, windows: Windows, shape: Sequence[Size]) -> Operand:
    """Emit a pooling operator without padding."""
    return builder.emit(
        name,
        [x],
        (*shape[:2], *windows.out_sizes),
        NHWC,
        "Pool2DOptions",
        padding=Padding.VALID,
        filterHeight=windows.kernel[0],
        filterWidth=windows.kernel[1],
        strideH=windows.stride[0],
        strideW=windows.stride[1],
    )


def _fits(node: Node) -> Verdict:
    """The stride does not exceed the window, or the window has one element."""
    windows = Windows.of(node)
    if windows.has_gaps and windows.kernel != [1, 1]:
        return no(Reason.ATTRIBUTE, f"stride {windows.stride} exceeds the window {windows.kernel}")
    return YES


# -- max ---------------------------------------------------------------------------------------------------------------


def _max(node: Node) -> Verdict:
    """Only the maxima are used; no dilation, narrow padding; with ceil_mode and a stride, sizes known now."""
    if 1 in results_used(node):
        return no(Reason.ATTRIBUTE, "the indices of the maxima are used, but XNNPACK returns only the maxima")
    windows = Windows.of(node)
    if spatial(arg(node, 4, 1), 2, 1) != [1, 1]:
        return no(Reason.ATTRIBUTE, f"dilation {arg(node, 4)} of the window")
    if not windows.is_static and arg(node, 5, False) and windows.stride != [1, 1]:
        return no(
            Reason.DYNAMIC_SHAPE, "with ceil_mode, the extent of the windows depends on the dynamic height or width"
        )
    if sum(map(sum, windows.pairs())) > _MAX_COPIES:
        return no(Reason.ATTRIBUTE, f"padding {windows.padding} is too wide")
    return YES


@TABLE.lowers("aten.max_pool2d_with_indices.default", check=every(floats, ranks(4), channels_known, _fits, _max))
def max_pool2d(builder: RegionBuilder, node: Node) -> None:
    """Lower to MAX_POOL_2D on an input padded with zeros if it is never negative, else with copies of its edges.

    Windows of one element with gaps between them are lowered as averages.
    """
    windows = Windows.of(node)
    source = cast(Node, node.args[0])
    x = builder.operand(source, NHWC)
    if windows.has_gaps:
        builder.set(node, average(builder, x, windows))
        return
    if _never_negative(source) or (x.type is not None and x.type.zero_point == LOW):
        x = pad_zeros(builder, x, dict(enumerate(windows.pairs(), 2)))
    else:
        for dim, (before, after) in zip((2, 3), windows.pairs(), strict=True):  # each such window has the edge already
            first = [take(builder, x, dim, (0, 1), 1)] * before if before else []
            last = [take(builder, x, dim, (-1, None), 1)] * after if after else []
            x = concatenate(builder, [*first, x, *last], dim)
    y = pool(builder, "MAX_POOL_2D", x, windows, x.shape)
    builder.set(node, _with_nan(builder, y, x, windows) if builder.keeps_nan() else y)


def _with_nan(builder: RegionBuilder, y: Operand, x: Operand, windows: Windows) -> Operand:
    """Return y, a pool of x, with NaN where a window has NaN: its sum of clamped elements is NaN."""
    kernel = np.ones((1, *windows.kernel, cast(int, x.shape[1])), np.float32)
    clamped = builder.reorder(clamp_to_one(builder, x), NHWC)
    return add_nan(builder, y, depthwise(builder, clamped, kernel, y.shape, windows.stride))


def _never_negative(node: Node) -> bool:
    name = op_name(node)
    if name in ("aten.hardtanh.default", "aten.clamp.default"):
        low = arg(node, 1, -1)
        return isinstance(low, int | float) and low >= 0
    return name in _NEVER_NEGATIVE


# -- average -----------------------------------------------------------------------------------------------------------


def _average(node: Node) -> Verdict:
    """The divisors of windows at the edge are known now."""
    windows = Windows.of(node)
    ceil, include = arg(node, 4, False), arg(node, 5, True)
    if not windows.is_static and (ceil or (any(windows.padding) and not include)):
        return no(Reason.DYNAMIC_SHAPE, "the divisors of windows at the edge depend on the dynamic height or width")
    return YES


@TABLE.lowers("aten.avg_pool2d.default", check=every(floats, ranks(4), channels_known, _average))
def avg_pool(builder: RegionBuilder, node: Node) -> None:
    """Lower to AVERAGE_POOL_2D on a zero-padded input, times a correction if torch divides by another number."""
    windows = Windows.of(node)
    x = builder.operand(node.args[0], NHWC)
    y = average(builder, pad_zeros(builder, x, dict(enumerate(windows.pairs(), 2))), windows)
    factors = _corrections(node, windows)
    if factors is not None:
        y = builder.emit("MUL", [y, builder.constant(factors)], y.shape, NHWC, "MulOptions")
    builder.set(node, y)


# Elements of a window for which XNNPACK has a function. Other windows are filled up with elements of the weight 0.
_DEPTHWISE_SIZES = frozenset({3, 4, 9, 25})


def average(builder: RegionBuilder, x: Operand, windows: Windows) -> Operand:
    """Emit averages of windows.

    AVERAGE_POOL_2D gives -inf for NaN and supports no gaps between windows, but a depthwise convolution handles both.
    """
    size = windows.kernel[0] * windows.kernel[1]
    kernel = np.full((1, *windows.kernel, cast(int, x.shape[1])), 1 / size, np.float32)
    small = None if builder.result is None else exact(kernel)
    if small is None and not windows.has_gaps and not builder.keeps_nan():
        return pool(builder, "AVERAGE_POOL_2D", x, windows, x.shape)
    if size not in _DEPTHWISE_SIZES:
        builder.may_lose_infinity()
    return depthwise(builder, x, kernel if small is None else small, (*x.shape[:2], *windows.out_sizes), windows.stride)


def _corrections(node: Node, windows: Windows) -> Array | None:
    """Return kernel size over torch's divisor for each window, [H, W, 1]; None if all are 1."""
    kernel_size = windows.kernel[0] * windows.kernel[1]
    override = arg(node, 6)
    if override:
        return np.full((1, 1, 1), kernel_size / override, np.float32)
    if not windows.is_static:
        return None
    rows, columns = (_counts(windows, d, bool(arg(node, 5, True))) for d in (0, 1))
    divisors = np.outer(rows, columns)
    return None if np.all(divisors == kernel_size) else np.asarray(kernel_size / divisors, np.float32)[:, :, None]


def divides_by_kernel(node: Node) -> bool:
    """Return true if an average pool divides every window by the size of its kernel."""
    return _corrections(node, Windows.of(node)) is None


def _counts(windows: Windows, d: int, include_padding: bool) -> Array:
    """Return the number of elements that torch counts in each window along one dimension."""
    padding, size = windows.padding[d], windows.in_sizes[d]
    start = np.arange(windows.out_sizes[d]) * windows.stride[d] - padding
    end = np.minimum(start + windows.kernel[d], size + padding)
    return np.asarray(end - start if include_padding else np.minimum(end, size) - np.maximum(start, 0))


_MAX_PARTS = 32  # windows along one dimension that are computed one by one


def _has_supported_windows(node: Node) -> Verdict:
    """The result is of size 1, or its sizes and the input's sizes are known now, with few windows where uneven."""
    in_sizes, out_sizes = shape_of(cast(Node, node.args[0]))[2:], shape_of(node)[2:]
    if all(w == 1 for w in out_sizes):
        return YES
    if not all(isinstance(s, int) for s in (*in_sizes, *out_sizes)):
        return no(Reason.DYNAMIC_SHAPE, "the windows depend on the dynamic height or width")
    if any(g % w and w > _MAX_PARTS for g, w in zip(in_sizes, out_sizes, strict=True)):
        return no(
            Reason.SLOWER,
            f"{list(out_sizes)} windows of unequal sizes over {list(in_sizes)}, which XNNPACK computes one by one",
        )
    return YES


def _average_parts(builder: RegionBuilder, x: Operand, dim: int, count: int) -> Operand:
    """Emit the means of windows along one dimension, one by one."""
    size = x.shape[dim]
    spans = [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]
    parts = [take(builder, x, dim, span, span[1] - span[0]) for span in spans]
    return concatenate(builder, [reduce(builder, "MEAN", part, [dim], keepdim=True) for part in parts], dim)


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
        builder.set(node, _average_parts(builder, _average_parts(builder, x, 2, out_sizes[0]), 3, out_sizes[1]))
    else:
        kernel = [g // w for g, w in zip(in_sizes, out_sizes, strict=True)]
        windows = Windows(kernel, kernel, [0, 0], in_sizes, out_sizes)
        builder.set(node, average(builder, builder.reorder(x, NHWC), windows))


def _global(node: Node) -> Verdict:
    """The result has one maximum per channel, without its position."""
    if any(size != 1 for size in tensors(node)[0].shape[2:]) or 1 in results_used(node):
        return no(Reason.ATTRIBUTE, "several windows, or indices of the maxima")
    return YES


@TABLE.lowers("aten.adaptive_max_pool2d.default", check=every(floats, ranks(4), _global), keep=True)
def global_max_pool(builder: RegionBuilder, node: Node) -> None:
    """Lower to a REDUCE_MAX."""
    x = builder.operand(node.args[0])
    y = reduce(builder, "REDUCE_MAX", x, [2, 3], keepdim=True)
    builder.set(node, propagate_nan_along(builder, y, x, [2, 3], keepdim=True))
