"""Lowerings of operators that change the spatial size: padding, upsampling, pixel shuffle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from torch.fx import Node

from delegate.backend.lowering import every
from delegate.backend.resizing import NEAREST, factors_of, nearest_pixels, quotient
from delegate.backends.xnnpack.aot import layout
from delegate.backends.xnnpack.aot.builder import RegionBuilder
from delegate.backends.xnnpack.aot.layout import NHWC, Order
from delegate.backends.xnnpack.aot.lowerings.gather_scatter import MAX_PIECES, evenly_repeated, gather, pieces
from delegate.backends.xnnpack.aot.lowerings.indexing import concatenate, pad_zeros, take
from delegate.backends.xnnpack.aot.lowerings.shape import dynamic_sizes, one_unknown, relabel, repeat_each, source
from delegate.backends.xnnpack.aot.lowerings.table import TABLE, floats, ranks
from delegate.backends.xnnpack.aot.operand import Operand, shape_of
from delegate.edge.node import arguments
from delegate.verdict import YES, Reason, Verdict, no

Widths = dict[int, tuple[int, int]]  # dimension -> elements before and after

# -- padding -----------------------------------------------------------------------------------------------------------


def _widths(node: Node) -> Widths:
    """Return the widths of each padded dimension; torch lists them from the last dimension."""
    flat, rank = arguments(node)["pad"], len(shape_of(node))
    widths = {rank - 1 - i: (flat[2 * i], flat[2 * i + 1]) for i in range(len(flat) // 2)}
    return {d: w for d, w in widths.items() if w != (0, 0)}


def _value(node: Node) -> float:
    return float(arguments(node).get("value") or 0)


def _paddable(node: Node) -> Verdict:
    """Widths are known now; other than with zeros, dimensions are of sizes known now."""
    sizes = shape_of(source(node))
    if any(type(w) is not int for w in arguments(node)["pad"]):
        return no(Reason.DYNAMIC_SHAPE, "the widths of the padding are known only at run time")
    dynamic = [d for d in _widths(node) if type(sizes[d]) is not int]
    if dynamic and (_value(node) or any(min(_widths(node)[d]) < 0 for d in dynamic)):
        return no(Reason.DYNAMIC_SHAPE, f"padding other than with zeros of a dimension of {sizes[dynamic[0]]} elements")
    return YES


@TABLE.lowers("aten.constant_pad_nd.default", check=every(floats, _paddable))
def lower_pad(builder: RegionBuilder, node: Node) -> None:
    """Lower to a PAD with zeros, and a sum with the value on the border; negative widths are slices."""
    x, widths = builder.operand(source(node)), _widths(node)
    for d, (before, after) in widths.items():
        if min(before, after) < 0:
            size = x.shape[d]
            start, end = max(-before, 0), size + min(after, 0)
            x = take(builder, x, d, (start, end), end - start)
    grown = {d: (max(a, 0), max(b, 0)) for d, (a, b) in widths.items()}
    padded = pad_zeros(builder, x, grown)
    if _value(node) and padded is not x:
        border = _border(padded, grown, _value(node))
        padded = builder.emit(
            "ADD", [padded, builder.constant(border, padded.order)], padded.shape, padded.order, "AddOptions"
        )
    builder.set(node, padded)


def _border(x: Operand, widths: Widths, value: float) -> Any:
    """Return an array of zeros inside and `value` on the border; its size is 1 along dimensions that are not padded."""
    border = np.full([x.shape[d] if d in widths else 1 for d in range(x.rank)], value, np.float32)
    inner = [slice(widths[d][0], s - widths[d][1]) if d in widths else slice(None) for d, s in enumerate(border.shape)]
    border[tuple(inner)] = 0
    return border


# -- upsampling --------------------------------------------------------------------------------------------------------


def _interpolable(node: Node) -> Verdict:
    """Sizes are known now, and a given scale is their ratio."""
    sizes, out_sizes = shape_of(source(node))[2:], shape_of(node)[2:]
    if dynamic_sizes((*sizes, *out_sizes)):
        return no(Reason.DYNAMIC_SHAPE, f"from {[str(s) for s in sizes]} to {[str(s) for s in out_sizes]}")
    if arguments(node)["align_corners"]:
        return YES
    for size, out, scale in zip(sizes, out_sizes, factors_of(node), strict=True):
        if scale is not None and size * scale != out:
            return no(
                Reason.INACCURATE,
                f"{size} elements times {scale} are not {out}, but XNNPACK interpolates by the ratio of the sizes",
                "pass size or recompute_scale_factor=True",
            )
    return YES


_BILINEAR = ("aten.upsample_bilinear2d.vec", "aten.upsample_bilinear2d.default")


@TABLE.lowers(*_BILINEAR, check=every(floats, ranks(4), _interpolable), keep=True)
def lower_bilinear(builder: RegionBuilder, node: Node) -> None:
    """Lower to one RESIZE_BILINEAR in NHWC."""
    builder.may_lose_infinity()  # a neighbour with the weight 0 is multiplied too
    x, shape = builder.operand(source(node), NHWC), shape_of(node)
    aligned = bool(arguments(node)["align_corners"])
    size = builder.numbers(shape[2:])
    resized = builder.emit(
        "RESIZE_BILINEAR", [x, size], shape, NHWC, "ResizeBilinearOptions",
        alignCorners=aligned, halfPixelCenters=not aligned,
    )  # fmt: skip
    builder.set(node, resized)


_NEAREST = tuple(name for name in NEAREST if "2d" in name)
_LARGEST_BLOCK = 8  # largest number of copies of a pixel in height and in width


def _times(node: Node) -> int | None:
    """Return how often each pixel is copied in height and in width for all sizes; None if it varies."""
    ratios = {quotient(a, b) for a, b in zip(shape_of(node)[2:], shape_of(source(node))[2:], strict=True)}
    times = ratios.pop()
    if ratios or times is None or times > _LARGEST_BLOCK or any(s not in (None, times) for s in factors_of(node)):
        return None
    return times


def _copies(node: Node) -> Verdict:
    """Sizes are known now, and no dimension needs many slices; or height and width grow by one whole factor."""
    sizes = (*shape_of(source(node))[2:], *shape_of(node)[2:])
    if dynamic_sizes(sizes) or dynamic_sizes(shape_of(node)) > 1:
        known = type(shape_of(node)[1]) is int and _times(node) is not None
        return YES if known else no(Reason.DYNAMIC_SHAPE, f"sizes {[str(s) for s in sizes]}")
    count = max(pieces(i.tolist()) for i in nearest_pixels(node))
    if count > MAX_PIECES:
        return no(
            Reason.SLOWER,
            f"nearest-neighbour resizing in {count} slices along one dimension, and XNNPACK has no operator for it",
        )
    return YES


@TABLE.lowers(*_NEAREST, check=every(floats, ranks(4), _copies), keep=True)
def lower_nearest(builder: RegionBuilder, node: Node) -> None:
    """Lower to slices of rows and columns, then repeat these by a product with ones.

    With dynamic sizes, the copies are first channels.
    """
    x = builder.operand(source(node))
    if dynamic_sizes(shape_of(node)[2:]) or dynamic_sizes(shape_of(node)) > 1:
        builder.set(node, _repeat_pixels(builder, builder.reorder(x, NHWC), cast(int, _times(node)), shape_of(node)))
        return
    repeats = {}
    for dim, pixels in enumerate(nearest_pixels(node), start=2):
        indices = pixels.tolist()
        times = evenly_repeated(indices)
        x = gather(builder, x, dim, indices[::times])
        repeats[dim] = times
    builder.set(node, repeat_each(builder, x, repeats, inner=True))


def _repeat_pixels(builder: RegionBuilder, x: Operand, times: int, shape: Sequence[Any]) -> Operand:
    """Emit a block of copies for every pixel, in NHWC."""
    for _ in range(2):
        x = concatenate(builder, [x] * times, 1)
    return builder.emit("DEPTH_TO_SPACE", [x], shape, NHWC, "DepthToSpaceOptions", blockSize=times)


# -- pixel shuffle -----------------------------------------------------------------------------------------------------


def _choose_order(node: Node) -> Order:
    """Return row-major for an output of the region, else NHWC, which convolutions need."""
    leaves = all(user.op == "output" for user in node.users)
    return layout.row_major(4) if leaves else NHWC


@TABLE.lowers("aten.pixel_shuffle.default", check=every(floats, ranks(4), one_unknown), keep=True)
def lower_pixel_shuffle(builder: RegionBuilder, node: Node) -> None:
    """Lower channels to space: one transpose of six dimensions, directly into the required order."""
    x, r = builder.operand(source(node)), arguments(node)["upscale_factor"]
    n, c, h, w = x.shape
    spread = relabel(builder.reshape(x, (n, c // (r * r), r, r, h, w)), (0, 1, 4, 2, 5, 3))
    order = (0, 2, 3, 4, 5, 1) if _choose_order(node) == NHWC else layout.row_major(6)
    builder.set(node, builder.reshape(builder.reorder(spread, order), shape_of(node)))


@TABLE.lowers("aten.pixel_unshuffle.default", check=every(floats, ranks(4), one_unknown), keep=True)
def lower_pixel_unshuffle(builder: RegionBuilder, node: Node) -> None:
    """Lower space to channels: one transpose of six dimensions."""
    x, r = builder.operand(source(node)), arguments(node)["downscale_factor"]
    n, c, h, w = x.shape
    spread = relabel(builder.reshape(x, (n, c, h // r, r, w // r, r)), (0, 1, 3, 5, 2, 4))
    order = (0, 4, 5, 1, 2, 3) if _choose_order(node) == NHWC else layout.row_major(6)
    builder.set(node, builder.reshape(builder.reorder(spread, order), shape_of(node)))
