"""Pools over windows of a given size, and over as many windows as the result has elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Node

from delegate.backend.lowering import every, first_result_only
from delegate.edge.node import arguments, tensor
from delegate.verdict import YES, Reason, Verdict, no
from delegate_onnxruntime.onnx.aot.translations.row import (
    constant,
    floating,
    floating_inputs,
    ints,
    multiply_by_weights,
    ops,
    row,
    static,
    take,
)

Sizes = Sequence[int]

# With fewer channels, ONNX Runtime averages windows without vector instructions: 8 times as long as a convolution of
# each channel takes for 3 channels and windows of 7 x 7 (1.31.1, a CPU with AVX-512).
_LANES = 16


def _known_windows(node: Node) -> Verdict:
    """With ceil_mode or divisor_override, the sizes of the image are known before it runs."""
    args, source = arguments(node), node.all_input_nodes[0]
    plain = not args["ceil_mode"] and args.get("divisor_override") is None
    return YES if plain or _are_known(source, len(args["kernel_size"])) else _refuse_unknown(source)


def _dense(node: Node) -> Verdict:
    """With ceil_mode, the operator has no dilation."""
    args = arguments(node)
    if not args["ceil_mode"] or all(d == 1 for d in args["dilation"]):
        return YES
    return no(Reason.ATTRIBUTE, f"ceil_mode=True with dilation={list(args['dilation'])}")


def _known_sizes(node: Node) -> Verdict:
    """The sizes of the image are known before it runs, unless it becomes one pixel."""
    sizes, source = arguments(node)["output_size"], node.all_input_nodes[0]
    return YES if all(w == 1 for w in sizes) or _are_known(source, len(sizes)) else _refuse_unknown(source)


def _are_known(source: Node, count: int) -> bool:
    return all(isinstance(s, int) for s in tensor(source).shape[-count:])


def _refuse_unknown(source: Node) -> Verdict:
    return no(Reason.DYNAMIC_SHAPE, f"{source.name} has sizes that depend on the inputs")


def _has_batch(node: Node) -> Verdict:
    """The operand has a batch dimension."""
    source, args = node.all_input_nodes[0], arguments(node)
    rank, window = tensor(source).dim(), args["kernel_size" if "kernel_size" in args else "output_size"]
    return (
        YES
        if rank == len(window) + 2
        else no(Reason.RANK, f"{source.name} has {rank} dimensions, without a batch dimension")
    )


def _even_windows(node: Node) -> Verdict:
    """The input divides evenly into the windows."""
    new = arguments(node)["output_size"]
    old = tensor(node.all_input_nodes[0]).shape[-len(new) :]
    if all(size == 1 for size in new):
        return YES
    if all(isinstance(s, int) and s % size == 0 for s, size in zip(old, new, strict=True)):
        return YES
    return no(Reason.ATTRIBUTE, f"output_size={list(new)} does not divide {list(old)}")


def average(
    x: Any,
    kernel_size: Sizes,
    stride: Sizes = (),
    padding: Sizes = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    *,
    summed: bool = False,
) -> Any:
    """Return ONNX's average pool; if a window exceeds the image, pad first, because providers differ there.

    The pool then divides by the size of the window, and a constant corrects this to torch's divisor. `summed`: the pool
    is a convolution of each channel by equal weights, which also pads, where integers in disjoint windows stay a pool.
    The windows of few channels are summed by a convolution too, and then divided as torch does.
    """
    op, rank = ops(), len(kernel_size)
    stride, padding = _each(stride or kernel_size, rank), _each(padding, rank)
    extra = _extra(x, kernel_size, stride, padding, (1,) * rank, ceil_mode)
    window = {"kernel_shape": list(kernel_size), "strides": stride}
    is_plain = divisor_override is None and not any(extra)
    is_narrow = not summed and rank == 2 and _is_narrow(x)
    are_disjoint = not any(padding) and all(s >= k for s, k in zip(stride, kernel_size, strict=True))
    if is_plain and not is_narrow and (not summed or (are_disjoint and _is_decoded(x))):
        return op.AveragePool(x, **window, pads=[*padding, *padding], count_include_pad=int(count_include_pad))
    pool: Callable[..., torch.Tensor] = {2: F.avg_pool2d, 3: F.avg_pool3d}[rank]
    ones = torch.ones(1, 1, *x.shape[-rank:])
    options = (kernel_size, stride, padding, ceil_mode, count_include_pad)
    means, counts = pool(ones, *options, divisor_override), pool(ones, *options, 1)
    after = [p + e for p, e in zip(padding, extra, strict=True)]
    if is_narrow:
        divisors = (counts / means).round()
        first = divisors[..., :1, :1]
        divisors = first if bool((divisors == first).all()) else divisors
        return op.Div(_sum_of_windows(x, window, [*padding, *after], 1.0), constant(divisors, x))
    if summed:
        mean = _sum_of_windows(x, window, [*padding, *after], 1 / math.prod(kernel_size))
    else:
        mean = op.AveragePool(op.Pad(x, ints([0, 0, *padding, 0, 0, *after])), **window)
    factors = means / counts * math.prod(kernel_size)
    return mean if torch.allclose(factors, torch.ones(())) else op.Mul(mean, constant(factors, x))


def _is_decoded(x: Any) -> bool:
    """Return true if a value comes from ONNX's DequantizeLinear: then the pool may run in integers."""
    node = x.producer()
    return node is not None and node.op_type == "DequantizeLinear"


