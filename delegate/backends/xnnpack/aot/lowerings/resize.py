"""Lowerings of operators that change the spatial size: padding, upsampling, pixel shuffle."""

from __future__ import annotations

from torch.fx import Node

from delegate.backend.lowering import every
from delegate.backend.resizing import NEAREST, factors_of, nearest_pixels
from delegate.backends.xnnpack.aot import layout
from delegate.backends.xnnpack.aot.builder import RegionBuilder
from delegate.backends.xnnpack.aot.layout import NHWC, Order
from delegate.backends.xnnpack.aot.lowerings.gather_scatter import evenly_repeated, gather, pieces
from delegate.backends.xnnpack.aot.lowerings.indexing import MAX_PIECES, pad_zeros, take
from delegate.backends.xnnpack.aot.lowerings.shape import dynamic_sizes, one_unknown, relabel, repeat_each, source
from delegate.backends.xnnpack.aot.lowerings.table import TABLE, floats, ranks
from delegate.backends.xnnpack.aot.operand import shape_of
from delegate.edge.node import arguments
from delegate.verdict import YES, Reason, Verdict, no

Widths = dict[int, tuple[int, int]]  # dimension -> elements before and after

# -- padding -----------------------------------------------------------------------------------------------------------


def _widths(node: Node) -> Widths:
    """Return the widths of each padded dimension; torch lists them from the last dimension."""
    flat, rank = arguments(node)["pad"], len(shape_of(node))
    widths = {rank - 1 - i: (flat[2 * i], flat[2 * i + 1]) for i in range(len(flat) // 2)}
    return {d: w for d, w in widths.items() if w != (0, 0)}


def _paddable(node: Node) -> Verdict:
    """It pads with zeros, by widths known now; a dimension that is cut is of a size known now."""
    if arguments(node).get("value"):
        return no(Reason.ATTRIBUTE, "padding other than with zeros")
    sizes = shape_of(source(node))
    if any(type(w) is not int for w in arguments(node)["pad"]):
        return no(Reason.DYNAMIC_SHAPE, "the widths of the padding are known only at run time")
    for d, widths in _widths(node).items():
        if min(widths) < 0 and type(sizes[d]) is not int:
            return no(Reason.DYNAMIC_SHAPE, f"a negative width at a dimension of {sizes[d]} elements")
    return YES


@TABLE.lowers("aten.constant_pad_nd.default", check=every(floats, _paddable))
def lower_pad(builder: RegionBuilder, node: Node) -> None:
    """Lower to a PAD; negative widths are slices."""
    x, widths = builder.operand(source(node)), _widths(node)
    for d, (before, after) in widths.items():
        if min(before, after) < 0:
            size = x.shape[d]
            start, end = max(-before, 0), size + min(after, 0)
            x = take(builder, x, d, (start, end), end - start)
    builder.set(node, pad_zeros(builder, x, {d: (max(a, 0), max(b, 0)) for d, (a, b) in widths.items()}))


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


def _copies(node: Node) -> Verdict:
    """Sizes are known now, and no dimension needs many slices."""
    sizes = (*shape_of(source(node))[2:], *shape_of(node)[2:])
    if dynamic_sizes(sizes) or dynamic_sizes(shape_of(node)) > 1:
        return no(Reason.DYNAMIC_SHAPE, f"sizes {[str(s) for s in sizes]}")
    count = max(pieces(i.tolist()) for i in nearest_pixels(node))
    if count > MAX_PIECES:
        return no(
            Reason.SLOWER,
            f"nearest-neighbour resizing in {count} slices along one dimension, and XNNPACK has no operator for it",
        )
    return YES


@TABLE.lowers(*_NEAREST, check=every(floats, ranks(4), _copies), keep=True)
def lower_nearest(builder: RegionBuilder, node: Node) -> None:
    """Lower to slices of rows and columns, then repeat these by a product with ones."""
    x = builder.operand(source(node))
    repeats = {}
    for dim, pixels in enumerate(nearest_pixels(node), start=2):
        indices = pixels.tolist()
        times = evenly_repeated(indices)
        x = gather(builder, x, dim, indices[::times])
        repeats[dim] = times
    builder.set(node, repeat_each(builder, x, repeats, inner=True))


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
