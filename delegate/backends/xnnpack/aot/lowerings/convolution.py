"""Convolutions: 1d and 2d, grouped, depthwise, dilated and transposed. Weights are rearranged ahead of time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
from ai_edge_litert.schema_py_generated import Padding
from torch.fx import Node

from delegate.backend.lowering import every
from delegate.backend.qdq import Coded
from delegate.backends.xnnpack.aot.builder import RegionBuilder
from delegate.backends.xnnpack.aot.layout import NHWC, NWC, Size
from delegate.backends.xnnpack.aot.lowerings.elementwise import binary
from delegate.backends.xnnpack.aot.lowerings.indexing import pad_zeros as pad_dimensions
from delegate.backends.xnnpack.aot.lowerings.table import TABLE, constant, floats, ranks
from delegate.backends.xnnpack.aot.operand import Operand, example, shape_of
from delegate.backends.xnnpack.aot.tflite import Array
from delegate.edge.node import tensor
from delegate.verdict import YES, Reason, Verdict, no

Pairs = Sequence[Sequence[int]]  # per spatial dimension (before, after)

_TAPS = 25  # of the largest depthwise kernel that XNNPACK unrolls; in larger kernels, each tap costs tenfold


def to_2d(builder: RegionBuilder, x: Operand) -> Operand:
    """Return a value [N, C, L] or [N, C, H, W] as [N, C, 1, L] or [N, C, H, W], in NHWC."""
    if x.rank == 4:
        return builder.reorder(x, NHWC)
    n, c, length = x.shape
    return builder.view(builder.reorder(x, NWC), (n, c, 1, length), NHWC)


def from_2d(builder: RegionBuilder, y: Operand, rank: int) -> Operand:
    """Undo `to_2d`."""
    if rank == 4:
        return y
    n, c, _, length = y.shape
    return builder.view(y, (n, c, length), NWC)


def pad_zeros(builder: RegionBuilder, x: Operand, pairs: Pairs) -> Operand:
    """Pad the spatial dimensions of a value in NHWC with zeros. XNNPACK folds this into a following convolution."""
    widths = {d: (max(0, before), max(0, after)) for d, (before, after) in enumerate(pairs, start=2)}
    return pad_dimensions(builder, x, widths)


def crop(builder: RegionBuilder, x: Operand, pairs: Pairs) -> Operand:
    """Remove the rows and columns of a value in NHWC that negative padding excludes."""
    if not np.any(np.array(pairs) < 0):
        return x
    cut = [(max(0, -before), max(0, -after)) for before, after in pairs]
    ranges = {d + 2: (before, -after or None) for d, (before, after) in enumerate(cut)}
    sizes = [s - before - after for s, (before, after) in zip(x.shape[2:], cut, strict=True)]
    return builder.slice(x, ranges, (*x.shape[:2], *sizes))


def spatial(values: Any, dims: int, first: int) -> list[int]:
    """Return a spatial attribute for height and width. With one spatial dimension, the height gets `first`.

    >>> spatial([3], 1, 0), spatial(3, 2, 0), spatial([2, 3], 2, 0)
    ([0, 3], [3, 3], [2, 3])
    """
    values = [values] if isinstance(values, int) else list(values)
    values = values * dims if len(values) == 1 else values
    return values if dims == 2 else [first, *values]


def _sizes(node: Node) -> Verdict:
    """Channels, and of a transposed one height and width, are known now; padding is not negative.
    A transposed one has neither groups nor dilation.
    """
    x, weight = tensor(cast(Node, node.args[0])), tensor(cast(Node, node.args[1]))
    if not isinstance(x.shape[1], int):
        return no(
            Reason.DYNAMIC_SHAPE, "the number of channels is dynamic, but XNNPACK packs weights for a fixed number"
        )
    if any(p < 0 for p in cast(Any, node.args[4])):
        return no(Reason.ATTRIBUTE, f"padding {node.args[4]} is negative")
    if node.args[6] and (node.args[8] != 1 or any(d != 1 for d in cast(Any, node.args[5]))):
        return no(Reason.ATTRIBUTE, "a transposed convolution with groups or dilation")
    if node.args[6] and not all(isinstance(s, int) for s in x.shape[2:]):
        return no(Reason.DYNAMIC_SHAPE, "a transposed convolution needs a fixed height and width")
    if x.dim() - 2 != weight.dim() - 2:
        return no(Reason.RANK, f"the input has {x.dim()} dimensions and the weight {weight.dim()}")
    return YES


@TABLE.lowers(
    "aten.convolution.default",
    check=every(floats, ranks(3, 4), constant((1, "weight"), (2, "bias")), _sizes),
)
def convolution(builder: RegionBuilder, node: Node) -> None:
    """Lower to CONV_2D, DEPTHWISE_CONV_2D or TRANSPOSE_CONV."""
    x_node, weight_node, bias_node, stride, padding, dilation, transposed, _, groups = cast(Any, node.args)
    x = builder.operand(x_node)
    weight = builder.weights(weight_node)
    weight = weight if weight.ndim == 4 else weight[:, :, None]
    channels = weight.shape[1 if transposed else 0]
    bias = builder.array(bias_node) if bias_node is not None else np.zeros(channels, np.float32)
    shape = shape_of(node)
    shape = shape if len(shape) == 4 else (*shape[:2], 1, shape[2])
    dims = x.rank - 2
    stride, padding, dilation = spatial(stride, dims, 1), spatial(padding, dims, 0), spatial(dilation, dims, 1)
    layer = _Layer(to_2d(builder, x), weight, bias, shape, stride, [(p, p) for p in padding], dilation)
    y = _emit_transposed(builder, layer) if transposed else _emit_forward(builder, layer, groups)
    builder.set(node, from_2d(builder, y, x.rank))


class _Layer(NamedTuple):
    """A convolution in two dimensions of a value in NHWC; `kernels` are in the order that the function requires."""

    x: Operand
    kernels: Array | Coded
    bias: Array
    shape: Sequence[Size]
    stride: list[int]
    pairs: Pairs
    dilation: list[int]


def _emit_forward(builder: RegionBuilder, layer: _Layer, groups: int) -> Operand:
    """Emit a convolution, of kernels [outputs, inputs of a group, H, W]."""
    outputs, per_group, *_ = layer.kernels.shape
    if per_group > 1 or groups == 1:
        return _emit_windows(builder, "CONV_2D", layer._replace(kernels=layer.kernels.transpose(0, 2, 3, 1)))
    layer, multiplier = layer._replace(kernels=layer.kernels.transpose(1, 2, 3, 0)), outputs // groups
    if multiplier == 1:
        return _emit_depthwise(builder, layer)
    return _emit_windows(builder, "DEPTHWISE_CONV_2D", layer, multiplier)


def _emit_windows(builder: RegionBuilder, name: str, layer: _Layer, multiplier: int | None = None) -> Operand:
    """Emit a CONV_2D, or with a multiplier a DEPTHWISE_CONV_2D; kernels are [., H, W, .]."""
    x, kernels, bias, shape, stride, pairs, dilation = layer
    # TFLite's SAME is symmetric padding for stride 1 only; it saves an operator.
    symmetric = [(d * (k - 1) / 2,) * 2 for d, k in zip(dilation, kernels.shape[1:3], strict=True)]
    same = stride == [1, 1] and [tuple(pair) for pair in pairs] == symmetric
    x = x if same else pad_zeros(builder, crop(builder, x, pairs), pairs)
    depthwise = {} if multiplier is None else {"depthMultiplier": multiplier}
    return builder.emit(
        name,
        [x, builder.constant(kernels), builder.bias(bias, x, kernels)],
        shape,
        NHWC,
        "Conv2DOptions" if multiplier is None else "DepthwiseConv2DOptions",
        padding=Padding.SAME if same and np.any(pairs) else Padding.VALID,
        strideH=stride[0],
        strideW=stride[1],
        dilationHFactor=dilation[0],
        dilationWFactor=dilation[1],
        **depthwise,
    )


def _emit_depthwise(builder: RegionBuilder, layer: _Layer) -> Operand:
    """Emit a depthwise convolution, split if its kernel has too many taps.

    A kernel may be split into every third row from the first, the second and the third row on. These parts are
    dilated kernels. With the usual padding, the input is not cropped for them.
    """
    _, kernels, bias, _, _, pairs, dilation = layer
    size = kernels.shape[1:3]
    steps = (1, 1) if isinstance(kernels, Coded) else phases(size)  # sums of parts would be rounded each
    total: Operand | None = None
    for first in itertools.product(*map(range, steps)):
        part = kernels[:, first[0] :: steps[0], first[1] :: steps[1]]
        own = [
            (before - d * f, after - d * (k - 1 - f - s * (n - 1)))
            for (before, after), d, f, k, s, n in zip(pairs, dilation, first, size, steps, part.shape[1:3], strict=True)
        ]
        spread = [d * s for d, s in zip(dilation, steps, strict=True)]
        offset = bias if total is None else np.zeros_like(bias)
        part_layer = layer._replace(kernels=part, bias=offset, pairs=own, dilation=spread)
        y = _emit_windows(builder, "DEPTHWISE_CONV_2D", part_layer, 1)
        total = y if total is None else binary(builder, "ADD", total, y)
    assert total is not None
    return total


def depthwise(
    builder: RegionBuilder, x: Operand, kernels: Array | Coded, shape: Sequence[Size], stride: list[int]
) -> Operand:
    """Emit a depthwise convolution of a value in NHWC with kernels [1, H, W, C], without padding and bias."""
    bias = np.zeros(kernels.shape[3], np.float32)
    return _emit_depthwise(builder, _Layer(x, kernels, bias, shape, stride, [(0, 0), (0, 0)], [1, 1]))


def phases(kernel: Sequence[int]) -> tuple[int, int]:
    """Return steps (rows, columns) that split a kernel into the fewest parts of at most 25 taps.

    XNNPACK does not unroll larger kernels.

    >>> phases((5, 5)), phases((7, 7)), phases((9, 9)), phases((1, 31))
    ((1, 1), (1, 3), (2, 2), (1, 2))
    """
    rows, columns = kernel
    steps = [(a, -(-columns // max(1, _TAPS // -(-rows // a)))) for a in range(1, rows + 1) if -(-rows // a) <= _TAPS]
    return min(steps, key=math.prod)


def _emit_transposed(builder: RegionBuilder, layer: _Layer) -> Operand:
    """Emit a TRANSPOSE_CONV, of kernels [inputs, outputs, H, W].

    If its SAME padding differs from torch's, crop the padding off the full result.
    """
    x, kernel, bias, shape, stride, pairs, _ = layer
    padding = [before for before, _ in pairs]
    out_sizes = cast("list[int]", list(shape[2:]))
    in_sizes = cast("list[int]", list(x.shape[2:]))
    full = [(n - 1) * s + k for n, s, k in zip(in_sizes, stride, kernel.shape[2:], strict=True)]
    same = (
        out_sizes
        == [n * s for n, s in zip(in_sizes, stride, strict=True)]
        == [f - 2 * p for f, p in zip(full, padding, strict=True)]
    )
    if not same:
        # output_padding adds rows beyond the full result: zero rows of the kernel compute them.
        extra = [max(0, p + w - f) for p, w, f in zip(padding, out_sizes, full, strict=True)]
        kernel = _with_zeros(kernel, extra)
        full = [f + e for f, e in zip(full, extra, strict=True)]
    outputs, size = kernel.shape[1], out_sizes if same else full
    y = builder.emit(
        "TRANSPOSE_CONV",
        [
            builder.numbers([example(x.shape[0]), *size, outputs]),
            builder.constant(kernel.transpose(1, 2, 3, 0)),
            x,
            builder.bias(bias, x, kernel),
        ],
        (x.shape[0], outputs, *size),
        NHWC,
        "TransposeConvOptions",
        padding=Padding.SAME if same else Padding.VALID,
        strideH=stride[0],
        strideW=stride[1],
    )
    if size == out_sizes:
        return y
    return builder.slice(y, {d + 2: (p, p + w) for d, (p, w) in enumerate(zip(padding, out_sizes, strict=True))}, shape)


def _with_zeros(kernel: Array | Coded, extra: list[int]) -> Array | Coded:
    """Append rows and columns of zeros to a kernel [., ., H, W]."""
    if not any(extra):
        return kernel
    widths = [(0, 0), (0, 0), (0, extra[0]), (0, extra[1])]
    if isinstance(kernel, Coded):
        return replace(kernel, values=np.pad(kernel.values, widths))
    return np.pad(kernel, widths)