def _is_narrow(x: Any) -> bool:
    """Return true if a value has few channels of images in float32, of known sizes, and comes from no integers."""
    sizes = x.shape[1:]
    is_known = all(isinstance(size, int) for size in sizes)
    return is_known and sizes[0] < _LANES and x.dtype.name == "FLOAT" and not _is_decoded(x)


def _sum_of_windows(x: Any, window: Mapping[str, list[int]], pads: Sequence[int], weight: float) -> Any:
    """Return the weighted sums of windows, as a convolution of each channel; the padding has zeros."""
    weights = torch.full((x.shape[1], 1, *window["kernel_shape"]), weight)
    return ops().Conv(x, constant(weights, x), group=x.shape[1], pads=list(pads) or None, **window)


def maximum(
    x: Any,
    kernel_size: Sizes,
    stride: Sizes = (),
    padding: Sizes = (0,),
    dilation: Sizes = (1,),
    ceil_mode: bool = False,
    *,
    gathers_padding: bool = False,
) -> Any:
    """Return ONNX's maximum pool; if a window exceeds the image, repeat the last pixels.

    `gathers_padding`: if a window of an even size is padded, repeat the pixels at the edges, too.
    """
    op, rank = ops(), len(kernel_size)
    stride, padding, dilation = (_each(v, rank) for v in (stride or kernel_size, padding, dilation))
    extra = _extra(x, kernel_size, stride, padding, dilation, ceil_mode)
    window = {"kernel_shape": list(kernel_size), "strides": stride, "dilations": dilation}
    before = [0] * rank
    if gathers_padding and any(p and k % 2 == 0 for p, k in zip(padding, kernel_size, strict=True)):
        before, extra, padding = padding, [e + p for e, p in zip(extra, padding, strict=True)], before
    first = len(x.shape) - rank
    for axis, (size, front, after) in enumerate(zip(x.shape[first:], before, extra, strict=True), start=first):
        x = take(x, axis, torch.arange(-front, size + after).clamp(0, size - 1)) if front or after else x
    return (op.MaxPool(x, **window, pads=[*padding, *padding])[0],)


def _each(values: Sizes, rank: int) -> list[int]:
    return list(values) * rank if len(values) == 1 else list(values)


