"""What moves data and computes nothing: views, permutations, slices, joins, pads, repetitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.fx import Node

from delegate.backends.lowering import anything, every
from delegate.backends.onnx.translations.own import ints, ops
from delegate.backends.onnx.translations.row import Translation, floating, same_dtypes
from delegate.edge.node import arguments
from delegate.verdict import YES, Reason, Verdict, no

_END = 2**31 - 1  # where a slice ends that has no end


def _named_dims(node: Node) -> Verdict:
    """Dimensions are named."""
    return YES if arguments(node)["dims"] else no(Reason.ATTRIBUTE, "rolled as if it had one dimension")


def _no_cut(node: Node) -> Verdict:
    """No size is cut."""
    pad = arguments(node)["pad"]
    return YES if all(p >= 0 for p in pad) else no(Reason.ATTRIBUTE, f"pad={list(pad)}")


def roll(x: Any, shifts: Sequence[int], dims: Sequence[int] = ()) -> Any:
    """The last elements before the others, one dimension after the other."""
    op = ops()
    for shift, dim in zip(shifts, dims, strict=True):
        axes, cut = ints([dim]), -(shift % x.shape[dim])
        if cut:
            last = op.Slice(x, ints([cut]), ints([_END]), axes)
            first = op.Slice(x, ints([0]), ints([cut]), axes)
            shape, x = x.shape, op.Concat(last, first, axis=dim)
            x.shape = shape
    return x


_SHAPE = ("Reshape", "Concat", "Expand", "Squeeze", "Unsqueeze")

ROWS = (
    Translation("aten.view.default", _SHAPE, anything),
    Translation("aten.expand.default", ("Expand",), anything),
    Translation("aten.permute.default", ("Transpose",), anything),
    Translation("aten.squeeze.dims", ("Squeeze",), anything),
    Translation("aten.unsqueeze.default", ("Unsqueeze",), anything),
    Translation("aten.cat.default", ("Concat",), same_dtypes),
    Translation("aten.slice.Tensor", ("Slice",), anything),
    Translation("aten.select.int", ("Gather",), anything),
    Translation("aten.split_with_sizes.default", ("Split",), anything),
    Translation("aten.repeat.default", ("Tile",), anything),
    Translation("aten.flip.default", ("Slice",), anything),
    Translation("aten.roll.default", ("Slice", "Concat"), _named_dims, keep=True, translate=roll),
    Translation("aten.constant_pad_nd.default", ("Pad",), every(floating, _no_cut)),
    *(
        Translation(f"aten.{mode}_pad{n}d.default", ("Pad",), floating, keep=True)
        for mode in ("reflection", "replication")
        for n in (1, 2, 3)
    ),
)
