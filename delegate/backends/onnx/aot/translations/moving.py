"""Operators that move data without computing: views, permutations, slices, joins, repetitions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from delegate.backends.lowering import anything, every
from delegate.backends.onnx.aot.translations.row import END, ints, ops, row, same_dtypes, scalar, static, taken
from delegate.edge.node import arguments, tensor
from delegate.verdict import YES, Reason, Verdict, no


def _flat_or_named(node: Node) -> Verdict:
    """If no dimensions are listed, all sizes are known before it runs."""
    return YES if arguments(node)["dims"] else static(node)


def roll(x: Any, shifts: Sequence[int], dims: Sequence[int] = ()) -> Any:
    """The last elements before the others, one dimension after the other; without dimensions, as if it had one."""
    op = ops()
    if not dims:
        flat = taken(op.Reshape(x, ints([-1])), 0, torch.arange(math.prod(x.shape)).roll(tuple(shifts)))
        return op.Reshape(flat, ints(list(x.shape)))
    for shift, dim in zip(shifts, dims, strict=True):
        axes, cut = ints([dim]), -(shift % x.shape[dim])
        if cut:
            last = op.Slice(x, ints([cut]), ints([END]), axes)
            first = op.Slice(x, ints([0]), ints([cut]), axes)
            shape, x = x.shape, op.Concat(last, first, axis=dim)
            x.shape = shape
    return x


def squeezed(x: Any, dim: Sequence[int]) -> Any:
    """Without those of these dimensions that have one element."""
    op = ops()
    gone = [d for d in dim if x.shape[d] == 1]
    return op.Squeeze(x, ints(gone)) if gone else op.Identity(x)


def filled(x: Any, value: float, **_: Any) -> Any:
    """A number in the shape of another tensor."""
    return ops().Expand(scalar(value, x), ints(list(x.shape)))


def _same_dtype(node: Node) -> Verdict:
    """The dtype is that of the other tensor."""
    dtype = tensor(node).dtype
    return YES if tensor(node.all_input_nodes[0]).dtype is dtype else no(Reason.DTYPE, f"made as {dtype}")


_SHAPE = ("Reshape", "Concat", "Expand", "Squeeze", "Unsqueeze")

ROWS = (
    row("aten.view.default", _SHAPE, anything),
    row("aten.expand.default", ("Expand",), anything),
    row("aten.permute.default", ("Transpose",), anything),
    row("aten.squeeze.dims", ("Squeeze",), anything, translate=squeezed),
    row("aten.unsqueeze.default", ("Unsqueeze",), anything),
    row("aten.cat.default", ("Concat",), same_dtypes),
    row("aten.slice.Tensor", ("Slice",), anything),
    row("aten.select.int", ("Gather",), anything),
    row("aten.split_with_sizes.default", ("Split",), anything),
    row("aten.repeat.default", ("Tile",), anything),
    row("aten.flip.default", ("Slice",), anything),
    row(
        "aten.roll.default", ("Slice", "Concat"), _flat_or_named, keep=True, translate=roll,
        between=("Reshape", "Gather"),
    ),
    row("aten.full_like.default", ("Expand",), every(static, _same_dtype), translate=filled),
)  # fmt: skip
