"""Resizing of images and other grids, sampling at points, and pixels that become channels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.fx import Node

from delegate.backend.lowering import every
from delegate.backend.resizing import (
    NEAREST,
    chosen_pixels,
    exact_factors,
    known_or_multiplied,
    reads_alike,
    rounds_as_torch,
    scale_size,
)
from delegate.edge.node import is_static, tensor
from delegate.verdict import YES, Reason, Verdict, no
from delegate_onnxruntime.onnx.aot.translations.row import cast, floating, ints, multiply_by_weights, ops, row, take

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

    Torch resizes the rows of a unit matrix, and the result holds the weight of each row in every pixel.
    """
    shape, result = list(x.shape), x
    new, align, factors = _options(shape[2:], size, rest)
    for axis, (new_size, factor) in enumerate(zip(new, factors, strict=True), start=2):
        weights = _rows(resize, len(new), new_size, align, factor, torch.eye(shape[axis])).t()
        result = multiply_by_weights(result, axis, weights, shape, x)
        shape[axis] = new_size
    return result


def by_places(resize: Callable[..., torch.Tensor], x: Any, size: Any, *rest: Any) -> Any:
    """Resize by gathering, per dimension, the pixels that torch chooses."""
    old = list(x.shape[2:])
    new, _, factors = _options(old, size, rest)
    for axis, places in enumerate(_chosen(resize, x, new, factors), start=2):
        x = x if places.equal(torch.arange(old[axis - 2])) else take(x, axis, places)
    return x


def nearest(resize: Callable[..., torch.Tensor], x: Any, size: Any, *rest: Any) -> Any:
    """Resize by ONNX's Resize if it reads the pixels that torch chooses, else by gathering these."""
    old = list(x.shape[2:])
    if not all(isinstance(s, int) for s in old):
        return _resize(x, size, rest, "nearest", "asymmetric")
    new, _, factors = _options(old, size, rest)
    if all(map(reads_alike, _chosen(resize, x, new, factors), old, new, factors)):
        return _resize(x, size, rest, "nearest", "asymmetric")
    return by_places(resize, x, size, *rest)


def _chosen(
    resize: Callable[..., torch.Tensor], x: Any, new: Sequence[int], factors: Sequence[float | None]
) -> list[torch.Tensor]:
    dtype = torch.float64 if x.dtype.name == "DOUBLE" else torch.float32
    return chosen_pixels(resize, list(x.shape[2:]), new, factors, dtype)


def bilinear(x: Any, size: Any, align_corners: bool, *rest: Any) -> Any:
    """Resize by ONNX's Resize; by the weights that torch uses if ONNX rounds the size to another one."""
    old = list(x.shape[2:])
    if all(isinstance(s, int) for s in old):
        new, _, factors = _options(old, size, rest)
        if not all(f is None or scale_size(s, f) == n for s, f, n in zip(old, factors, new, strict=True)):
            return by_weights(aten.upsample_bilinear2d.default, x, size, align_corners, *rest)
    return _resize(x, size, rest, "linear", "align_corners" if align_corners else "half_pixel")


def _resize(x: Any, size: Any, rest: Sequence[Any], mode: str, positions: str) -> Any:
    """Return ONNX's Resize, by the factors if there are any, else to the size."""
    op, options = ops(), {"mode": mode, "coordinate_transformation_mode": positions, "nearest_mode": "floor"}
    _, _, factors = _options(x.shape[2:], size, rest)
    if all(f is not None for f in factors):
        return op.Resize(x, None, op.Constant(value_floats=[1.0, 1.0, *factors]), None, **options)
    new = ints(size) if all(isinstance(s, int) for s in size) else cast(size, "INT64")
    sizes = op.Concat(op.Shape(x, start=0, end=2), new, axis=0)
    return op.Resize(x, None, None, sizes, **options)


def _options(
    old: Sequence[Any], size: Any, rest: Sequence[Any]
) -> tuple[list[Any], list[bool], Sequence[float | None]]:
    """Return the new sizes, the argument `align_corners` if there is one, and the factors of both overloads."""
    options, factors = list(rest), [None] * len(old)
    align = [bool(options.pop(0))] if options and isinstance(options[0], bool) else []
    if options and isinstance(options[0], list | tuple):  # .vec: factors in a list
        factors = list(options[0])
    elif any(o is not None for o in options):
        factors = options
    if size is None:
        size = [int(n * f) if isinstance(n, int) else None for n, f in zip(old, factors, strict=True)]  # type: ignore[operator]
    return list(size), align, factors


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


_WEIGHTED = {
    "upsample_linear1d": aten.upsample_linear1d.default,
    "upsample_trilinear3d": aten.upsample_trilinear3d.default,
    "upsample_bicubic2d": aten.upsample_bicubic2d.default,
    "_upsample_bilinear2d_aa": aten._upsample_bilinear2d_aa.default,
    "_upsample_bicubic2d_aa": aten._upsample_bicubic2d_aa.default,
}
_GATHERED = tuple(name for name in NEAREST if "upsample_nearest2d" not in name)

ROWS = (
    *(
        row(f"aten.upsample_nearest2d.{overload}", ("Resize", "Gather"), every(floating, known_or_multiplied),
                    keep=True, translate=partial(nearest, aten.upsample_nearest2d.default))
        for overload in ("vec", "default")
    ),
    *(
        row(f"aten.upsample_bilinear2d.{overload}", ("Resize", "MatMul", "Reshape"), every(floating, exact_factors),
                    keep=True, translate=bilinear)
        for overload in ("vec", "default")
    ),
    *(
        row(name, ("Gather",), every(floating, _known_pixels), keep=True, translate=partial(by_places, NEAREST[name]))
        for name in _GATHERED
    ),
    *(
        row(f"aten.{name}.{overload}", ("MatMul", "Reshape"), every(floating, _known_pixels), keep=True,
                    translate=partial(by_weights, resize))
        for name, resize in _WEIGHTED.items()
        for overload in ("vec", "default")
    ),
    row("aten.grid_sampler_2d.default", ("GridSample",), every(floating, rounds_as_torch)),
    row(
        "aten.pixel_shuffle.default", ("Reshape", "Transpose"), every(_static), keep=True, translate=pixel_shuffle
    ),
    row(
        "aten.pixel_unshuffle.default", ("Reshape", "Transpose"), every(_static), keep=True, translate=pixel_unshuffle
    ),
)  # fmt: skip
