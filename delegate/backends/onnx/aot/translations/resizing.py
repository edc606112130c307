"""Resizing of images and other grids, sampling at points, and pixels that become channels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.fx import Node

from delegate.backends.lowering import every
from delegate.backends.onnx.aot.translations.row import floating, ints, ops, row, taken, weighted
from delegate.edge.node import is_static, tensor
from delegate.verdict import YES, Reason, Verdict, no

aten = torch.ops.aten


def _static(node: Node) -> Verdict:
    """The operand has 4 dimensions, whose sizes are known before it runs."""
    source = node.all_input_nodes[0]
    if tensor(source).dim() != 4:
        return no(Reason.RANK, f"{source.name} has {tensor(source).dim()} dimensions, not 4")
    return YES if is_static(source) else no(Reason.DYNAMIC_SHAPE, f"{source.name} has sizes that depend on the inputs")


def _known_pixels(node: Node) -> Verdict:
    """All sizes but the batch are known before it runs."""
    for other in (node, node.all_input_nodes[0]):
        if not all(isinstance(s, int) for s in tensor(other).shape[1:]):
            return no(Reason.DYNAMIC_SHAPE, f"{other.name} has sizes that depend on the inputs")
    return YES


def pixel_unshuffle(x: Any, downscale_factor: int) -> Any:
    """Move blocks of pixels to channels, through 5 dimensions: DSPs support no more."""
    op, (batch, channels, height, width), block = ops(), x.shape, downscale_factor
    rows, columns = height // block, width // block
    blocks = op.Reshape(x, ints([batch * channels, rows, block, columns, block]))
    moved = op.Transpose(blocks, perm=[0, 2, 4, 1, 3])
    return op.Reshape(moved, ints([batch, channels * block * block, rows, columns]))


def pixel_shuffle(x: Any, upscale_factor: int) -> Any:
    """Move channels to blocks of pixels, through 5 dimensions: DSPs support no more."""
    op, (batch, channels, height, width), block = ops(), x.shape, upscale_factor
    blocks = op.Reshape(x, ints([batch * channels // block**2, block, block, height, width]))
    moved = op.Transpose(blocks, perm=[0, 3, 1, 4, 2])
    return op.Reshape(moved, ints([batch, channels // block**2, height * block, width * block]))


def by_weights(resize: Callable[..., torch.Tensor], x: Any, size: Any, *rest: Any) -> Any:
    """Resize by one product per dimension, with the weights that torch uses for each pixel.

    Torch resizes the rows of a unit matrix. The result holds the weight of each row in every pixel.
    """
    shape, result = list(x.shape), x
    for axis, (new_size, resized) in enumerate(_per_dimension(resize, shape, size, rest), start=2):
        result = weighted(result, axis, resized(torch.eye(shape[axis])).t(), shape, x)
        shape[axis] = new_size
    return result


def by_places(resize: Callable[..., torch.Tensor], x: Any, size: Any, *rest: Any) -> Any:
    """Resize by gathering, per dimension, the pixels that torch chooses."""
    shape = list(x.shape)
    for axis, (_, choose) in enumerate(_per_dimension(resize, shape, size, rest), start=2):
        numbers = torch.arange(shape[axis], dtype=torch.float64)
        x = taken(x, axis, choose(numbers[None])[0].long())
    return x


def _per_dimension(
    resize: Callable[..., torch.Tensor], shape: list[int], size: Any, rest: Sequence[Any]
) -> list[tuple[int, Callable[[torch.Tensor], torch.Tensor]]]:
    """Return for each dimension its new size, and torch's resizing of the rows of that dimension."""
    count = len(shape) - 2
    options, scales = list(rest), [None] * count
    align = [bool(options.pop(0))] if options and isinstance(options[0], bool) else []
    if options and isinstance(options[0], list | tuple):  # .vec: factors in a list
        scales = list(options[0])
    elif any(o is not None for o in options):
        scales = options
    sizes = [int(n * s) for n, s in zip(shape[2:], scales, strict=True)] if size is None else list(size)  # type: ignore[operator]
    return [
        (new_size, partial(_rows, resize, count, new_size, align, scale))
        for new_size, scale in zip(sizes, scales, strict=True)
    ]


def _rows(
    resize: Callable[..., torch.Tensor],
    count: int,
    new_size: int,
    align: list[bool],
    scale: float | None,
    rows: torch.Tensor,
) -> torch.Tensor:
    """Resize rows along their one dimension, as images of one pixel in the other dimensions."""
    image = rows.view(1, len(rows), *[1] * (count - 1), rows.shape[-1])
    scales = [*[None] * (count - 1), scale]
    resized = resize(image, [*[1] * (count - 1), new_size], *align, *scales)
    return resized.view(len(rows), new_size)


_MODES: Sequence[str] = ("nearest2d", "bilinear2d")
_WEIGHTED = {
    "upsample_linear1d": aten.upsample_linear1d.default,
    "upsample_trilinear3d": aten.upsample_trilinear3d.default,
    "upsample_bicubic2d": aten.upsample_bicubic2d.default,
    "_upsample_bilinear2d_aa": aten._upsample_bilinear2d_aa.default,
    "_upsample_bicubic2d_aa": aten._upsample_bicubic2d_aa.default,
}
_CHOSEN = {
    "upsample_nearest1d": aten.upsample_nearest1d.default,
    "upsample_nearest3d": aten.upsample_nearest3d.default,
    "_upsample_nearest_exact1d": aten._upsample_nearest_exact1d.default,
    "_upsample_nearest_exact2d": aten._upsample_nearest_exact2d.default,
    "_upsample_nearest_exact3d": aten._upsample_nearest_exact3d.default,
}

ROWS = (
    *(
        row(f"aten.upsample_{mode}.{overload}", ("Resize",), floating, keep=True)
        for mode in _MODES
        for overload in ("vec", "default")
    ),
    *(
        row(f"aten.{name}.{overload}", onnx, every(floating, _known_pixels), keep=True,
                    translate=partial(make, resize))
        for table, onnx, make in ((_WEIGHTED, ("MatMul", "Reshape"), by_weights), (_CHOSEN, ("Gather",), by_places))
        for name, resize in table.items()
        for overload in ("vec", "default")
    ),
    row("aten.grid_sampler_2d.default", ("GridSample",), floating),
    row(
        "aten.pixel_shuffle.default", ("Reshape", "Transpose"), every(_static), keep=True, translate=pixel_shuffle
    ),
    row(
        "aten.pixel_unshuffle.default", ("Reshape", "Transpose"), every(_static), keep=True, translate=pixel_unshuffle
    ),
)  # fmt: skip
