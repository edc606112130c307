"""Operators that move data without computing: views, permutations, slices, joins, repetitions, padding.

If a provider lacks a mode of padding, or requires 4 dimensions, the result is gathered from the input.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch.fx import Node

from delegate.backends.lowering import anything, every
from delegate.backends.onnx.aot.translations.row import (
    END,
    Row,
    floating,
    ints,
    ops,
    row,
    same_dtypes,
    scalar,
    static,
    take,
)
from delegate.backends.onnx.aot.translations.row import constant as filled
from delegate.edge.node import arguments, tensor
from delegate.verdict import YES, Reason, Verdict, no


def _flat_or_named(node: Node) -> Verdict:
    """If no dimensions are listed, all sizes are known before it runs."""
    return YES if arguments(node)["dims"] else static(node)


def roll(x: Any, shifts: Sequence[int], dims: Sequence[int] = ()) -> Any:
    """Return the tensor with its last elements moved to the front, one dimension after the other.

    Without dimensions, the tensor is rolled as if it had one.
    """
    op = ops()
    if not dims:
        flat = take(op.Reshape(x, ints([-1])), 0, torch.arange(math.prod(x.shape)).roll(tuple(shifts)))
        return op.Reshape(flat, ints(list(x.shape)))
    for shift, dim in zip(shifts, dims, strict=True):
        axes, cut = ints([dim]), -(shift % x.shape[dim])
        if cut:
            last = op.Slice(x, ints([cut]), ints([END]), axes)
            first = op.Slice(x, ints([0]), ints([cut]), axes)
            shape, x = x.shape, op.Concat(last, first, axis=dim)
            x.shape = shape
    return x


def squeeze(x: Any, dim: Sequence[int]) -> Any:
    """Return the tensor without the listed dimensions of size 1."""
    op = ops()
    gone = [d for d in dim if x.shape[d] == 1]
    return op.Squeeze(x, ints(gone)) if gone else op.Identity(x)


def full_like(x: Any, value: float, **_: Any) -> Any:
    """Return a number expanded to the shape of another tensor."""
    return ops().Expand(scalar(value, x), ints(list(x.shape)))


def _same_dtype(node: Node) -> Verdict:
    """The result has the dtype of the other tensor."""
    dtype = tensor(node).dtype
    return YES if tensor(node.all_input_nodes[0]).dtype is dtype else no(Reason.DTYPE, f"created as {dtype}")


_SHAPE = ("Reshape", "Concat", "Expand", "Squeeze", "Unsqueeze")


Pad = Sequence[int]  # before and behind, of the last dimension, then of the one before it, and so on


def _known_widths(node: Node) -> Verdict:
    """The widths that are added and cut are known before it runs."""
    if all(isinstance(width, int) for width in _pad(node)):
        return YES
    return no(Reason.DYNAMIC_SHAPE, "the widths of the padding depend on the inputs")


def _known_sizes(node: Node) -> Verdict:
    """The sizes that are padded are known before it runs."""
    pad, source = _pad(node), node.all_input_nodes[0]
    sizes = tensor(source).shape[-(len(pad) // 2) :]
    if all(isinstance(s, int) for s in sizes):
        return YES
    return no(Reason.DYNAMIC_SHAPE, f"{source.name} is padded along a dimension whose size depends on the inputs")


def _known_cut(node: Node) -> Verdict:
    """The sizes that are cut are known before it runs."""
    return YES if all(p >= 0 for p in _pad(node)) else _known_sizes(node)


def _has_border(node: Node) -> Verdict:
    """There are elements to repeat at the border."""
    source = node.all_input_nodes[0]
    return YES if tensor(source).numel() else no(Reason.ATTRIBUTE, f"{source.name} has no elements")


def _pad(node: Node) -> Pad:
    args = arguments(node)
    return args["pad"] if "pad" in args else args["padding"]  # type: ignore[no-any-return]


def places(size: int, before: int, after: int, mode: str) -> torch.Tensor:
    """Return the element that each place of a padded dimension repeats."""
    positions = torch.arange(-before, size + after)
    if mode == "edge":
        return positions.clamp(0, size - 1)
    if mode == "wrap":  # around what negative widths leave
        inner = torch.arange(size)[max(-before, 0) : size + min(after, 0)]
        return inner[torch.arange(-max(before, 0), len(inner) + max(after, 0)) % len(inner)]
    period = max(2 * (size - 1), 1)
    folded = positions % period
    return torch.where(folded < size, folded, period - folded)


def repeat_border(mode: str, x: Any, padding: Pad) -> Any:
    """Gather once per padded dimension."""
    rank = len(x.shape)
    result = x
    for i, (before, after) in enumerate(zip(padding[::2], padding[1::2], strict=True)):
        axis = rank - 1 - i
        if before or after or (result is x and 2 * i + 2 == len(padding)):
            result = take(result, axis, places(x.shape[axis], before, after, mode))
    return result


def pad_by_operator(mode: str, x: Any, padding: Pad) -> Any:
    """Pad by ONNX's own operator; gather if elements are cut."""
    if min(padding) < 0:
        return repeat_border(mode, x, padding)
    return ops().Pad(x, ints(_by_axis(padding, len(x.shape))), None, mode=mode)


