"""Lowerings of gathers, flips and rolls, and of writes to known positions.

Indices are constant. A write is an exact concatenation of written parts and of unchanged parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import cast

import numpy as np
import torch
from torch.fx import Node

from delegate.backends.aot import RegionRefused
from delegate.backends.lowering import every, with_dimensions
from delegate.backends.xnnpack.aot.builder import RegionBuilder
from delegate.backends.xnnpack.aot.lowerings.indexing import Run, concatenate, sized, take, take_every
from delegate.backends.xnnpack.aot.lowerings.shape import (
    dynamic_sizes,
    infers_one,
    repeat_each,
    repeat_ones,
    source,
    without,
)
from delegate.backends.xnnpack.aot.lowerings.table import FLOATS, MAX_RANK, TABLE, floats
from delegate.backends.xnnpack.aot.operand import Operand, shape_of
from delegate.edge.node import arguments, is_constant, tensor
from delegate.verdict import YES, Reason, Verdict, no

MAX_PIECES = 64  # slices of one gather along one dimension; more are too slow


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
    """Return the approximate number of operators of a gather of these indices."""
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


def _indices(node: Node) -> list[tuple[int, Node]]:
    """Return the dimensions that an `index` operator indexes, each with its indices."""
    named = arguments(node)
    if "dim" in named:
        return [(named["dim"] % len(shape_of(source(node))), named["index"])]
    return [(d, index) for d, index in enumerate(named["indices"]) if index is not None]


def _gathered_floats(node: Node) -> Verdict:
    """Elements are float32, float16 or bfloat16, of 5 dimensions at most."""
    for value in (tensor(source(node)), tensor(node)):
        if value.dtype not in FLOATS:
            kind = str(value.dtype).removeprefix("torch.")
            return no(Reason.DTYPE, f"elements are {kind}, but XNNPACK computes in float32")
        if value.dim() >= MAX_RANK:
            return no(
                Reason.RANK,
                f"{value.dim()} dimensions, and the lowering needs one more, above XNNPACK's limit of {MAX_RANK}",
            )
    return YES


def _gatherable(node: Node) -> Verdict:
    """Indices are constants that form a grid, into dimensions of sizes known now."""
    indexed, sizes = _indices(node), shape_of(source(node))
    for dim, index in indexed:
        if not is_constant(index):
            return no(
                Reason.NON_CONSTANT, f"the indices {index.name} are computed at run time, and XNNPACK has no gather"
            )
        if tensor(index).dtype not in (torch.int32, torch.int64):
            return no(Reason.DTYPE, f"the indices {index.name} are {tensor(index).dtype}".replace("torch.", ""))
        if type(sizes[dim]) is not int or 0 in tensor(index).shape:
            return no(Reason.DYNAMIC_SHAPE, f"the indexed dimension has {sizes[dim]} elements")
    dims = [dim for dim, _ in indexed]
    if not dims or dims != list(range(dims[0], dims[0] + len(dims))) or (len(dims) > 1 and not _form_grid(indexed)):
        return no(Reason.ATTRIBUTE, "several indices that do not form a grid, and XNNPACK has no gather")
    return YES if dynamic_sizes(shape_of(node)) <= 1 else no(Reason.DYNAMIC_SHAPE, "more than one dynamic size")


def _form_grid(indexed: Sequence[tuple[int, Node]]) -> bool:
    """Return true if several indices broadcast to a grid: the first along its first dimension, and so on."""
    for position, (_, index) in enumerate(indexed):
        shape = list(tensor(index).shape)
        own = len(indexed) - position
        if len(shape) < own or any(s != 1 for s in [*shape[:-own], *shape[len(shape) - own + 1 :]]):
            return False
        if len(shape) > len(indexed):
            return False
    return True


@TABLE.lowers(
    "aten.index.Tensor", "aten.index_select.default", check=every(with_dimensions, _gathered_floats, _gatherable)
)
def lower_index(builder: RegionBuilder, node: Node) -> None:
    """Lower to slices and a concatenation per indexed dimension; raise RegionRefused if there are too many."""
    x, indexed = builder.operand(source(node)), _indices(node)
    for dim, index in indexed:
        size = cast(int, x.shape[dim])
        positions = [int(i) % size for i in builder.array(index).reshape(-1)]
        if pieces(positions) > MAX_PIECES:
            raise RegionRefused({node.name: f"its indices form {pieces(positions)} runs, and XNNPACK has no gather"})
        x = gather(builder, x, dim, positions)
    builder.set(node, x if len(indexed) > 1 else builder.reshape(x, shape_of(node)))


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


def _rollable(node: Node) -> Verdict:
    """Shifts and the sizes of rolled dimensions are known now."""
    named, shape = arguments(node), shape_of(node)
    if not named["dims"]:
        return (
            infers_one(node)
            if not dynamic_sizes(shape)
            else no(Reason.DYNAMIC_SHAPE, "all dimensions are rolled, and some sizes are dynamic")
        )
    if any(type(shift) is not int for shift in named["shifts"]):
        return no(Reason.DYNAMIC_SHAPE, "the shifts are known only at run time")
    if dynamic_sizes([shape[d] for d in named["dims"]]):
        return no(
            Reason.DYNAMIC_SHAPE, f"the size of a rolled dimension is known only at run time: {[str(s) for s in shape]}"
        )
    return YES


@TABLE.lowers("aten.roll.default", check=every(floats, _rollable), keep=True)
def lower_roll(builder: RegionBuilder, node: Node) -> None:
    """Lower to two slices and a concatenation for each rolled dimension."""
    named, x = arguments(node), builder.operand(source(node))
    shape, dims = x.shape, named["dims"] or [0]
    if not named["dims"]:
        x = builder.reshape(x, (int(np.prod(shape)),))
    for dim, shift in zip(dims, named["shifts"], strict=True):
        size = cast(int, x.shape[dim])
        first = -shift % size
        x = gather(builder, x, dim % x.rank, [*range(first, size), *range(first)])
    builder.set(node, builder.reshape(x, shape))


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
    """Emit x with the elements at `places` of a dimension replaced by those of `values`, which has the same order."""
    segments = interleave(cast(int, x.shape[dim]), places)
    return concatenate(builder, [piece(builder, values if written else x, dim, run) for written, run in segments], dim)


def _written_floats(node: Node) -> Verdict:
    """Elements are float32, float16 or bfloat16, of 5 dimensions at most, one size at most not known now."""
    named = arguments(node)
    for value in (tensor(node), tensor(source(node)), tensor(named["values" if "values" in named else "src"])):
        if value.dtype not in FLOATS:
            kind = str(value.dtype).removeprefix("torch.")
            return no(Reason.DTYPE, f"elements are {kind}, but XNNPACK computes in float32")
        if value.dim() >= MAX_RANK:
            return no(
                Reason.RANK,
                f"{value.dim()} dimensions, and the lowering needs one more, above XNNPACK's limit of {MAX_RANK}",
            )
        if 0 in [s for s in value.shape if type(s) is int]:
            return no(Reason.ATTRIBUTE, f"a tensor has no elements: its shape is {list(value.shape)}")
        if sum(type(s) is not int for s in value.shape) > 1:
            return no(Reason.DYNAMIC_SHAPE, "more than one dynamic size")
    return YES


# -- slices ------------------------------------------------------------------------------------------------------------


def _dim(node: Node) -> int:
    return cast(int, arguments(node)["dim"]) % len(shape_of(node))


def _places(node: Node) -> range:
    """Return the positions that a slice or a selection writes, in a dimension of a size known now."""
    named, size = arguments(node), cast(int, shape_of(node)[_dim(node)])
    if "index" in named:
        return range(named["index"] % size, named["index"] % size + 1)
    return range(*slice(named["start"], named["end"], named["step"]).indices(size))


def _placed(node: Node) -> Verdict:
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


@TABLE.lowers("aten.slice_scatter.default", check=every(with_dimensions, _written_floats, _placed))
def lower_slice_scatter(builder: RegionBuilder, node: Node) -> None:
    """Lower to a concatenation of the written values and of slices of the unchanged elements."""
    x = builder.operand(source(node))
    values = builder.operand(arguments(node)["src"], x.order)
    builder.set(node, overwrite(builder, x, values, _dim(node), _places(node)))


@TABLE.lowers("aten.select_scatter.default", check=every(with_dimensions, _written_floats, _placed), keep=True)
def lower_select_scatter(builder: RegionBuilder, node: Node) -> None:
    """Lower to a concatenation of the written values and of slices of the unchanged elements."""
    x, dim = builder.operand(source(node)), _dim(node)
    values = builder.operand(arguments(node)["src"], without(x.order, [dim]))
    one = builder.view(values, sized(x.shape, dim, 1), x.order)
    builder.set(node, overwrite(builder, x, one, dim, _places(node)))


# -- constant indices --------------------------------------------------------------------------------------------------


def _index(node: Node) -> tuple[int, Node]:
    """Return the one dimension that is indexed, and the indices."""
    return next((d, index) for d, index in enumerate(arguments(node)["indices"]) if index is not None)


def _puttable(node: Node) -> Verdict:
    """One dimension, of a size known now, is indexed by a constant row of integers; nothing is added up."""
    named = arguments(node)
    indices = [index for index in named["indices"] if index is not None]
    if named["accumulate"]:
        return no(Reason.ATTRIBUTE, "values are accumulated, and XNNPACK has no scatter")
    if len(indices) != 1 or tensor(indices[0]).dim() != 1 or tensor(indices[0]).dtype not in (torch.int32, torch.int64):
        return no(Reason.ATTRIBUTE, "its indices are not a single vector of integers, and XNNPACK has no scatter")
    dim, index = _index(node)
    if not is_constant(index):
        return no(Reason.NON_CONSTANT, f"the indices {index.name} are computed at run time, and XNNPACK has no scatter")
    if any(type(s) is not int for s in (shape_of(node)[dim], *tensor(index).shape)):
        return no(Reason.DYNAMIC_SHAPE, f"the indexed dimension has {shape_of(node)[dim]} elements")
    shape = sized(shape_of(node), dim, tensor(index).shape[0])
    if any(type(s) is not int for d, s in enumerate(shape) if d in _repeated(named["values"], shape)):
        return no(Reason.DYNAMIC_SHAPE, "the number of repetitions of the values is known only at run time")
    return YES


def _repeated(values: Node, shape: Sequence[object]) -> list[int]:
    """Return the dimensions along which written values are repeated."""
    sizes = (1,) * (len(shape) - len(shape_of(values))) + tuple(shape_of(values))
    return [d for d, (a, b) in enumerate(zip(sizes, shape, strict=True)) if str(a) != str(b)]


@TABLE.lowers("aten.index_put.default", check=every(with_dimensions, _written_floats, _puttable))
def lower_index_put(builder: RegionBuilder, node: Node) -> None:
    """Lower to a concatenation of written and of unchanged parts; raise RegionRefused if there are too many."""
    x, (dim, index) = builder.operand(source(node)), _index(node)
    size = cast(int, x.shape[dim])
    places = [int(i) % size for i in builder.array(index)]
    count = len(interleave(size, places))
    if len(set(places)) < len(places) or count > MAX_PIECES:
        what = f"would concatenate {count} parts" if count > MAX_PIECES else "writes one position twice"
        raise RegionRefused({node.name: f"it {what}, and XNNPACK has no scatter"})
    shape, values = sized(x.shape, dim, len(places)), arguments(node)["values"]
    builder.set(node, overwrite(builder, x, _spread(builder, values, shape, x), dim, places))


def _spread(builder: RegionBuilder, values: Node, shape: Sequence[int], like: Operand) -> Operand:
    """Broadcast values to a shape, in the order of another value."""
    if builder.is_constant(values):
        return builder.constant(np.broadcast_to(builder.array(values), shape), like.order)
    times = {d: shape[d] for d in _repeated(values, shape)}
    operand = builder.operand(values)
    operand = repeat_ones(builder, operand, times, len(shape)) if times else operand
    if operand.rank < len(shape):  # leading sizes of 1
        operand = builder.reshape(operand, shape)
    return builder.reorder(operand, like.order)
