"""Lowerings of operators that pick or join elements: slices, splits, concatenation, constant indices and masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch.fx import Node

from delegate.backends.aot import RegionRefused
from delegate.backends.xnnpack.builder import Operand, RegionBuilder, shape_of
from delegate.backends.xnnpack.layout import Size
from delegate.backends.xnnpack.lowerings.shape import (
    difference,
    dynamic_sizes,
    infers_one,
    is_expand,
    repeat_each,
    same_shape,
    source,
)
from delegate.backends.xnnpack.lowerings.table import MAX_RANK, TABLE, every, floats, results_used
from delegate.backends.xnnpack.tflite import Array
from delegate.edge.node import arguments, is_constant, tensor
from delegate.verdict import YES, Reason, Verdict, no

MAX_PIECES = 64  # of one gather along one dimension; more would cost more than they move
_MAX_JOINED = 5  # inputs of one CONCATENATION that XNNPACK takes
_MAX_SPLIT = 4  # outputs of one SPLIT that it takes

Span = tuple[int, int | None]  # start and end; counted from the end if negative; None is the end itself
Run = tuple[int, int, int]  # start, count, step


def sized(shape: Sequence[Size], dim: int, size: Size) -> tuple[Size, ...]:
    """A shape with another size of one dimension."""
    return (*shape[:dim], size, *shape[dim + 1 :])


# -- slices ------------------------------------------------------------------------------------------------------------


def take(builder: RegionBuilder, x: Operand, dim: int, span: Span, size: Size) -> Operand:
    """Elements start to end of one dimension, in the order that the operand has; `size` is how many they are."""
    if span[0] == 0 and str(size) == str(x.shape[dim]):
        return x
    return builder.slice(x, {dim: span}, sized(x.shape, dim, size))


def take_every(builder: RegionBuilder, x: Operand, dim: int, run: Run) -> Operand:
    """Elements start, start + step, ...: XNNPACK takes no strides, so the dimension is split into (count, step)."""
    start, count, step = run
    if step == 1 or count == 1:
        return take(builder, x, dim, (start, start + count), count)
    length = cast(int, x.shape[dim])
    phase = next((p for p in range(step) if p <= start and start - p + count * step <= length), None)
    if phase is None:  # the last group is cut off: fill it up with zeros that nobody reads
        phase, missing = 0, start + count * step - length
        x = pad_zeros(builder, x, {dim: (0, missing)})
    x = take(builder, x, dim, (start - phase, start - phase + count * step), count * step)
    order = tuple(d + (d > dim) for d in x.order)
    at = order.index(dim)
    groups = builder.view(
        x, (*x.shape[:dim], count, step, *x.shape[dim + 1 :]), (*order[: at + 1], dim + 1, *order[at + 1 :])
    )
    picked = take(builder, groups, dim + 1, (phase, phase + 1), 1)
    return builder.view(picked, sized(x.shape, dim, count), x.order)


def pad_zeros(builder: RegionBuilder, x: Operand, widths: dict[int, tuple[int, int]]) -> Operand:
    """Zeros before and after, by dimension; none of the widths is negative."""
    if not any(before or after for before, after in widths.values()):
        return x
    shape = tuple(s + sum(widths.get(d, (0, 0))) for d, s in enumerate(x.shape))
    paddings = builder.integers([widths.get(d, (0, 0)) for d in x.order])
    return builder.emit("PAD", [x, paddings], shape, x.order, "PadOptions")


def _span(size: Size, out: Size, start: Any) -> Span | None:
    """Start and end of a slice of step 1 as XNNPACK takes them; None where they are not known ahead of time."""
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
    given = arguments(node)
    start = given["start"]
    return given["dim"] % len(shape_of(node)), 0 if start is None else start, given["step"]


def _sliceable(node: Node) -> Verdict:
    dim, start, step = _slice_arguments(node)
    given, shape = shape_of(source(node)), shape_of(node)
    if step != 1 and type(given[dim]) is not int:
        return no(Reason.DYNAMIC_SHAPE, f"every {step}. element of a dimension of {given[dim]} elements")
    if step != 1 and len(shape) == MAX_RANK:
        return no(Reason.RANK, f"a slice with step {step} takes one dimension more than the {len(shape)} given")
    if step != 1:
        return infers_one(node) if dynamic_sizes(shape) > 1 else YES
    if _span(given[dim], shape[dim], start) is None:
        return no(
            Reason.DYNAMIC_SHAPE, f"where the slice of {given[dim]} elements begins or ends is known at run time only"
        )
    return YES


@TABLE.lowers("aten.slice.Tensor", check=every(floats, _sliceable))
def lower_slice(builder: RegionBuilder, node: Node) -> None:
    """A STRIDED_SLICE; a step becomes a dimension of its own."""
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
    if type(arguments(node)["index"]) is not int:
        return no(Reason.DYNAMIC_SHAPE, "the index is known at run time only")
    return infers_one(node)


@TABLE.lowers("aten.select.int", check=every(floats, _selectable))
def lower_select(builder: RegionBuilder, node: Node) -> None:
    """A slice of one element, without its dimension."""
    given, x = arguments(node), builder.operand(source(node))
    dim = given["dim"] % x.rank
    span = _span(x.shape[dim], 1, given["index"])
    assert span is not None
    builder.set(node, builder.reshape(take(builder, x, dim, span, 1), shape_of(node)))


def _splittable(node: Node) -> Verdict:
    given = arguments(node)
    parts = [t.shape[given["dim"]] for t in node.meta["val"]]
    if dynamic_sizes(parts):
        return no(Reason.DYNAMIC_SHAPE, f"sizes of the parts are known at run time only: {[str(s) for s in parts]}")
    if 0 in parts:
        return no(Reason.ATTRIBUTE, f"a part has no elements: {parts}")
    return YES


@TABLE.lowers("aten.split_with_sizes.default", "aten.split.Tensor", check=every(floats, _splittable))
def lower_split(builder: RegionBuilder, node: Node) -> None:
    """One SPLIT into 2 to 4 equal parts, else slices."""
    x = builder.operand(source(node))
    dim = arguments(node)["dim"] % x.rank
    shapes = [tuple(t.shape) for t in node.meta["val"]]
    sizes = [cast(int, s[dim]) for s in shapes]
    if 2 <= len(sizes) <= _MAX_SPLIT and len(set(sizes)) == 1:
        axis = builder.integers(x.axis(dim))
        parts = builder.emit_many("SPLIT", [axis, x], shapes, x.order, "SplitOptions", numSplits=len(sizes))
    else:
        starts = np.cumsum([0, *sizes]).tolist()
        used = results_used(node)  # XNNPACK drops what nobody reads
        parts = [
            take(builder, x, dim, (start, start + size), size) if i in used else x
            for i, (start, size) in enumerate(zip(starts, sizes, strict=False))
        ]
    builder.set(node, *parts)


# -- concatenation -----------------------------------------------------------------------------------------------------


def concatenate(builder: RegionBuilder, parts: Sequence[Operand], dim: int) -> Operand:
    """Operands of one order, joined along a dimension; more than XNNPACK takes at once in several steps."""
    found = list(parts)
    while len(found) > 1:
        found = [_join(builder, found[i : i + _MAX_JOINED], dim) for i in range(0, len(found), _MAX_JOINED)]
    return found[0]


def _join(builder: RegionBuilder, parts: Sequence[Operand], dim: int) -> Operand:
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    shape = sized(first.shape, dim, sum(p.shape[dim] for p in parts))
    return builder.emit("CONCATENATION", parts, shape, first.order, "ConcatenationOptions", axis=first.axis(dim))


@TABLE.lowers("aten.cat.default", check=floats)
def lower_cat(builder: RegionBuilder, node: Node) -> None:
    """A CONCATENATION in the order that most of the elements lie in."""
    nodes = cast(Sequence[Node], node.args[0])
    shape = shape_of(node)
    dim = arguments(node)["dim"] % len(shape)
    order = builder.common_order(nodes, len(shape))
    parts = [builder.operand(n, order) for n in nodes]
    lazy = [is_expand(n) and not same_shape(p.shape, shape_of(n)) for n, p in zip(nodes, parts, strict=True)]
    if any(lazy):
        builder.set(node, _overlay(builder, parts, dim, shape))
    else:
        builder.set(node, concatenate(builder, parts, dim))


def _overlay(builder: RegionBuilder, parts: Sequence[Operand], dim: int, shape: tuple[Size, ...]) -> Operand:
    """Joined although some lie unexpanded: a sum of all, each between zeros, in which those broadcast."""
    sizes = [cast(int, p.shape[dim]) for p in parts]
    total: Operand | None = None
    for i, part in enumerate(parts):
        padded = pad_zeros(builder, part, {dim: (sum(sizes[:i]), sum(sizes[i + 1 :]))})
        total = padded if total is None else builder.emit("ADD", [total, padded], shape, padded.order, "AddOptions")
    assert total is not None
    return total


# -- constant indices --------------------------------------------------------------------------------------------------


def runs(indices: Sequence[int]) -> list[Run]:
    """Indices as runs of a constant step that is 0 or more.

    >>> runs([4, 5, 6, 2, 2, 1])
    [(4, 3, 1), (2, 2, 0), (1, 1, 1)]
    """
    found: list[Run] = []
    i = 0
    while i < len(indices):
        step = indices[i + 1] - indices[i] if i + 1 < len(indices) else 1
        end = i + 1
        while end < len(indices) and indices[end] - indices[end - 1] == step:
            end += 1
        if step < 0 or (step > 1 and end - i < 3):
            step, end = 1, i + 1
        found.append((indices[i], end - i, step))
        i = end
    return found


def evenly_repeated(indices: Sequence[int]) -> int:
    """How many times each index stands there in a row, if all stand equally often; else 1.

    >>> evenly_repeated([0, 0, 3, 3, 1, 1])
    2
    """
    times = next((i for i, index in enumerate(indices) if index != indices[0]), len(indices))
    same = len(indices) % times == 0 and all(indices[i] == indices[i - i % times] for i in range(len(indices)))
    return times if same else 1


def pieces(indices: Sequence[int]) -> int:
    """How many operators a gather of these indices takes, about."""
    return len(runs(indices[:: evenly_repeated(indices)]))


def gather(builder: RegionBuilder, x: Operand, dim: int, indices: Sequence[int]) -> Operand:
    """The elements of a dimension at constant, non-negative indices: slices, repetitions and a concatenation."""
    times = evenly_repeated(indices)
    parts = [_piece(builder, x, dim, run) for run in runs(indices[::times])]
    found = concatenate(builder, parts, dim)
    return repeat_each(builder, found, {dim: times}, inner=True)


def _piece(builder: RegionBuilder, x: Operand, dim: int, run: Run) -> Operand:
    start, count, step = run
    if step:
        return take_every(builder, x, dim, run)
    return repeat_each(builder, take(builder, x, dim, (start, start + 1), 1), {dim: count}, inner=False)


def _indices(node: Node) -> list[tuple[int, Node]]:
    """The dimensions that an `index` operator indexes, each with its indices."""
    given = arguments(node)
    if "dim" in given:
        return [(given["dim"] % len(shape_of(source(node))), given["index"])]
    return [(d, index) for d, index in enumerate(given["indices"]) if index is not None]


def _gathered_floats(node: Node) -> Verdict:
    for value in (tensor(source(node)), tensor(node)):
        if value.dtype is not torch.float32:
            kind = str(value.dtype).removeprefix("torch.")
            return no(Reason.DTYPE, f"elements are {kind}, and XNNPACK computes in float32")
        if value.dim() >= MAX_RANK:
            return no(Reason.RANK, f"{value.dim()} dimensions, where picking elements takes one more than given")
    return YES


def _gatherable(node: Node) -> Verdict:
    found, given = _indices(node), shape_of(source(node))
    for dim, index in found:
        if not is_constant(index):
            return no(
                Reason.NON_CONSTANT, f"the indices {index.name} are computed at run time, and XNNPACK has no gather"
            )
        if tensor(index).dtype not in (torch.int32, torch.int64):
            return no(Reason.DTYPE, f"the indices {index.name} are {tensor(index).dtype}".replace("torch.", ""))
        if type(given[dim]) is not int or 0 in tensor(index).shape:
            return no(Reason.DYNAMIC_SHAPE, f"the indexed dimension has {given[dim]} elements")
    dims = [dim for dim, _ in found]
    if not dims or dims != list(range(dims[0], dims[0] + len(dims))) or (len(dims) > 1 and not _outer(found)):
        return no(Reason.ATTRIBUTE, "several indices that do not form a grid, and XNNPACK has no gather")
    return YES if dynamic_sizes(shape_of(node)) <= 1 else no(Reason.DYNAMIC_SHAPE, "more than one dynamic size")


def _outer(found: Sequence[tuple[int, Node]]) -> bool:
    """Whether several indices broadcast to a grid, the first along its first dimension, and so on."""
    for position, (_, index) in enumerate(found):
        shape = list(tensor(index).shape)
        own = len(found) - position
        if len(shape) < own or any(s != 1 for s in [*shape[:-own], *shape[len(shape) - own + 1 :]]):
            return False
        if len(shape) > len(found):
            return False
    return True


@TABLE.lowers("aten.index.Tensor", "aten.index_select.default", check=every(_gathered_floats, _gatherable))
def lower_index(builder: RegionBuilder, node: Node) -> None:
    """Slices and a concatenation for each indexed dimension; RegionRefused where they would be too many."""
    x, found = builder.operand(source(node)), _indices(node)
    for dim, index in found:
        size = cast(int, x.shape[dim])
        wanted = [int(i) % size for i in builder.array(index).reshape(-1)]
        if pieces(wanted) > MAX_PIECES:
            raise RegionRefused({node.name: f"its indices are {pieces(wanted)} runs, and XNNPACK has no gather"})
        x = gather(builder, x, dim, wanted)
    builder.set(node, x if len(found) > 1 else builder.reshape(x, shape_of(node)))


def _flippable(node: Node) -> Verdict:
    given = shape_of(source(node))
    for dim in arguments(node)["dims"]:
        if type(given[dim]) is not int:
            return no(Reason.DYNAMIC_SHAPE, f"dimension {dim} has {given[dim]} elements")
        if given[dim] > MAX_PIECES:
            return no(Reason.SLOWER, f"XNNPACK flips element by element, and dimension {dim} has {given[dim]}")
    return YES


@TABLE.lowers("aten.flip.default", check=every(floats, _flippable))
def lower_flip(builder: RegionBuilder, node: Node) -> None:
    """Slices of one element and a concatenation."""
    x = builder.operand(source(node))
    for dim in arguments(node)["dims"]:
        x = gather(builder, x, dim % x.rank, range(x.shape[dim])[::-1])
    builder.set(node, x)


def _rollable(node: Node) -> Verdict:
    given, shape = arguments(node), shape_of(node)
    if not given["dims"]:
        return infers_one(node) if not dynamic_sizes(shape) else no(Reason.DYNAMIC_SHAPE, "rolled over all dimensions")
    if any(type(shift) is not int for shift in given["shifts"]):
        return no(Reason.DYNAMIC_SHAPE, "the shifts are known at run time only")
    if dynamic_sizes([shape[d] for d in given["dims"]]):
        return no(Reason.DYNAMIC_SHAPE, f"a rolled dimension is known at run time only: {[str(s) for s in shape]}")
    return YES


@TABLE.lowers("aten.roll.default", check=every(floats, _rollable), keep=True)
def lower_roll(builder: RegionBuilder, node: Node) -> None:
    """Two slices and a concatenation for each rolled dimension."""
    given, x = arguments(node), builder.operand(source(node))
    shape, dims = x.shape, given["dims"] or [0]
    if not given["dims"]:
        x = builder.reshape(x, (int(np.prod(shape)),))
    for dim, shift in zip(dims, given["shifts"], strict=True):
        size = cast(int, x.shape[dim])
        first = -shift % size
        x = gather(builder, x, dim % x.rank, [*range(first, size), *range(first)])
    builder.set(node, builder.reshape(x, shape))


# -- constant masks ----------------------------------------------------------------------------------------------------


def _maskable(node: Node) -> Verdict:
    mask, *values = cast(Sequence[Node], node.args)
    if not is_constant(mask):
        return no(Reason.NON_CONSTANT, f"the mask {mask.name} is computed at run time, and XNNPACK has no booleans")
    for value in (node, *values):
        if tensor(value).dtype is not torch.float32:
            return no(
                Reason.DTYPE,
                f"{value.name} is {tensor(value).dtype}, and XNNPACK computes in float32".replace("torch.", ""),
            )
        if tensor(value).dim() > MAX_RANK or 0 in tensor(value).shape:
            return no(Reason.RANK, f"{value.name} has the shape {list(tensor(value).shape)}")
    for value in values:
        if not is_constant(value) and not same_shape(shape_of(value), shape_of(node)):
            return no(
                Reason.ATTRIBUTE, f"{value.name} broadcasts, and its masked form would not have the result's shape"
            )
    return YES


@TABLE.lowers("aten.where.self", check=_maskable)
def lower_where(builder: RegionBuilder, node: Node) -> None:
    """Bounds that leave an element alone or force it to a constant: exact, for infinities too (NaN stays NaN)."""
    mask, x, y = cast(Sequence[Node], node.args)
    chosen = builder.array(mask) != 0
    if builder.is_constant(y):
        builder.set(node, _forced(builder, node, x, chosen, builder.array(y)))
    elif builder.is_constant(x):
        builder.set(node, _forced(builder, node, y, ~chosen, builder.array(x)))
    else:
        zero = np.zeros((), np.float32)
        kept = [_forced(builder, node, x, chosen, zero), _forced(builder, node, y, ~chosen, zero)]
        order = builder.common_order(kept, len(shape_of(node)))
        operands = builder.broadcast(kept, len(shape_of(node)), order)
        builder.set(node, builder.emit("ADD", operands, shape_of(node), order, "AddOptions"))


def _forced(builder: RegionBuilder, node: Node, x: Node, free: Array, value: Array) -> Operand:
    """x where it is free, and `value` elsewhere."""
    if np.isnan(value).any():
        raise RegionRefused({node.name: "it masks with NaN, which bounds cannot force"})
    found, rank = builder.operand(x), len(shape_of(node))
    for name, neutral in (("MAXIMUM", -np.inf), ("MINIMUM", np.inf)):
        bound = np.where(free, np.float32(neutral), value).astype(np.float32)
        if (bound != neutral).any():
            full = builder.constant(bound.reshape((1,) * (rank - bound.ndim) + bound.shape), found.order)
            found = builder.emit(name, [found, full], found.shape, found.order)
    return found
