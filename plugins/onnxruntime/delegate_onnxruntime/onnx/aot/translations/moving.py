"""Operators that move data without computing: views, permutations, slices, joins, repetitions, padding.

A provider that lacks a mode of padding gathers the result, which is torch's decomposition.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch.fx import Node

from delegate.backend.lowering import anything, every
from delegate.edge.node import arguments, tensor
from delegate.verdict import YES, Reason, Verdict, no
from delegate_onnxruntime.onnx.aot.translations.row import (
    END,
    floating,
    ints,
    ops,
    row,
    same_dtypes,
    scalar,
    static,
    take,
)
from delegate_onnxruntime.onnx.aot.translations.row import constant as filled


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


def _known_positive_widths(node: Node) -> Verdict:
    """The widths that are added are known before it runs, and nothing is cut."""
    verdict = _known_widths(node)
    return verdict and (YES if min(_pad(node)) >= 0 else no(Reason.ATTRIBUTE, f"padding={list(_pad(node))}"))


def _known_widths(node: Node) -> Verdict:
    """The widths that are added and cut are known before it runs."""
    if all(isinstance(width, int) for width in _pad(node)):
        return YES
    return no(Reason.DYNAMIC_SHAPE, "the widths of the padding depend on the inputs")


def _has_border(node: Node) -> Verdict:
    """There are elements to repeat at the border."""
    source = node.all_input_nodes[0]
    return YES if tensor(source).numel() else no(Reason.ATTRIBUTE, f"{source.name} has no elements")


def _pad(node: Node) -> Pad:
    args = arguments(node)
    return args["pad"] if "pad" in args else args["padding"]  # type: ignore[no-any-return]


def pad_by_operator(mode: str, x: Any, padding: Pad) -> Any:
    """Pad by ONNX's own operator."""
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


ROWS = (
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
    row("aten.full_like.default", ("Expand",), every(static, _same_dtype), translate=full_like),
    row("aten.constant_pad_nd.default", ("Pad",), _known_widths, translate=constant, between=("Slice",)),
    row(
        "aten.constant_pad_nd.default",
        ("Gather", "Where"),
        every(floating, static, _known_widths, _has_border),
        translate=pad_by_mask,
    ),
    *(
        row(
            f"aten.{name}.default",
            (f"Pad({onnx})",),
            _known_positive_widths,
            keep=True,
            translate=partial(pad_by_operator, mode),
        )
        for name, onnx, mode in (
            ("reflection_pad1d", "reflect", "reflect"),
            ("reflection_pad2d", "reflect", "reflect"),
            ("reflection_pad3d", "reflect 5-D", "reflect"),
            *((f"replication_pad{n}d", "edge", "edge") for n in (1, 2, 3)),
            ("_pad_circular", "wrap", "wrap"),
        )
    ),
)  # fmt: skip
