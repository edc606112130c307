"""Resizing and sampling to the nearest pixel: the pixels that torch reads, and whether a library reads the same ones.

Torch multiplies the position of an output by a ratio that is rounded to float32. Libraries divide it by the inverse,
which is rounded otherwise. Where the exact position is a whole number, the two may become different pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.fx import Node

from delegate.backend.deviations import Deviation, Handling
from delegate.edge.node import arguments, op_name, tensor
from delegate.verdict import YES, Reason, Verdict, no

aten = torch.ops.aten
Resize = Callable[..., torch.Tensor]
Size = int | torch.SymInt
NEAREST: Mapping[str, Resize] = {
    f"aten.{name}.{overload}": getattr(aten, name).default
    for name in (f"{kind}{rank}d" for kind in ("upsample_nearest", "_upsample_nearest_exact") for rank in (1, 2, 3))
    for overload in ("vec", "default")
}
_NEAREST, _REFLECTION = 1, 2  # of a grid sample's modes of interpolation and padding
_MULTIPLES = 4096  # pixels over which a whole factor is compared


def nearest_deviations(library: str, test: str, in_the_middle: tuple[str, ...] = ()) -> tuple[Deviation, ...]:
    """Return the rows of a library, e.g. "OpenVINO 2026.4.1", and of a test file.

    Args:
        in_the_middle: the `points` in the row of sampled points between two pixels.
    """
    exact = tuple(name.removesuffix(".vec") for name in NEAREST if name.endswith(".vec"))
    plain = tuple(name for name in exact if "exact" not in name)
    sampler = ("aten.grid_sampler_2d",)
    return (
        Deviation(library, plain, "known sizes such as 26 to 22, whose ratio is rounded", "reads other pixels",
                  "multiplies by the rounded ratio", Handling.REWRITTEN, test, "Torch's pixels are gathered."),
        Deviation(library, exact, "sizes known at run time that do not grow by a whole factor", "may read other pixels",
                  "multiplies by the rounded ratio", Handling.REJECTED, test),
        Deviation(library, sampler, "nearest pixels reflected at the edges of pixels", "rounds before it reflects",
                  "reflects first", Handling.REJECTED, test),
        Deviation(library, sampler, "nearest pixels halfway between two, as in a computed grid (affine_grid)",
                  "may read the other one, since it rounds otherwise", "rounds in its own order",
                  Handling.KEPT, test, points=in_the_middle, is_noted=False),
    )  # fmt: skip


def quotient(a: Size, b: Size) -> int | None:
    """Return a / b if this is an integer for all values of the symbols, else None."""
    top, bottom = (x if isinstance(x, int) else x.node.expr for x in (a, b))
    ratio = sympy.Integer(1) * top / bottom
    return int(ratio) if ratio.is_Integer else None


def factors_of(node: Node) -> list[float | None]:
    """Return the factor of each resized dimension of an upsampling operator; None for those with a size only."""
    named = arguments(node)
    factors = [value for name, value in named.items() if name.startswith("scales")] or named.get("scale_factors")
    return list(factors or [None] * (tensor(node).dim() - 2))


def _sizes(node: Node) -> tuple[list[Any], list[Any]]:
    """Return the sizes of the image before and after."""
    old, new = (list(tensor(n).shape[2:]) for n in (node.all_input_nodes[0], node))
    return old, new


def nearest_pixels(node: Node) -> list[torch.Tensor]:
    """Return for each resized dimension of a node with known sizes the input pixel of each output pixel (int64)."""
    old, new = _sizes(node)
    return chosen_pixels(NEAREST[op_name(node)], old, new, factors_of(node), tensor(node).dtype)


def chosen_pixels(
    resize: Resize, old: Sequence[int], new: Sequence[int], factors: Sequence[float | None], dtype: torch.dtype
) -> list[torch.Tensor]:
    """Return what `nearest_pixels` does, from torch's operator and its sizes before and after.

    Torch resizes a ramp along each dimension: its rounding depends on the sizes of all results and on the dtype. Half
    types compute positions in float32, as here.
    """
    places = []
    for axis, (size, factor) in enumerate(zip(old, factors, strict=True)):
        shape = [size if d == axis else 1 for d in range(len(old))]
        ramp = torch.arange(size, dtype=torch.float64 if dtype is torch.float64 else torch.float32).view(1, 1, *shape)
        resized = resize(ramp, list(new), *[factor if d == axis else None for d in range(len(old))])
        places.append(resized[0, 0].movedim(axis, 0).reshape(new[axis], -1)[:, 0].long())
    return places


def reads_alike(places: torch.Tensor, old: int, new: int, factor: float | None) -> bool:
    """Return true if a library reads torch's pixels, whether it multiplies or divides by the ratio in float32.

    Args:
        places: torch's pixels, from `nearest_pixels`.
        old, new: the sizes before and after.
        factor: the factor by which the library resizes; None for the quotient of the sizes.
    """
    position, one = torch.arange(new, dtype=torch.float32), torch.ones((), dtype=torch.float32)
    ratio = one * new / old if factor is None else one * factor
    exact = torch.arange(new) * old // new if factor is None else torch.arange(new, dtype=torch.float64) / factor
    if old == new:  # some libraries ignore the factor, and some do not
        return factor in (None, 1)
    is_same_size = factor is None or scale_size(old, factor) == new
    return is_same_size and all(
        torch.equal(p.long(), places) for p in (position / ratio, position * (1 / ratio), exact)
    )


def has_known_sizes(node: Node) -> bool:
    """Return true if the sizes of the image are known before it runs, before and after."""
    return all(isinstance(size, int) for sizes in _sizes(node) for size in sizes)


def known_or_multiplied(node: Node) -> Verdict:
    """Sizes of images are known before it runs, or grow by a whole factor for which libraries read torch's pixels."""
    if has_known_sizes(node):
        return YES
    old, new = _sizes(node)
    for before, after, factor in zip(old, new, factors_of(node), strict=True):
        times = quotient(after, before) if factor is None else factor
        if times is None or times < 1 or times != int(times) or not _multiplies_alike(int(times)):
            what = f"{before} to {after} is not a whole factor: of some sizes, libraries read other pixels than torch"
            return no(Reason.DYNAMIC_SHAPE, what)
    return YES