def constant(x: Any, pad: Pad, value: float = 0.0) -> Any:
    """Pad after cutting off the negative widths."""
    amounts = _by_axis([max(p, 0) for p in pad], len(x.shape))
    return ops().Pad(_cut(x, pad), ints(amounts), scalar(value, x))


def pad_by_mask(x: Any, pad: Pad, value: float = 0.0) -> Any:
    """Pad by a value without ONNX's Pad: repeat the elements at the border, then replace them by the value."""
    result, inside = x, torch.ones([1] * len(x.shape), dtype=torch.bool)
    for i, (before, after) in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        axis, size = len(x.shape) - 1 - i, x.shape[len(x.shape) - 1 - i]
        if before or after:
            positions = torch.arange(-before, size + after)
            result = take(result, axis, positions.clamp(0, size - 1))
            along = [-1 if d == axis else 1 for d in range(len(x.shape))]
            inside = inside & ((positions >= 0) & (positions < size)).view(along)
    if inside.all():
        return ops().Identity(x) if result is x else result
    return ops().Where(filled(inside), result, scalar(value, x))


def _cut(x: Any, pad: Pad) -> Any:
    """Return the elements that the negative widths keep."""
    rank = len(x.shape)
    for i, (before, after) in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        if before < 0 or after < 0:
            end = after if after < 0 else END
            x = ops().Slice(x, ints([max(-before, 0)]), ints([end]), ints([rank - 1 - i]))
    return x


def _by_axis(pad: Pad, rank: int) -> list[int]:
    before, after = [0] * rank, [0] * rank
    for i, (first, last) in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        before[rank - 1 - i], after[rank - 1 - i] = first, last
    return [*before, *after]


def _rows(op: str, mode: str, onnx: str) -> tuple[Row, Row]:
    """Return two rows: ONNX's Pad for providers with this mode, else gathering."""
    return (
        row(
            op,
            (onnx,),
            every(_known_widths, _known_cut),
            keep=True,
            translate=partial(pad_by_operator, mode),
            between=("Gather",),
        ),
        row(op, ("Gather",), every(_known_widths, _known_sizes), keep=True, translate=partial(repeat_border, mode)),
    )


COPIES = (
    row("aten.view.default", _SHAPE, anything),
    row("aten.expand.default", ("Expand",), anything),
    row("aten.permute.default", ("Transpose",), anything),
    row("aten.squeeze.dims", ("Squeeze",), anything, translate=squeeze),
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
    row("aten.full_like.default", ("Expand",), every(static, _same_dtype), translate=full_like),
)  # fmt: skip


ROWS = (
    *COPIES,
    row("aten.constant_pad_nd.default", ("Pad",), _known_widths, translate=constant, between=("Slice",)),
    row(
        "aten.constant_pad_nd.default",
        ("Gather", "Where"),
        every(floating, static, _known_widths, _has_border),
        translate=pad_by_mask,
    ),
    *_rows("aten.reflection_pad1d.default", "reflect", "Pad(reflect)"),
    *_rows("aten.reflection_pad2d.default", "reflect", "Pad(reflect)"),
    *_rows("aten.reflection_pad3d.default", "reflect", "Pad(reflect 5-D)"),
    *(entry for n in (1, 2, 3) for entry in _rows(f"aten.replication_pad{n}d.default", "edge", "Pad(edge)")),
    *_rows("aten._pad_circular.default", "wrap", "Pad(wrap)"),
)
