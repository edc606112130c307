"""Resizing of images and other grids, and pixels that become channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.fx import Node

from delegate.backends.lowering import every
from delegate.backends.onnx.translations.own import ints, ops
from delegate.backends.onnx.translations.row import Translation, floating
from delegate.edge.node import is_static, tensor
from delegate.verdict import YES, Reason, Verdict, no


def _static(node: Node) -> Verdict:
    """4 dimensions, whose sizes are known before it runs."""
    source = node.all_input_nodes[0]
    if tensor(source).dim() != 4:
        return no(Reason.RANK, f"{source.name} has {tensor(source).dim()} dimensions, not 4")
    return YES if is_static(source) else no(Reason.DYNAMIC_SHAPE, f"{source.name} has sizes that depend on the inputs")


def pixel_unshuffle(x: Any, downscale_factor: int) -> Any:
    """Blocks of pixels as channels, by way of 5 dimensions: DSPs take no more."""
    op, (batch, channels, height, width), block = ops(), x.shape, downscale_factor
    rows, columns = height // block, width // block
    blocks = op.Reshape(x, ints([batch * channels, rows, block, columns, block]))
    moved = op.Transpose(blocks, perm=[0, 2, 4, 1, 3])
    return op.Reshape(moved, ints([batch, channels * block * block, rows, columns]))


def pixel_shuffle(x: Any, upscale_factor: int) -> Any:
    """Channels as blocks of pixels, by way of 5 dimensions."""
    op, (batch, channels, height, width), block = ops(), x.shape, upscale_factor
    blocks = op.Reshape(x, ints([batch * channels // block**2, block, block, height, width]))
    moved = op.Transpose(blocks, perm=[0, 3, 1, 4, 2])
    return op.Reshape(moved, ints([batch, channels // block**2, height * block, width * block]))


_MODES: Sequence[str] = ("nearest2d", "bilinear2d")

ROWS = (
    *(
        Translation(f"aten.upsample_{mode}.{overload}", ("Resize",), floating, keep=True)
        for mode in _MODES
        for overload in ("vec", "default")
    ),
    Translation(
        "aten.pixel_shuffle.default", ("Reshape", "Transpose"), every(_static), keep=True, translate=pixel_shuffle
    ),
    Translation(
        "aten.pixel_unshuffle.default", ("Reshape", "Transpose"), every(_static), keep=True, translate=pixel_unshuffle
    ),
)
