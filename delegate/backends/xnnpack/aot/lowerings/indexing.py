"""Lowerings of slices, selections, splits and concatenation; and of views, which use these for dynamic sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from torch.fx import Node

from delegate.backend.lowering import every
from delegate.backends.xnnpack.aot import layout
from delegate.backends.xnnpack.aot.builder import RegionBuilder
from delegate.backends.xnnpack.aot.layout import Size
from delegate.backends.xnnpack.aot.lowerings.elementwise import common_order
from delegate.backends.xnnpack.aot.lowerings.shape import (
    RESHAPES,
    difference,
    dynamic_sizes,
    infers_one,
    is_expand,
    reshape,
    same_shape,
    source,
    squeeze_by_sum,
    unsqueeze_by_product,
)
from delegate.backends.xnnpack.aot.lowerings.table import MAX_RANK, TABLE, floats
from delegate.backends.xnnpack.aot.operand import Operand, shape_of
from delegate.edge.node import arguments, results_used
from delegate.verdict import YES, Reason, Verdict, no

MAX_PIECES = 64  # slices of one gather along one dimension; more are too slow
_MAX_JOINED = 5  # most inputs of one CONCATENATION in XNNPACK
_MAX_SPLIT = 4  # most outputs of one SPLIT in XNNPACK

Span = tuple[int, int | None]  # start and end; counted from the end if negative; None is the end itself
Run = tuple[int, int, int]  # start, count, step


def resize_dim(shape: Sequence[Size], dim: int, size: Size) -> tuple[Size, ...]:
    """Return a shape with another size of one dimension."""
    return (*shape[:dim], size, *shape[dim + 1 :])


# -- slices ------------------------------------------------------------------------------------------------------------


def slice_dims(
    builder: RegionBuilder, x: Operand, ranges: Mapping[int, tuple[int, int | None]], shape: Sequence[Size]
) -> Operand:
    """Slice a value of at most 5 dimensions, in its order.

    Args:
        x: the value.
        ranges: dimension -> (start, end); start may count from the end, end None is the end itbuilder.
        shape: sizes of the result.
    """
    begin, end, mask = [0] * x.rank, [0] * x.rank, 0
    for axis, dim in enumerate(x.order):
        begin[axis], stop = ranges.get(dim, (0, None))
        end[axis] = stop or 0
        mask |= (stop is None) << axis
    corners = [builder.numbers(v) for v in (begin, end, [1] * x.rank)]
    return builder.emit("STRIDED_SLICE", [x, *corners], shape, x.order, "StridedSliceOptions", endMask=mask)


def take(builder: RegionBuilder, x: Operand, dim: int, span: Span, size: Size) -> Operand:
    """Emit elements start to end of one dimension, in the operand's order; `size` is their number."""
    if span[0] == 0 and str(size) == str(x.shape[dim]):
        return x
    return slice_dims(builder, x, {dim: span}, resize_dim(x.shape, dim, size))


def take_every(builder: RegionBuilder, x: Operand, dim: int, run: Run) -> Operand:
    """Emit elements start, start + step, ... of one dimension.

    XNNPACK has no strides, so the dimension is split into (count, step).
    """
    start, count, step = run
    if step == 1 or count == 1:
        return take(builder, x, dim, (start, start + count), count)
    length = cast(int, x.shape[dim])
    phase = next((p for p in range(step) if p <= start and start - p + count * step <= length), None)
    if phase is None:  # the last group is incomplete: pad it with zeros that are never read
        phase, missing = 0, start + count * step - length
        x = pad_zeros(builder, x, {dim: (0, missing)})
    x = take(builder, x, dim, (start - phase, start - phase + count * step), count * step)
    order = tuple(d + (d > dim) for d in x.order)
    at = order.index(dim)
    groups = builder.view(
        x, (*x.shape[:dim], count, step, *x.shape[dim + 1 :]), (*order[: at + 1], dim + 1, *order[at + 1 :])
    )
    picked = take(builder, groups, dim + 1, (phase, phase + 1), 1)
    return builder.view(picked, resize_dim(x.shape, dim, count), x.order)


