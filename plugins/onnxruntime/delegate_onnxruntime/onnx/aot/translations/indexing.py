"""Elements that are chosen by indices, or lie at places that are known before the program runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from delegate.backend.lowering import anything
from delegate.edge.node import arguments, tensor, tensors
from delegate.verdict import YES, Reason, Verdict, no
from delegate_onnxruntime.onnx.aot.translations.row import INDICES, axis_of, cast, ints, ops, row, static, take

Indices = Sequence[Any]  # for each dimension an index, or None where all of it is take


def integer_indices(node: Node) -> Verdict:
    """Indices are tensors of integers.

    Several are of one shape that is known before it runs, or one of them is enough.
    """
    indices = [i for i in arguments(node)["indices"] if i is not None]
    if any(t.dtype.itemsize == 1 for i in indices for t in tensors(i)):
        return no(Reason.DTYPE, "a boolean mask as an index makes sizes that depend on the data")
    shapes = [tensor(i).shape for i in indices]
    if len(shapes) == 1 or all(isinstance(s, int) for shape in shapes for s in shape):
        return YES
    return no(Reason.DYNAMIC_SHAPE, "several indices whose sizes depend on the inputs")


def split(indices: Indices, rank: int) -> tuple[list[int], list[int]]:
    """Return the dimensions that are indexed, and the others."""
    chosen = [axis for axis, index in enumerate(indices) if index is not None]
    return chosen, [axis for axis in range(rank) if axis not in chosen]


def stack_indices(x: Any, indices: Indices) -> Any:
    """Return the indices as ONNX's ND operators require them: not negative, stacked along a new last dimension."""
    op, (chosen, _) = ops(), split(indices, len(x.shape))
    common = shape_of(indices)
    columns = []
    for axis in chosen:
        index = cast(indices[axis], "INT64")
        if isinstance(x.shape[axis], int):
            zero, size = (op.Constant(value_int=n) for n in (0, x.shape[axis]))
            index = op.Where(op.Less(index, zero), op.Add(index, size), index)
        if len(chosen) > 1 and tuple(indices[axis].shape) != tuple(common):
            index = op.Expand(index, ints(common))
        columns.append(op.Unsqueeze(index, ints([-1])))
    return op.Concat(*columns, axis=-1) if len(columns) > 1 else columns[0]


def shape_of(indices: Indices) -> list[int]:
    """Return the shape to which all indices broadcast."""
    shape = np.broadcast_shapes(*(tuple(i.shape) for i in indices if i is not None))
    return [int(size) for size in shape]


def order_of(indices: Indices, rank: int) -> list[int]:
    """Return torch's order of dimensions; the results of ONNX's ND operators start with the indices' dimensions."""
    (chosen, others), own = split(indices, rank), len(shape_of(indices))
    if chosen != list(range(chosen[0], chosen[-1] + 1)):
        return list(range(own + len(others)))
    before = len([axis for axis in others if axis < chosen[0]])
    return [*range(own, own + before), *range(own), *range(own + before, own + len(others))]


def index(x: Any, indices: Indices) -> Any:
    """Gather along the indexed dimension; if several are indexed, gather by their joint positions."""
    op, (chosen, others) = ops(), split(indices, len(x.shape))
    if len(chosen) == 1:
        return op.Gather(x, indices[chosen[0]], axis=chosen[0])
    first = x if chosen + others == list(range(len(x.shape))) else op.Transpose(x, perm=chosen + others)
    gathered, order = op.GatherND(first, stack_indices(x, indices)), order_of(indices, len(x.shape))
    return gathered if order == sorted(order) else op.Transpose(gathered, perm=order)


def index_select(x: Any, dim: int, chosen: Any) -> Any:
    """Gather, without the exporter's reshaping of the indices."""
    return ops().Gather(x, chosen, axis=dim)


def as_strided(x: Any, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None) -> Any:
    """Gather from the flattened tensor at the places of a contiguous tensor's strides."""
    count = 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) + (storage_offset or 0)
    places = torch.arange(count).as_strided(tuple(size), tuple(stride), storage_offset or 0)
    return take(ops().Reshape(x, ints([-1])), 0, places)


def unfold(x: Any, dimension: int, size: int, step: int) -> Any:
    """Return windows of a dimension, which are the new last dimension."""
    op, axis, rank = ops(), axis_of(dimension, x), len(x.shape)
    windows = take(x, axis, torch.arange(x.shape[axis]).unfold(0, size, step))
    if axis == rank - 1:
        return windows
    return op.Transpose(windows, perm=[*range(axis + 1), *range(axis + 2, rank + 1), axis + 1])


ROWS = (
    row("aten.embedding.default", ("Gather",), anything, also=INDICES),
    row(
        "aten.index.Tensor", ("Gather", "GatherND", "Transpose"), integer_indices, also=INDICES, translate=index,
        between=("Where", "Less", "Add", "Expand", "Unsqueeze", "Concat", "Cast"),
    ),
    row("aten.index_select.default", ("Gather",), anything, also=INDICES, translate=index_select),
    row("aten.gather.default", ("GatherElements",), anything, also=INDICES),
    row("aten.as_strided.default", ("Reshape", "Gather"), static, translate=as_strided),
    row("aten.unfold.default", ("Gather", "Transpose"), static, translate=unfold),
)  # fmt: skip
