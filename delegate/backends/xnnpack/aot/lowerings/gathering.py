"""Lowerings of gathers with constant indices, flips and rolls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch.fx import Node

from delegate.backends.aot import RegionRefused
from delegate.backends.lowering import every, with_dimensions
from delegate.backends.xnnpack.aot.builder import RegionBuilder
from delegate.backends.xnnpack.aot.lowerings.indexing import Run, concatenate, take, take_every
from delegate.backends.xnnpack.aot.lowerings.shape import (
    dynamic_sizes,
    infers_one,
    repeat_each,
    source,
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
            return no(Reason.DTYPE, f"elements are {kind}, and XNNPACK computes in float32")
        if value.dim() >= MAX_RANK:
            return no(Reason.RANK, f"{value.dim()} dimensions, where picking elements takes one more than given")
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
            raise RegionRefused({node.name: f"its indices are {pieces(positions)} runs, and XNNPACK has no gather"})
        x = gather(builder, x, dim, positions)
    builder.set(node, x if len(indexed) > 1 else builder.reshape(x, shape_of(node)))


def _flippable(node: Node) -> Verdict:
    """Flipped dimensions are short, of sizes known now."""
    sizes = shape_of(source(node))
    for dim in arguments(node)["dims"]:
        if type(sizes[dim]) is not int:
            return no(Reason.DYNAMIC_SHAPE, f"dimension {dim} has {sizes[dim]} elements")
        if sizes[dim] > MAX_PIECES:
            return no(Reason.SLOWER, f"XNNPACK flips element by element, and dimension {dim} has {sizes[dim]}")
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
        return infers_one(node) if not dynamic_sizes(shape) else no(Reason.DYNAMIC_SHAPE, "rolled over all dimensions")
    if any(type(shift) is not int for shift in named["shifts"]):
        return no(Reason.DYNAMIC_SHAPE, "the shifts are known at run time only")
    if dynamic_sizes([shape[d] for d in named["dims"]]):
        return no(Reason.DYNAMIC_SHAPE, f"a rolled dimension is known at run time only: {[str(s) for s in shape]}")
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
