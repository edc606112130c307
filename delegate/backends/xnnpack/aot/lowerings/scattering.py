"""Lowerings of writes to known positions: exact concatenations of written parts and of unchanged parts."""

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
from delegate.backends.xnnpack.aot.lowerings.gathering import MAX_PIECES, piece, runs
from delegate.backends.xnnpack.aot.lowerings.indexing import Run, concatenate, sized
from delegate.backends.xnnpack.aot.lowerings.shape import repeat_ones, source, without
from delegate.backends.xnnpack.aot.lowerings.table import FLOATS, MAX_RANK, TABLE
from delegate.backends.xnnpack.aot.operand import Operand, shape_of
from delegate.edge.node import arguments, is_constant, tensor
from delegate.verdict import YES, Reason, Verdict, no


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
            return no(Reason.DTYPE, f"elements are {kind}, and XNNPACK computes in float32")
        if value.dim() >= MAX_RANK:
            return no(Reason.RANK, f"{value.dim()} dimensions, where writing elements takes one more than given")
        if 0 in [s for s in value.shape if type(s) is int]:
            return no(Reason.ATTRIBUTE, f"nothing is written, or to nothing: a shape is {list(value.shape)}")
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
        return no(Reason.DYNAMIC_SHAPE, f"where it is written in {size} elements is known at run time only")
    count = len(interleave(size, _places(node)))
    if count > MAX_PIECES:
        return no(Reason.SLOWER, f"XNNPACK would join {count} parts")
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
        return no(Reason.ATTRIBUTE, "values are added to what is there, and XNNPACK has no scatter")
    if len(indices) != 1 or tensor(indices[0]).dim() != 1 or tensor(indices[0]).dtype not in (torch.int32, torch.int64):
        return no(Reason.ATTRIBUTE, "its indices are other than one row of integers, and XNNPACK has no scatter")
    dim, index = _index(node)
    if not is_constant(index):
        return no(Reason.NON_CONSTANT, f"the indices {index.name} are computed at run time, and XNNPACK has no scatter")
    if any(type(s) is not int for s in (shape_of(node)[dim], *tensor(index).shape)):
        return no(Reason.DYNAMIC_SHAPE, f"the indexed dimension has {shape_of(node)[dim]} elements")
    shape = sized(shape_of(node), dim, tensor(index).shape[0])
    if any(type(s) is not int for d, s in enumerate(shape) if d in _repeated(named["values"], shape)):
        return no(Reason.DYNAMIC_SHAPE, "how often values are repeated is known at run time only")
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
        what = f"would be joined of {count} parts" if count > MAX_PIECES else "is written to twice at one place"
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
