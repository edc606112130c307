"""Convolutions: 1d and 2d, grouped, depthwise, dilated, transposed; weights are rearranged ahead of time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from ai_edge_litert.schema_py_generated import Padding
from torch.fx import Node

from delegate.backends.xnnpack.builder import Operand, RegionBuilder, example, shape_of
from delegate.backends.xnnpack.layout import NHWC, NWC, Size
from delegate.backends.xnnpack.lowerings.table import TABLE, constant, every, floats, ranks
from delegate.backends.xnnpack.tflite import Array
from delegate.edge.node import tensor
from delegate.verdict import YES, Reason, Verdict, no

Pairs = Sequence[Sequence[int]]  # per spatial dimension (before, after)


def to_2d(builder: RegionBuilder, x: Operand) -> Operand:
    """A value [N, C, L] or [N, C, H, W] as [N, C, 1, L] or [N, C, H, W], in NHWC."""
    if x.rank == 4:
        return builder.reorder(x, NHWC)
    n, c, length = x.shape
    return builder.view(builder.reorder(x, NWC), (n, c, 1, length), NHWC)


def from_2d(builder: RegionBuilder, y: Operand, rank: int) -> Operand:
    """The inverse of `to_2d`."""
    if rank == 4:
        return y
    n, c, _, length = y.shape
    return builder.view(y, (n, c, length), NWC)


def pad_zeros(builder: RegionBuilder, x: Operand, pairs: Pairs) -> Operand:
    """Zeros around the spatial dimensions of a value in NHWC; XNNPACK folds them into a convolution that follows."""
    if not np.any(pairs):
        return x
    (top, bottom), (left, right) = pairs
    n, c, h, w = x.shape
    paddings = builder.integers([[0, 0], [top, bottom], [left, right], [0, 0]])
    return builder.emit("PAD", [x, paddings], (n, c, h + top + bottom, w + left + right), NHWC, "PadOptions")


def spatial(values: Any, dims: int, first: int) -> list[int]:
    """A spatial attribute for height and width; where there is but one spatial dimension the height gets `first`.

    >>> spatial([3], 1, 0), spatial(3, 2, 0), spatial([2, 3], 2, 0)
    ([0, 3], [3, 3], [2, 3])
    """
    values = [values] if isinstance(values, int) else list(values)
    values = values * dims if len(values) == 1 else values
    return values if dims == 2 else [first, *values]


def _sizes(node: Node) -> Verdict:
    """What the operators of TFLite cannot say."""
    x, weight = tensor(cast(Node, node.args[0])), tensor(cast(Node, node.args[1]))
    if not isinstance(x.shape[1], int):
        return no(Reason.DYNAMIC_SHAPE, "the number of channels is dynamic, and XNNPACK packs weights for a fixed one")
    if any(p < 0 for p in cast(Any, node.args[4])):
        return no(Reason.ATTRIBUTE, f"padding {node.args[4]} is negative")
    if node.args[6] and not all(isinstance(s, int) for s in x.shape[2:]):
        return no(Reason.DYNAMIC_SHAPE, "a transposed convolution needs a fixed height and width")
    if x.dim() - 2 != weight.dim() - 2:
        return no(Reason.RANK, f"input has {x.dim()} dimensions and weight {weight.dim()}")
    return YES


@TABLE.lowers(
    "aten.convolution.default",
    check=every(floats, ranks(3, 4), constant((1, "weight"), (2, "bias")), _sizes),
)
def convolution(builder: RegionBuilder, node: Node) -> None:
    """CONV_2D, DEPTHWISE_CONV_2D or TRANSPOSE_CONV."""
    x_node, weight_node, bias_node, stride, padding, dilation, transposed, _, groups = cast(Any, node.args)
    x = builder.operand(x_node)
    weight = builder.array(weight_node)
    weight = weight if weight.ndim == 4 else weight[:, :, None]
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    bias = builder.array(bias_node) if bias_node is not None else np.zeros(channels, np.float32)
    shape = shape_of(node)
    shape = shape if len(shape) == 4 else (*shape[:2], 1, shape[2])
    image = to_2d(builder, x)
    dims = x.rank - 2
    stride, padding, dilation = spatial(stride, dims, 1), spatial(padding, dims, 0), spatial(dilation, dims, 1)
    if transposed:
        y = _transposed(builder, image, weight, bias, shape, stride, padding, dilation, groups)
    else:
        y = _forward(builder, image, weight, bias, shape, stride, padding, dilation, groups)
    builder.set(node, from_2d(builder, y, x.rank))


def _forward(
    builder: RegionBuilder,
    x: Operand,
    weight: Array,
    bias: Array,
    shape: Sequence[Size],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Operand:
    outputs, per_group, *kernel = weight.shape
    # TFLite's SAME is torch's symmetric padding only for stride 1; there it saves an operator.
    same = stride == [1, 1] and [2 * p for p in padding] == [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    if not same:
        x = pad_zeros(builder, x, [(p, p) for p in padding])
    options = {
        "padding": Padding.SAME if same and any(padding) else Padding.VALID,
        "strideH": stride[0],
        "strideW": stride[1],
        "dilationHFactor": dilation[0],
        "dilationWFactor": dilation[1],
    }
    if per_group == 1 and groups > 1:
        kernels = builder.constant(weight.transpose(1, 2, 3, 0))
        options["depthMultiplier"] = outputs // groups
        return builder.emit(
            "DEPTHWISE_CONV_2D", [x, kernels, builder.constant(bias)], shape, NHWC, "DepthwiseConv2DOptions", **options
        )
    kernels = builder.constant(weight.transpose(0, 2, 3, 1))
    return builder.emit("CONV_2D", [x, kernels, builder.constant(bias)], shape, NHWC, "Conv2DOptions", **options)


def _transposed(
    builder: RegionBuilder,
    x: Operand,
    weight: Array,
    bias: Array,
    shape: Sequence[Size],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Operand:
    """TRANSPOSE_CONV; where its SAME padding is not torch's, the whole result is computed and the padding cut off.

    It has no groups and no dilation: zeros in the weight say both.
    """
    kernel = _dense(weight, dilation, groups)
    wanted = cast("list[int]", list(shape[2:]))
    given = cast("list[int]", list(x.shape[2:]))
    full = [(n - 1) * s + k for n, s, k in zip(given, stride, kernel.shape[2:], strict=True)]
    same = (
        wanted
        == [n * s for n, s in zip(given, stride, strict=True)]
        == [f - 2 * p for f, p in zip(full, padding, strict=True)]
    )
    if not same:
        # Rows that output_padding asks for beyond the whole result: zero rows of the kernel make them.
        extra = [max(0, p + w - f) for p, w, f in zip(padding, wanted, full, strict=True)]
        kernel = np.pad(kernel, [(0, 0), (0, 0), (0, extra[0]), (0, extra[1])])
        full = [f + e for f, e in zip(full, extra, strict=True)]
    outputs, size = kernel.shape[1], wanted if same else full
    y = builder.emit(
        "TRANSPOSE_CONV",
        [
            builder.integers([example(x.shape[0]), *size, outputs]),
            builder.constant(kernel.transpose(1, 2, 3, 0)),
            x,
            builder.constant(bias),
        ],
        (x.shape[0], outputs, *size),
        NHWC,
        "TransposeConvOptions",
        padding=Padding.SAME if same else Padding.VALID,
        strideH=stride[0],
        strideW=stride[1],
    )
    if size == wanted:
        return y
    return builder.slice(y, {d + 2: (p, p + w) for d, (p, w) in enumerate(zip(padding, wanted, strict=True))}, shape)


def _dense(weight: Array, dilation: list[int], groups: int) -> Array:
    """A transposed convolution's weight [I, O / groups, H, W] as [I, O, H', W'] without groups and dilation."""
    inputs, per_group, *kernel = weight.shape
    spread = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    dense = np.zeros((inputs, per_group * groups, *spread), np.float32)
    block = inputs // groups
    for g in range(groups):
        rows, columns = slice(g * block, (g + 1) * block), slice(g * per_group, (g + 1) * per_group)
        dense[rows, columns, :: dilation[0], :: dilation[1]] = weight[rows]
    return dense
