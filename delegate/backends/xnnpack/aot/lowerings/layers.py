"""Layers: convolutions, whose weights are rearranged ahead of time, and products of matrices.

A product is a FULLY_CONNECTED if the right side is constant, else a BATCH_MATMUL.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
from ai_edge_litert.schema_py_generated import Padding
from torch.fx import Node

from delegate.backend.lowering import every, of_matrices
from delegate.backend.qdq import Coded
from delegate.backends.xnnpack.aot.builder import RegionBuilder
from delegate.backends.xnnpack.aot.layout import NHWC, NWC, Order, Size
from delegate.backends.xnnpack.aot.lowerings.elementwise import binary, emit_broadcast, expand_rank
from delegate.backends.xnnpack.aot.lowerings.indexing import pad_zeros, slice_dims
from delegate.backends.xnnpack.aot.lowerings.table import TABLE, constant, floats, ranks
from delegate.backends.xnnpack.aot.operand import Operand, example, shape_of
from delegate.backends.xnnpack.aot.tflite import Array, TensorQuantization
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


def emit_bias(builder: RegionBuilder, values: Array, x: Operand, weights: Coded | Array) -> Operand:
    """Add a bias per channel; in integers, it is int32 in units of both scales' product."""
    if x.type is None or not isinstance(weights, Coded):
        return builder.constant(values)
    scales = weights.scales.astype(np.float64) * x.type.scale
    codes = np.rint(values.astype(np.float64) / scales).astype(np.int32)
    quantization = TensorQuantization(tuple(scales.astype(np.float32).tolist()), (0,) * len(scales))
    return Operand(builder.model.constant(codes, quantization), values.shape, (0,))


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
    x = x if same else pad_zeros(builder, x, dict(enumerate(pairs, 2)))
    depthwise = {} if multiplier is None else {"depthMultiplier": multiplier}
    return builder.emit(
        name,
        [x, builder.constant(kernels), emit_bias(builder, bias, x, kernels)],
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
            emit_bias(builder, bias, x, kernel),
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
    return slice_dims(
        builder, y, {d + 2: (p, p + w) for d, (p, w) in enumerate(zip(padding, out_sizes, strict=True))}, shape
    )


def _with_zeros(kernel: Array | Coded, extra: list[int]) -> Array | Coded:
    """Append rows and columns of zeros to a kernel [., ., H, W]."""
    if not any(extra):
        return kernel
    widths = [(0, 0), (0, 0), (0, extra[0]), (0, extra[1])]
    if isinstance(kernel, Coded):
        return replace(kernel, values=np.pad(kernel.values, widths))
    return np.pad(kernel, widths)


def fully_connected(
    builder: RegionBuilder, x: Operand, weight: Array | Coded, bias: Array | None, shape: tuple[Size, ...]
) -> Operand:
    """Emit x @ weight.T + bias; weight is [O, I], where leading dimensions of x keep their order."""
    if x.rank == 1:
        row = fully_connected(builder, builder.reshape(x, (1, *x.shape)), weight, bias, (1, *shape))
        return builder.reshape(row, shape)
    last = x.rank - 1
    x = builder.reorder(x, (*(d for d in x.order if d != last), last))
    operands = [x, builder.constant(weight), -1 if bias is None else emit_bias(builder, bias, x, weight)]
    options = {"keepNumDims": True}
    if builder.quantizes_at_run_time(x, weight):
        options["asymmetricQuantizeInputs"] = True
    return builder.emit("FULLY_CONNECTED", operands, shape, x.order, "FullyConnectedOptions", **options)


def matrix_product(builder: RegionBuilder, a: Node, b: Node, shape: tuple[Size, ...]) -> Operand:
    """Emit a @ b, of at least two dimensions each; batch dimensions broadcast."""
    if builder.is_constant(b) and builder.array(b).ndim == 2:
        return fully_connected(builder, builder.operand(a), builder.weights(b).T, None, shape)
    return batch_matmul(builder, builder.operand(a), builder.operand(b), shape)


def batch_matmul(builder: RegionBuilder, a: Operand, b: Operand, shape: tuple[Size, ...]) -> Operand:
    """Emit a @ b, without a transpose if BATCH_MATMUL supports the order of the factors.

    (a @ b) is also (b.T @ a.T).T, so if both are stored transposed, the factors are swapped and the result is
    transposed.
    """
    rank = len(shape)
    batch = _batch_order(a, b, rank)
    a, b = _lead(builder, a, batch, rank), _lead(builder, b, batch, rank)
    a_transposed, b_transposed = _is_transposed(a), _is_transposed(b)
    if a_transposed and b_transposed:
        order = (*batch, rank - 1, rank - 2)
        return builder.emit("BATCH_MATMUL", [b, a], shape, order, "BatchMatMulOptions", adjX=False, adjY=False)
    a = builder.reorder(a, _order(batch, a.rank, rank, transposed=False))
    order = (*batch, rank - 2, rank - 1)
    return builder.emit("BATCH_MATMUL", [a, b], shape, order, "BatchMatMulOptions", adjX=False, adjY=b_transposed)


def _batch_order(a: Operand, b: Operand, rank: int) -> Order:
    """Return the order of batch dimensions in the larger factor of full rank."""
    full = [x for x in (a, b) if x.rank == rank]
    largest = max(full, key=lambda x: math.prod(example(s) for s in x.shape))
    return tuple(d for d in largest.order if d < rank - 2)


def _is_transposed(x: Operand) -> bool:
    return x.axis(-1) < x.axis(-2)


def _order(batch: Order, own: int, rank: int, transposed: bool) -> Order:
    """Return the order for a factor of rank `own`: batch dimensions as in `batch`, then its matrix."""
    leading = tuple(d - (rank - own) for d in batch if d >= rank - own)
    return (*leading, own - 1, own - 2) if transposed else (*leading, own - 2, own - 1)


def _lead(builder: RegionBuilder, x: Operand, batch: Order, rank: int) -> Operand:
    """Reorder a factor to have its batch dimensions first, and expand it to `rank`; its matrix keeps its order."""
    x = builder.reorder(x, _order(batch, x.rank, rank, _is_transposed(x)))
    if x.rank < rank and x.rank > 2:
        x = expand_rank(builder, x, rank, (*batch, *(d + rank - x.rank for d in x.order[-2:])))
    return x


def _linear(node: Node) -> Verdict:
    """The weight has two dimensions."""
    rank = tensor(cast(Node, node.args[1])).dim()
    return YES if rank == 2 else no(Reason.RANK, f"the weight has {rank} dimensions, not 2")


@TABLE.lowers("aten.linear.default", check=every(floats, _linear), keep=True)
def linear(builder: RegionBuilder, node: Node) -> None:
    """Lower to x @ weight.T + bias."""
    x, weight, bias = cast(Any, (*node.args, None))[:3]
    shape = shape_of(node)
    if builder.is_constant(weight) and (bias is None or builder.is_constant(bias)):
        numbers = None if bias is None else builder.array(bias)
        builder.set(node, fully_connected(builder, builder.operand(x), builder.weights(weight), numbers, shape))
        return
    left, right = builder.operand(x), builder.operand(weight)
    transposed = replace(right, shape=right.shape[::-1], order=tuple(1 - d for d in right.order))
    flat = left if left.rank > 1 else builder.reshape(left, (1, *left.shape))
    y = batch_matmul(builder, flat, transposed, (*flat.shape[:-1], shape[-1]))
    y = y if left.rank > 1 else builder.reshape(y, shape)
    builder.set(node, y if bias is None else emit_broadcast(builder, node, "ADD", (y, bias)))


@TABLE.lowers("aten.mm.default", "aten.bmm.default", check=floats)
@TABLE.lowers("aten.matmul.default", check=every(floats, of_matrices), keep=True)
def matmul(builder: RegionBuilder, node: Node) -> None:
    """Lower to a product of matrices."""
    a, b = cast("tuple[Node, Node]", node.args[:2])
    builder.set(node, matrix_product(builder, a, b, shape_of(node)))


@TABLE.lowers("aten.addmm.default", check=floats)
def addmm(builder: RegionBuilder, node: Node) -> None:
    """Lower to beta * c + alpha * (a @ b)."""
    c, a, b = cast("tuple[Node, Node, Node]", node.args[:3])
    beta, alpha = (float(cast(Any, node.kwargs.get(name, 1))) for name in ("beta", "alpha"))
    shape = shape_of(node)
    if builder.is_constant(b) and builder.is_constant(c):
        bias = np.asarray(builder.array(c) * np.float32(beta))
        if bias.ndim < 2 or bias.shape[0] == 1:
            weight = builder.array(b).T * np.float32(alpha)
            row = np.ascontiguousarray(np.broadcast_to(bias.reshape(-1), (weight.shape[0],)))
            builder.set(node, fully_connected(builder, builder.operand(a), weight, row, shape))
            return
    y = matrix_product(builder, a, b, shape)
    y = y if alpha == 1 else binary(builder, "MUL", y, alpha)
    if beta == 0:
        builder.set(node, y)
        return
    term: Any = c if beta == 1 else _scale(builder, c, beta)
    builder.set(node, emit_broadcast(builder, node, "ADD", (y, term)))


def _scale(builder: RegionBuilder, c: Node, beta: float) -> Operand:
    if builder.is_constant(c):
        return builder.constant(builder.array(c) * np.float32(beta))
    return binary(builder, "MUL", builder.operand(c), beta)