def _multiplies_alike(times: int) -> bool:
    (places,) = chosen_pixels(
        aten.upsample_nearest1d.default, [_MULTIPLES], [_MULTIPLES * times], [None], torch.float32
    )
    return reads_alike(places, _MULTIPLES, _MULTIPLES * times, None)


def keeps_operator(node: Node) -> bool:
    """Return true if a library's own operator reads torch's pixels, for a node with known sizes and no other offset."""
    old, new = _sizes(node)
    return "exact" not in op_name(node) and all(map(reads_alike, nearest_pixels(node), old, new, factors_of(node)))


def exact_factors(node: Node) -> Verdict:
    """Sizes that depend on the inputs have factors that are exact in float32, in which libraries compute new sizes."""
    for size, factor in zip(tensor(node).shape[2:], factors_of(node), strict=True):
        if not isinstance(size, int) and factor is not None and _round_position(factor) != factor:
            return no(Reason.INACCURATE, f"libraries compute {size} in float32, which rounds the factor {factor:g}")
    return YES


def scale_size(size: int, factor: float) -> int:
    """Return the size to which libraries scale one, in float32."""
    return int(torch.tensor(size, dtype=torch.float32) * _round_position(factor))


def _round_position(factor: float) -> float:
    return float(torch.tensor(factor, dtype=torch.float32))


def rounds_as_torch(node: Node) -> Verdict:
    """Points of a grid that are reflected at the edges of pixels are not rounded to the nearest one.

    Torch reflects first, and libraries round first, so that halves between two pixels become different ones.
    """
    args = arguments(node)
    if args["interpolation_mode"] == _NEAREST and args["padding_mode"] == _REFLECTION and not args["align_corners"]:
        return no(
            Reason.INACCURATE, "nearest with reflection: torch reflects a point before it rounds it, not after it"
        )
    return YES
