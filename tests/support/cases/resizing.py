"""What turns a ratio into the index of a pixel: resizing, sampling and pooling, at sizes where roundings differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim
from torch.nn.functional import adaptive_avg_pool2d, grid_sample, interpolate, max_pool2d

from tests.support.lowering import compare

Resized = Callable[[Tensor], Sequence[Tensor]]
SIZES = (4, 7, 11, 16, 22, 28, 32, 44, 64, 88, 92, 97, 133)
FACTORS = (0.1, 0.34, 0.7, 1.02, 1.3, 1.5, 2.0, 2.05, 64 / 26, 3.0, 41.0)


def image(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return one image of two channels, of which no neighbours are equal."""
    return torch.randn(1, 2, *sizes, generator=torch.Generator().manual_seed(0)).to(dtype)


def sizes(mode: str, rank: int, axis: int, others: int = 5) -> Resized:
    """Return a function that resizes one axis to each of SIZES, and the other axes to `others`."""
    targets = [[size if d == axis else others for d in range(rank)] for size in SIZES]
    return lambda x: [interpolate(x, size=target, mode=mode) for target in targets]


def factors(mode: str, **options: Any) -> Resized:
    return lambda x: [
        interpolate(x, scale_factor=f, mode=mode, **options) for f in FACTORS if int(min(x.shape[2:]) * f)
    ]


CASES: Mapping[str, tuple[Resized, Tensor]] = {
    "1-d": (sizes("nearest", 1, 0), image(26)),
    "1-d of 20": (sizes("nearest", 1, 0), image(20)),
    "1-d exact": (sizes("nearest-exact", 1, 0), image(26)),
    "rows": (sizes("nearest", 2, 0), image(26, 7)),
    "columns": (sizes("nearest", 2, 1), image(7, 49)),
    "large": (sizes("nearest", 2, 1, 130), image(130, 20)),
    "rows exact": (sizes("nearest-exact", 2, 0), image(26, 7)),
    "columns exact": (sizes("nearest-exact", 2, 1), image(7, 20)),
    "3-d": (sizes("nearest", 3, 0, 2), image(26, 2, 2)),
    "3-d exact": (sizes("nearest-exact", 3, 2, 2), image(2, 2, 20)),
    "factors": (factors("nearest"), image(26, 20)),
    "factors of 7": (factors("nearest"), image(7, 7)),
    "1-d factors": (factors("nearest"), image(7)),
    "3-d factors": (factors("nearest"), image(7, 3, 7)),
    "factors exact": (factors("nearest-exact"), image(26, 7)),
    "recomputed factors": (factors("nearest", recompute_scale_factor=True), image(26, 20)),
    "half": (sizes("nearest", 2, 1), image(7, 26, dtype=torch.float16)),
    "half exact": (sizes("nearest-exact", 2, 1), image(7, 26, dtype=torch.bfloat16)),
    "double": (sizes("nearest", 1, 0), image(20, dtype=torch.float64)),
    "double planes": (sizes("nearest", 2, 1), image(7, 20, dtype=torch.float64)),
    "double exact": (sizes("nearest-exact", 3, 2, 2), image(2, 2, 20, dtype=torch.float64)),
    "halves that are reflected": (lambda x: [_sample(x, "reflection", False)], image(8, 7)),
    "halves at corners that are reflected": (lambda x: [_sample(x, "reflection", True)], image(8, 7)),
    "halves at the border": (lambda x: [_sample(x, "border", False)], image(8, 7)),
    "windows": (lambda x: [adaptive_avg_pool2d(x, (size, 5)) for size in SIZES], image(26, 7)),
    "weights of size": (lambda x: [interpolate(x, size=(5, s), mode="bilinear") for s in SIZES], image(7, 26)),
    "weights of factors": (factors("bilinear"), image(26, 20)),
    "a size that float32 rounds": (
        lambda x: [interpolate(x, scale_factor=(1.0, 2.05), mode="bilinear")],
        image(2, 200),
    ),
}
ROUNDED = ("windows", "weights of size", "weights of factors", "a size that float32 rounds")  # sums of products


def _sample(x: Tensor, padding: str, corners: bool) -> Tensor:
    """Sample at points in the middle of two pixels, within the image and outside of it."""
    halves = torch.arange(-4, 20) / 2
    rows, columns = (halves * 2 / (s - 1) - 1 if corners else (halves * 2 + 1) / s - 1 for s in x.shape[2:])
    grid = torch.stack(torch.meshgrid(columns, rows, indexing="xy"), -1)[None]
    return grid_sample(x, grid, mode="nearest", padding_mode=padding, align_corners=corners)


def compare_pixels(name: str, backends: Sequence[str]) -> frozenset[str]:
    """Compare a case with eager, its pixels exactly; return the operators that ran on backends."""
    function, x = CASES[name]
    return compare(function, [(x,)], backends, tolerance=1e-5 if name in ROUNDED else 0)


_HEIGHT, _WIDTH = (Dim(name, min=4, max=300) for name in ("height", "width"))
FREE = {2: _HEIGHT, 3: _WIDTH}
EVEN = {2: 2 * Dim("half_height", min=2, max=150), 3: 2 * Dim("half_width", min=2, max=150)}
# Function, sizes, and if libraries read the same pixels whatever the sizes are.
DYNAMIC: Mapping[str, tuple[Callable[[Tensor], Tensor], dict[int, Any], bool]] = {
    "twice": (lambda x: interpolate(x, scale_factor=2.0), FREE, True),
    "two factors": (lambda x: interpolate(x, scale_factor=(3.0, 4.0)), FREE, True),
    "as another": (lambda x: interpolate(max_pool2d(x, 2), size=x.shape[2:]), EVEN, True),
    "a factor that float32 rounds down": (lambda x: interpolate(x, scale_factor=41.0), FREE, False),
    "one and a half": (lambda x: interpolate(x, scale_factor=1.5), FREE, False),
    "a size": (lambda x: interpolate(x, size=(64, 88)), FREE, False),
    "as another, rounded": (lambda x: interpolate(max_pool2d(x, 2), size=x.shape[2:]), FREE, False),
    "exact": (lambda x: interpolate(x, scale_factor=1.5, mode="nearest-exact"), FREE, False),
    "weights": (lambda x: interpolate(x, scale_factor=2.0, mode="bilinear"), FREE, True),
    "weights of a factor that float32 rounds": (
        lambda x: interpolate(x, scale_factor=2.05, mode="bilinear"), FREE, False
    ),
}  # fmt: skip


def compare_sizes(name: str, backends: Sequence[str]) -> bool:
    """Compare a case of DYNAMIC with eager at several sizes; return true if its resizing ran on a backend."""
    function, dims, _ = DYNAMIC[name]
    calls = [(image(*size),) for size in ((26, 20), (8, 14), (50, 98), (200, 200))]
    ran = compare(function, calls, backends, (dims,), 1e-5 if "weights" in name else 0)
    return any("upsample" in op for op in ran)