def pad_zeros(builder: RegionBuilder, x: Operand, widths: Mapping[int, Sequence[int]]) -> Operand:
    """Pad with zeros before and after, by dimension; negative widths remove elements. XNNPACK folds it into a layer."""
    ranges = {d: (max(-a, 0), min(b, 0) or None) for d, (a, b) in widths.items() if min(a, b) < 0}
    if ranges:
        shape = [s + sum(min(w, 0) for w in widths.get(d, ())) for d, s in enumerate(x.shape)]
        x = slice_dims(builder, x, ranges, shape)
    added = {d: (max(a, 0), max(b, 0)) for d, (a, b) in widths.items()}
    if not any(map(any, added.values())):
        return x
    paddings = builder.numbers([added.get(d, (0, 0)) for d in x.order])
    shape = [s + sum(added.get(d, ())) for d, s in enumerate(x.shape)]
    return builder.emit("PAD", [x, paddings], tuple(shape), x.order, "PadOptions")


def _span(size: Size, out: Size, start: Any) -> Span | None:
    """Return start and end of a slice with step 1 for XNNPACK; None if they are not known ahead of time."""
    if type(start) is not int:
        return None
    if type(size) is int:
        start = max(start + size, 0) if start < 0 else min(start, size)
        return (start, start + out) if type(out) is int else None
    if type(out) is int:
        end = start + out
        return start, (None if start < 0 and end == 0 else end)
    rest = difference(size, out) if start >= 0 else None
    if rest is None or rest < start:
        return None
    return start, (start - rest) or None


def _slice_arguments(node: Node) -> tuple[int, Any, Any]:
    named = arguments(node)
    start = named["start"]
    return named["dim"] % len(shape_of(node)), 0 if start is None else start, named["step"]


def _sliceable(node: Node) -> Verdict:
    """The start and the end of the slice are known now."""
    dim, start, step = _slice_arguments(node)
    sizes, shape = shape_of(source(node)), shape_of(node)
    if step != 1 and type(sizes[dim]) is not int:
        return no(Reason.DYNAMIC_SHAPE, f"step {step} in a dimension of the dynamic size {sizes[dim]}")
    if step != 1 and len(shape) == MAX_RANK:
        return no(
            Reason.RANK,
            f"a slice with step {step} needs one dimension more than its {len(shape)}, above XNNPACK's limit",
        )
    if step != 1:
        return infers_one(node) if dynamic_sizes(shape) > 1 else YES
    if _span(sizes[dim], shape[dim], start) is None:
        return no(
            Reason.DYNAMIC_SHAPE, f"the start or end of the slice of {sizes[dim]} elements is known only at run time"
        )
    return YES


@TABLE.lowers("aten.slice.Tensor", check=every(floats, _sliceable))
def lower_slice(builder: RegionBuilder, node: Node) -> None:
    """Lower to a STRIDED_SLICE; a step becomes a separate dimension."""
    dim, start, step = _slice_arguments(node)
    x, size = builder.operand(source(node)), shape_of(node)[dim]
    if step == 1:
        span = _span(x.shape[dim], size, start)
        assert span is not None
        builder.set(node, take(builder, x, dim, span, size))
    else:
        length = cast(int, x.shape[dim])
        begin = max(start + length, 0) if start < 0 else start
        builder.set(node, take_every(builder, x, dim, (begin, cast(int, size), step)))


def _selectable(node: Node) -> Verdict:
    """The index is known now."""
    if type(arguments(node)["index"]) is not int:
        return no(Reason.DYNAMIC_SHAPE, "the index is known only at run time")
    return YES


