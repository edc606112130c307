"""Operators over dynamic sizes, called with several of them, against eager."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

from tests.backends.xnnpack.harness import assert_as_eager, lower
from tests.support.functions import Function

Shape = Sequence[int]
Row = tuple[Any, Shape, dict[int, Any], Sequence[Shape]]

N, T, H = Dim("n", min=1, max=64), Dim("t", min=2, max=64), Dim("h", min=4, max=64)
LONG = Dim("long", min=4, max=64)
MASK, C = torch.rand(4, 9) > 0.5, torch.randn(2, 1, 4, 9)
PARTS, ROWS, LENGTHS = (2, 6, 4, 9), [(6, 6, 4, 9), (11, 6, 4, 9)], [(2, 11, 4, 9), (2, 7, 4, 9)]
IMAGE, IMAGES, HEIGHTS = (2, 3, 6, 7), [(6, 3, 6, 7), (9, 3, 6, 7)], [(2, 3, 9, 7), (2, 3, 5, 7)]

# Function or module, the shape of the example, its dynamic dimensions, other shapes: of operators that move elements.
EXACT: dict[str, Row] = {
    "slice of others": (lambda x: x[:, 1:4], PARTS, {0: N}, ROWS),
    "tail": (lambda x: x[:, 2:], PARTS, {1: LONG}, LENGTHS),
    "head": (lambda x: x[:, :-2], PARTS, {1: LONG}, LENGTHS),
    "middle": (lambda x: x[:, 1:-1], PARTS, {1: LONG}, LENGTHS),
    "first three": (lambda x: x[:, :3], PARTS, {1: LONG}, LENGTHS),
    "last": (lambda x: x[:, -1], PARTS, {1: LONG}, LENGTHS),
    "first": (lambda x: x[:, 0], PARTS, {1: LONG}, LENGTHS),
    "between two": (lambda x: x[..., 3], PARTS, {0: N, 1: LONG}, [(5, 11, 4, 9)]),
    "step": (lambda x: x[..., 1::2], PARTS, {0: N}, ROWS),
    "slice_scatter": (lambda x: x.slice_scatter(x[:, 3:5], 1, 1, 3), PARTS, {0: N}, ROWS),
    "select_scatter": (lambda x: x.select_scatter(x[..., 2].neg(), 3, 4), PARTS, {1: LONG}, LENGTHS),
    "split": (lambda x: x.split([2, 3, 4], -1), PARTS, {1: LONG}, LENGTHS),
    "cat": (lambda x: torch.cat([x, x.neg(), C], 1), PARTS, {1: LONG}, LENGTHS),
    "roll": (lambda x: x.roll(2, 2), PARTS, {1: LONG}, LENGTHS),
    "mask": (lambda x: x.masked_fill(MASK, 0.5), PARTS, {1: LONG}, LENGTHS),
    "view": (lambda x: x.view(x.shape[0], 12), (2, 3, 4), {0: N}, [(5, 3, 4)]),
    "heads": (lambda x: x.view(1, -1, 2, 3).transpose(1, 2), (1, 4, 6), {1: T}, [(1, 9, 6)]),
    "permute": (lambda x: x.permute(1, 2, 0), (2, 3, 4), {0: N}, [(7, 3, 4)]),
    "repeat": (lambda x: x.repeat(1, 3), (2, 3), {0: N}, [(7, 3)]),
    "two, split": (lambda x: x.view(*x.shape[:2], 6, 2).neg(), (2, 3, 12), {0: N, 1: T}, [(4, 7, 12)]),
    "two, split thrice": (lambda x: x.view(*x.shape[:2], 3, 2, 2), (2, 3, 12), {0: N, 1: T}, [(4, 7, 12)]),
    "two, regrouped": (lambda x: x.reshape(x.shape[0], 4, 3, -1), (2, 2, 6, 5), {0: N, 3: T}, [(4, 2, 6, 7)]),
    "two, and ones": (
        lambda x: x.view(x.shape[0], x.shape[2], 1, 3, 4), (2, 1, 5, 12), {0: N, 2: T}, [(4, 1, 7, 12)],
    ),
    "pad": (Function(F.pad, (1, 1, 2, 0)), IMAGE, {0: N}, IMAGES),
    "pad of a dynamic size": (Function(F.pad, (1, 1, 2, 0)), IMAGE, {2: H}, HEIGHTS),
    "reflect": (Function(F.pad, (1, 1, 2, 0), mode="reflect"), IMAGE, {0: N}, IMAGES),
    "nearest": (Function(F.interpolate, scale_factor=2.0), IMAGE, {0: N}, IMAGES),
    "max pool": (nn.MaxPool2d(3, 2, 1), (2, 4, 9, 9), {0: N}, [(5, 4, 9, 9), (1, 4, 9, 9)]),
    **{
        f"max pool, stride {stride}, ceil {ceil}, padding {padding}": (
            nn.MaxPool2d(3, stride, padding, ceil_mode=ceil), (1, 2, 9, 10), {2: Dim.AUTO, 3: Dim.AUTO},
            [(1, 2, 7, 8), (1, 2, 12, 11)],
        )
        for stride, ceil in ((1, False), (1, True), (2, False))
        for padding in (0, 1)
    },
}  # fmt: skip
CLOSE: dict[str, Row] = {
    "merge": (lambda x: x.reshape(-1, 4) + 1, (2, 3, 4), {0: N}, [(5, 3, 4)]),
    "expand": (lambda x: x.unsqueeze(1).expand(-1, 5, -1).exp(), (2, 3), {0: N}, [(7, 3)]),
    "two, unsqueezed": (lambda x: x[:, None, :, None].exp(), (2, 3), {0: N, 1: T}, [(4, 7)]),
    "two, squeezed": (lambda x: x.squeeze(1).exp(), (2, 1, 3), {0: N, 2: T}, [(4, 1, 7)]),
    "two, joined": (lambda x: x.transpose(1, 2).flatten(2).exp(), (2, 3, 5, 4), {0: N, 2: T}, [(4, 3, 7, 4)]),
    "bilinear": (Function(F.interpolate, size=(9, 9), mode="bilinear"), IMAGE, {0: N}, IMAGES),
    "mean": (lambda x: x.mean(), (2, 3, 4, 5), {0: N}, [(7, 3, 4, 5)]),
    "maximum": (lambda x: x.max(1).values, (2, 3, 4, 5), {0: N}, [(7, 3, 4, 5)]),
    "variance": (lambda x: x.var((1, 2), correction=0, keepdim=True), (2, 3, 4, 5), {0: N}, [(7, 3, 4, 5)]),
    "norm": (lambda x: x.norm(dim=1), (2, 3, 4, 5), {0: N}, [(7, 3, 4, 5)]),
    "logsumexp": (lambda x: torch.logsumexp(x, 1), (2, 3, 4, 5), {0: N}, [(7, 3, 4, 5)]),
    "convolution": (nn.Conv2d(4, 6, 3, 2, 1), (2, 4, 12, 12), {0: N}, [(5, 4, 12, 12), (1, 4, 12, 12)]),
    "height and width": (nn.Conv2d(4, 6, 3, 1, 1), (1, 4, 12, 12), {2: H, 3: T}, [(1, 4, 20, 15)]),
    "transposed convolution": (nn.ConvTranspose2d(4, 6, 3, 2, 1, 1), (2, 4, 12, 12), {0: N}, [(3, 4, 12, 12)]),
    "depthwise of many taps": (nn.Conv2d(3, 3, 7, 2, 1, groups=3), (2, 3, 14, 15), {0: N}, [(1, 3, 14, 15)]),
    "convolution, 1d": (nn.Conv1d(4, 6, 3, 1, 1), (2, 4, 9), {0: N}, [(3, 4, 9)]),
    "linear": (nn.Sequential(nn.Linear(12, 5), nn.SiLU(), nn.Linear(5, 3)), (2, 12), {0: N}, [(7, 12)]),
}


@pytest.mark.parametrize("name", [*EXACT, *CLOSE])
def test_sizes_change_from_call_to_call(name: str) -> None:
    torch.manual_seed(0)
    given, shape, dims, others = EXACT[name] if name in EXACT else CLOSE[name]
    module = given if isinstance(given, nn.Module) else Function(given)
    lowered = lower(module, (torch.randn(shape),), ((dims,),) if isinstance(module, Function) else (dims,))
    assert lowered.result.compile_specs["dynamic"]
    rtol, atol = (0, 0) if name in EXACT else (1e-4, 1e-5)
    for size in (shape, *others, shape):
        assert_as_eager(module, (torch.randn(size) - 1,), lowered, rtol, atol)
