"""Gathers by constant indices, such as rolls and flips, writes to known positions, and changes of the spatial size.

A write is an exact concatenation of written parts and of unchanged parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import cast

import torch
from torch.fx import Node

from delegate.backend.aot import RegionRefused
from delegate.backend.lowering import every, with_dimensions
from delegate.backend.resizing import NEAREST, factors_of, nearest_pixels
from delegate.backends.xnnpack.aot import layout
from delegate.backends.xnnpack.aot.builder import RegionBuilder
from delegate.backends.xnnpack.aot.layout import NHWC, Order
from delegate.backends.xnnpack.aot.lowerings.indexing import (
    MAX_PIECES,
    Run,
    concatenate,
    pad_zeros,
    resize_dim,
    take,
    take_every,
)
from delegate.backends.xnnpack.aot.lowerings.shape import (
    dynamic_sizes,
    one_unknown,
    relabel,
    repeat_each,
    source,
    without,
)
from delegate.backends.xnnpack.aot.lowerings.table import MAX_RANK, TABLE, floats, floats_beside, ranks
from delegate.backends.xnnpack.aot.operand import Operand, shape_of
from delegate.edge.node import arguments, is_constant
from delegate.verdict import YES, Reason, Verdict, no

# -- constant indices --------------------------------------------------------------------------------------------------


def runs(indices: Sequence[int]) -> list[Run]:
    """Split indices into runs of a constant step of at least 0.

    >>> runs([4, 5, 6, 2, 2, 1])
    [(4, 3, 1), (2, 2, 0), (1, 1, 1)]
    """
    result: list[Run] = []
    i = 0
    while i < len(indices):
        step = indices[i + 1] - indices[i] if i + 1 < len(indices) else 1
        end = i + 1
        while end < len(indices) and indices[end] - indices[end - 1] == step:
            end += 1
        if step < 0 or (step > 1 and end - i < 3):
            step, end = 1, i + 1
        result.append((indices[i], end - i, step))
        i = end
    return result


def evenly_repeated(indices: Sequence[int]) -> int:
    """Return how many times each index is repeated in a row, if this is the same for all; else 1.

    >>> evenly_repeated([0, 0, 3, 3, 1, 1])
    2
    """
    times = next((i for i, index in enumerate(indices) if index != indices[0]), len(indices))
    same = len(indices) % times == 0 and all(indices[i] == indices[i - i % times] for i in range(len(indices)))
    return times if same else 1


def pieces(indices: Sequence[int]) -> int:
    """Return the approximate number of operators in a gather of these indices."""
    return len(runs(indices[:: evenly_repeated(indices)]))


def gather(builder: RegionBuilder, x: Operand, dim: int, indices: Sequence[int]) -> Operand:
    """Emit the elements of a dimension at constant, non-negative indices: slices, repetitions and a concatenation."""
    times = evenly_repeated(indices)
    parts = [piece(builder, x, dim, run) for run in runs(indices[::times])]
    gathered = concatenate(builder, parts, dim)
    return repeat_each(builder, gathered, {dim: times}, inner=True)


def piece(builder: RegionBuilder, x: Operand, dim: int, run: Run) -> Operand:
    """Emit the elements of a dimension at a run of indices."""
    start, count, step = run
    if step:
        return take_every(builder, x, dim, run)
    return repeat_each(builder, take(builder, x, dim, (start, start + 1), 1), {dim: count}, inner=False)


def _index(node: Node) -> list[tuple[int, Node]]:
    """Return the indexed dimensions, each with its indices."""
    named = arguments(node)
    if "dim" in named:
        return [(named["dim"] % len(shape_of(source(node))), named["index"])]
    return [(d, index) for d, index in enumerate(named["indices"]) if index is not None]


def _below_max_rank(node: Node) -> Verdict:
    """There are 5 dimensions at most, since the lowering needs one more."""
    rank = max(len(shape_of(node)), len(shape_of(source(node))))
    return YES if rank < MAX_RANK else no(Reason.RANK, f"{rank} dimensions, and the lowering needs one more")


def _gatherable(node: Node) -> Verdict:
    """One dimension, of a size known now, is indexed by constants."""
    if len(_index(node)) != 1:
        return no(Reason.ATTRIBUTE, "several dimensions are indexed, and XNNPACK has no gather")
    ((dim, index),) = _index(node)
    if not is_constant(index):
        return no(Reason.NON_CONSTANT, f"the indices {index.name} are computed at run time, and XNNPACK has no gather")
    size = shape_of(source(node))[dim]
    return YES if type(size) is int else no(Reason.DYNAMIC_SHAPE, f"the indexed dimension has {size} elements")


@TABLE.lowers(
    "aten.index.Tensor",
    "aten.index_select.default",
    check=every(with_dimensions, floats_beside(torch.int32, torch.int64), _below_max_rank, _gatherable, one_unknown),
)
def lower_index(builder: RegionBuilder, node: Node) -> None:
    """Lower to slices and a concatenation; raise RegionRefused if there are too many."""
    x, ((dim, index),) = builder.operand(source(node)), _index(node)
    positions = [int(i) % cast(int, x.shape[dim]) for i in builder.array(index).reshape(-1)]
    if pieces(positions) > MAX_PIECES:
        raise RegionRefused({node.name: f"its indices form {pieces(positions)} runs, and XNNPACK has no gather"})
    builder.set(node, builder.reshape(gather(builder, x, dim, positions), shape_of(node)))


def _flippable(node: Node) -> Verdict:
    """Flipped dimensions are short, of sizes known now."""
    sizes = shape_of(source(node))
    for dim in arguments(node)["dims"]:
        if type(sizes[dim]) is not int:
            return no(Reason.DYNAMIC_SHAPE, f"dimension {dim} has {sizes[dim]} elements")
        if sizes[dim] > MAX_PIECES:
            return no(Reason.SLOWER, f"XNNPACK flips element by element, and dimension {dim} has {sizes[dim]} elements")
    return YES


@TABLE.lowers("aten.flip.default", check=every(floats, with_dimensions, _flippable))
def lower_flip(builder: RegionBuilder, node: Node) -> None:
    """Lower to slices of one element and a concatenation."""
    x = builder.operand(source(node))
    for dim in arguments(node)["dims"]:
        x = gather(builder, x, dim % x.rank, range(x.shape[dim])[::-1])
    builder.set(node, x)


def interleave(size: int, places: Sequence[int]) -> list[tuple[bool, Run]]:
    """Split a dimension whose `places` are written into runs, each (is_written, run).

    >>> interleave(5, [1, 2])
    [(False, (0, 1, 1)), (True, (0, 2, 1)), (False, (3, 2, 1))]
    """
    at = {place: i for i, place in enumerate(places)}
    segments: list[tuple[bool, Run]] = []
    for written, positions in groupby(range(size), key=at.__contains__):
        segments += [(written, run) for run in runs([at[p] if written else p for p in positions])]
    return segments


def overwrite(builder: RegionBuilder, x: Operand, values: Operand, dim: int, places: Sequence[int]) -> Operand:
    """Emit x with the elements at `places` of a dimension replaced by `values`, which has the same order."""
    segments = interleave(cast(int, x.shape[dim]), places)
    return concatenate(builder, [piece(builder, values if written else x, dim, run) for written, run in segments], dim)


# -- slices ------------------------------------------------------------------------------------------------------------


def _dim(node: Node) -> int:
    return cast(int, arguments(node)["dim"]) % len(shape_of(node))


def _places(node: Node) -> range:
    """Return the positions that a slice or a selection writes, in a dimension of a size known now."""
    named, size = arguments(node), cast(int, shape_of(node)[_dim(node)])
    if "index" in named:
        return range(named["index"] % size, named["index"] % size + 1)
    return range(*slice(named["start"], named["end"], named["step"]).indices(size))


def _has_known_places(node: Node) -> Verdict:
    """The written places are few, and known now."""
    named, size = arguments(node), shape_of(node)[_dim(node)]
    if any(type(v) is not int for v in (size, *(named.get(k) or 0 for k in ("start", "end", "step", "index")))):
        return no(
            Reason.DYNAMIC_SHAPE, f"the written positions in a dimension of {size} elements are known only at run time"
        )
    count = len(interleave(size, _places(node)))
    if count > MAX_PIECES:
        return no(Reason.SLOWER, f"XNNPACK would concatenate {count} parts")
    return YES


_WRITABLE = every(with_dimensions, floats, _below_max_rank, one_unknown, _has_known_places)


@TABLE.lowers("aten.slice_scatter.default", check=_WRITABLE)
def lower_slice_scatter(builder: RegionBuilder, node: Node) -> None:
    """Lower to a concatenation of the written values and of slices of the unchanged elements."""
    x = builder.operand(source(node))
    values = builder.operand(arguments(node)["src"], x.order)
    builder.set(node, overwrite(builder, x, values, _dim(node), _places(node)))


@TABLE.lowers("aten.select_scatter.default", check=_WRITABLE, keep=True)
def lower_select_scatter(builder: RegionBuilder, node: Node) -> None:
    """Lower to a concatenation of the written values and of slices of the unchanged elements."""
    x, dim = builder.operand(source(node)), _dim(node)
    values = builder.operand(arguments(node)["src"], without(x.order, [dim]))
    one = builder.view(values, resize_dim(x.shape, dim, 1), x.order)
    builder.set(node, overwrite(builder, x, one, dim, _places(node)))


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
    builder.set(node, pad_zeros(builder, builder.operand(source(node)), _widths(node)))


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