@TABLE.lowers("aten.select.int", check=every(floats, _selectable))
def lower_select(builder: RegionBuilder, node: Node) -> None:
    """Lower to a slice of one element, without its dimension."""
    named, x = arguments(node), builder.operand(source(node))
    dim = named["dim"] % x.rank
    span = _span(x.shape[dim], 1, named["index"])
    assert span is not None
    one = take(builder, x, dim, span, 1)
    squeezed = (
        builder.reshape(one, shape_of(node))
        if infers_one(node)
        else squeeze_by_sum(builder, one, shape_of(node), [dim])
    )
    builder.set(node, squeezed)


def _splittable(node: Node) -> Verdict:
    """The sizes of the parts are known now, and none is empty."""
    named = arguments(node)
    parts = [t.shape[named["dim"]] for t in node.meta["val"]]
    if dynamic_sizes(parts):
        return no(Reason.DYNAMIC_SHAPE, f"the sizes of the parts are known only at run time: {[str(s) for s in parts]}")
    if 0 in parts:
        return no(Reason.ATTRIBUTE, f"a part has no elements: {parts}")
    return YES


@TABLE.lowers("aten.split_with_sizes.default", check=every(floats, _splittable))
def lower_split(builder: RegionBuilder, node: Node) -> None:
    """Lower to one SPLIT into 2 to 4 equal parts, else to slices."""
    x = builder.operand(source(node))
    dim = arguments(node)["dim"] % x.rank
    shapes = [tuple(t.shape) for t in node.meta["val"]]
    sizes = [cast(int, s[dim]) for s in shapes]
    if 2 <= len(sizes) <= _MAX_SPLIT and len(set(sizes)) == 1:
        axis = builder.numbers(x.axis(dim))
        parts = builder.emit_many("SPLIT", [axis, x], shapes, x.order, "SplitOptions", numSplits=len(sizes))
    else:
        starts = np.cumsum([0, *sizes]).tolist()
        used = results_used(node)  # XNNPACK removes results that are never read
        parts = [
            take(builder, x, dim, (start, start + size), size) if i in used else x
            for i, (start, size) in enumerate(zip(starts, sizes, strict=False))
        ]
    builder.set(node, *parts)


# -- concatenation -----------------------------------------------------------------------------------------------------


def concatenate(builder: RegionBuilder, parts: Sequence[Operand], dim: int) -> Operand:
    """Concatenate operands of the same order along a dimension, in several steps if they are many."""
    operands = list(parts)
    while len(operands) > 1:
        operands = [
            _join_parts(builder, operands[i : i + _MAX_JOINED], dim) for i in range(0, len(operands), _MAX_JOINED)
        ]
    return operands[0]


def _join_parts(builder: RegionBuilder, parts: Sequence[Operand], dim: int) -> Operand:
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    shape = resize_dim(first.shape, dim, sum(p.shape[dim] for p in parts))
    return builder.emit("CONCATENATION", parts, shape, first.order, "ConcatenationOptions", axis=first.axis(dim))


@TABLE.lowers("aten.cat.default", check=floats)
def lower_cat(builder: RegionBuilder, node: Node) -> None:
    """Lower to a CONCATENATION in the order that most of the elements have."""
    nodes = cast(Sequence[Node], node.args[0])
    shape = shape_of(node)
    dim = arguments(node)["dim"] % len(shape)
    order = common_order(builder, nodes, shape)
    parts = [builder.operand(n, order) for n in nodes]
    lazy = [is_expand(n) and not same_shape(p.shape, shape_of(n)) for n, p in zip(nodes, parts, strict=True)]
    if any(lazy):
        builder.set(node, _overlay(builder, parts, dim, shape))
    else:
        builder.set(node, concatenate(builder, parts, dim))


def _overlay(builder: RegionBuilder, parts: Sequence[Operand], dim: int, shape: tuple[Size, ...]) -> Operand:
    """Concatenate parts of which some are unexpanded.

    The result is the sum of all parts, each padded with zeros, where unexpanded parts broadcast in the sum.
    """
    sizes = [cast(int, p.shape[dim]) for p in parts]
    total: Operand | None = None
    for i, part in enumerate(parts):
        padded = pad_zeros(builder, part, {dim: (sum(sizes[:i]), sum(sizes[i + 1 :]))})
        total = padded if total is None else builder.emit("ADD", [total, padded], shape, padded.order, "AddOptions")
    assert total is not None
    return total