def _extra(x: Any, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, ceil_mode: bool) -> list[int]:
    """Return, per dimension, by how many pixels the last window exceeds the padded image.

    No window starts after the image.
    """
    if not ceil_mode:
        return [0] * len(kernel)
    extra = []
    for size, k, s, p, d in zip(x.shape[-len(kernel) :], kernel, stride, padding, dilation, strict=True):
        reach = d * (k - 1) + 1
        last = -(-(size + 2 * p - reach) // s) * s
        last -= s if last >= size + p else 0
        extra.append(max(last + reach - (size + 2 * p), 0))
    return extra


def adaptive_average(x: Any, output_size: Sizes, *, summed: bool = False) -> Any:
    """Return an average pool of adjacent windows; if windows overlap, a product with the weights of each row.

    `summed`: as in `average`.
    """
    op, rank, count = ops(), len(x.shape), len(output_size)
    if all(size == 1 for size in output_size):
        return op.GlobalAveragePool(x)
    sizes = x.shape[-count:]
    if all(s % target == 0 for s, target in zip(sizes, output_size, strict=True)):
        windows = _windows(x, output_size)
        if count == 2:
            return average(x, windows, windows, summed=summed)
        window = {"kernel_shape": windows, "strides": windows}
        if summed and not _is_decoded(x):
            return _sum_of_windows(x, window, (), 1 / math.prod(windows))
        return op.AveragePool(x, **window)
    shape, result = list(x.shape), x
    for axis, target in zip(range(rank - count, rank), output_size, strict=True):
        weights = F.adaptive_avg_pool1d(torch.eye(shape[axis]), target)
        result = multiply_by_weights(result, axis, weights.t(), shape, x)
        shape[axis] = target
    return result


def adaptive_maximum(x: Any, output_size: Sizes) -> Any:
    """Return a maximum pool of adjacent windows."""
    op, count = ops(), len(output_size)
    if all(size == 1 for size in output_size):
        return (op.ReduceMax(x, ints(list(range(-count, 0)))),)
    windows = _windows(x, output_size)
    return (op.MaxPool(x, kernel_shape=windows, strides=windows)[0],)


def _windows(x: Any, output_size: Sizes) -> list[int]:
    return [s // size for s, size in zip(x.shape[-len(output_size) :], output_size, strict=True)]


_AVERAGE = every(floating, _has_batch, _known_windows)
_MAXIMUM = every(floating_inputs, first_result_only, _has_batch, _known_windows, _dense)
_ADAPTIVE = every(floating, _has_batch, _known_sizes)

ROWS = (
    *(
        entry
        for n in (2, 3)
        for entry in (
            row(
                f"aten.avg_pool{n}d.default", ("AveragePool", "AveragePool(padded)", "Pad", "Mul"), _AVERAGE,
                translate=average,
            ),
            row(
                f"aten.avg_pool{n}d.default", ("Conv", "Mul"), every(_AVERAGE, static),
                translate=partial(average, summed=True),
            ),
        )
    ),
    *(
        entry
        for n in (2, 3)
        for entry in (
            row(
                f"aten.max_pool{n}d_with_indices.default", ("MaxPool", "MaxPool(padded)", "Gather"), _MAXIMUM,
                translate=maximum,
            ),
            row(
                f"aten.max_pool{n}d_with_indices.default", ("MaxPool", "Gather"), every(_MAXIMUM, static),
                translate=partial(maximum, gathers_padding=True),
            ),
        )
    ),
    *(
        row(
            f"aten.{name}.default", ("GlobalAveragePool", pool, "MatMul", "Reshape"), _ADAPTIVE,
            keep=not name.startswith("_"), translate=partial(adaptive_average, summed=pool == "Conv"),
        )
        for name in (
            "adaptive_avg_pool2d", "_adaptive_avg_pool2d", "adaptive_avg_pool3d", "_adaptive_avg_pool3d",
            "adaptive_avg_pool1d",
        )
        for pool in ("AveragePool", "Conv")
    ),
    *(
        row(
            f"aten.adaptive_max_pool{n}d.default", ("ReduceMax", "MaxPool"),
            every(floating_inputs, first_result_only, _has_batch, _even_windows), translate=adaptive_maximum,
        )
        for n in (2, 3)
    ),
)  # fmt: skip