# -- views -------------------------------------------------------------------------------------------------------------

# A RESHAPE infers one size. With several dynamic sizes, static dimensions are split and joined: (batch, length,
# heads * channels) over dynamic batch and length becomes (batch, length, heads, channels) by a slice per head and a
# concatenation, and back.


def _pair_dimensions(old: Sequence[Size], new: Sequence[Size]) -> list[tuple[list[int], list[int]]] | None:
    """Pair old with new dimensions, leaving out size 1.

    Returns None if a dynamic dimension is joined or split, or if the parts are too many.
    """
    pairs = layout.groups(old, new)
    for a, b in pairs or ():
        if len(a) == len(b) == 1:
            continue
        sizes = [*(old[d] for d in a), *(new[d] for d in b)]
        if dynamic_sizes(sizes) or math.prod([old[d] for d in a[:-1]] + [new[d] for d in b[:-1]]) > MAX_PIECES:
            return None
    return pairs


def _viewable(node: Node) -> Verdict:
    """One size at most is not known now; or dynamic sizes stay as they are, and few static ones are split or joined."""
    verdict = infers_one(node)
    if verdict:
        return verdict
    old, new = shape_of(source(node)), shape_of(node)
    if max(len(old), len(new)) < MAX_RANK and _pair_dimensions(old, new) is not None:
        return YES
    return no(Reason.DYNAMIC_SHAPE, f"a view of {_format(old)} as {_format(new)} has more than one size to infer")


def _format(shape: Sequence[Size]) -> str:
    return f"[{', '.join(map(str, shape))}]"


@TABLE.lowers(*RESHAPES, check=every(floats, _viewable))
def lower_view(builder: RegionBuilder, node: Node) -> None:
    """Lower to a RESHAPE, or to splits and joins of dimensions.

    A transpose precedes the RESHAPE only if the memory order does not allow the new shape.
    """
    if infers_one(node):
        reshape(builder, node)
        return
    x, new = builder.operand(source(node)), shape_of(node)
    pairs = _pair_dimensions(x.shape, new)
    assert pairs is not None
    ones = [d for d, size in enumerate(x.shape) if layout.is_one(size)]
    if ones:
        x = squeeze_by_sum(builder, x, tuple(s for s in x.shape if not layout.is_one(s)), ones)
    at = 0
    for old, new_dims in pairs:  # dimensions before `at` are final
        for _ in old[1:]:
            x = _join_dimensions(builder, x, at)
        for d in new_dims[:-1]:
            x = _split_dimension(builder, x, at, new[d])
            at += 1
        at += 1
    for d, size in enumerate(new):
        if layout.is_one(size):
            x = unsqueeze_by_product(builder, x, (*x.shape[:d], 1, *x.shape[d:]), d)
    builder.set(node, x)


def _split_dimension(builder: RegionBuilder, x: Operand, dim: int, count: Size) -> Operand:
    """Split a dimension into (count, rest), where `count` is second in memory, as attention requires."""
    rest, shape = x.shape[dim] // count, x.shape
    unsqueezed = unsqueeze_by_product(builder, x, (*shape[:dim], 1, *shape[dim:]), dim)
    parts = [take(builder, unsqueezed, dim + 1, (i * rest, (i + 1) * rest), rest) for i in range(count)]
    return concatenate(builder, parts, dim)


def _join_dimensions(builder: RegionBuilder, x: Operand, dim: int) -> Operand:
    """Join a dimension and the next one."""
    count, rest = x.shape[dim], x.shape[dim + 1]
    joined = concatenate(builder, [take(builder, x, dim, (i, i + 1), 1) for i in range(count)], dim + 1)
    shape = (*x.shape[:dim], count * rest, *x.shape[dim + 2 :])
    return squeeze_by_sum(builder, joined, shape, [dim])
