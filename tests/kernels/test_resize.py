"""Padding, resizing and sampling kernels against torch eager."""

import pytest
import torch

from tests.kernels.compare import check, sample

aten = torch.ops.aten
DTYPES = [torch.float32, torch.float64, torch.bfloat16]

PADS = [
    (aten.constant_pad_nd.default, (2, 3, 4), [1, 2]),
    (aten.constant_pad_nd.default, (2, 3, 4), [1, 2, 0, 3], 1),
    (aten.constant_pad_nd.default, (2, 3, 4), [-1, 2, 1, -2], 2),
    (aten.constant_pad_nd.default, (2, 3, 4), [-1, -1]),
    (aten.constant_pad_nd.default, (3,), [0, 0]),
    (aten.reflection_pad1d.default, (2, 5), [2, 4]),
    (aten.reflection_pad2d.default, (2, 3, 5, 4), [2, 3, 1, 0]),
    (aten.reflection_pad3d.default, (1, 2, 3, 4, 5), [1, 2, 0, 1, 2, 2]),
    (aten.replication_pad1d.default, (2, 3, 5), [7, 4]),
    (aten.replication_pad2d.default, (3, 5, 4), [2, 3, 1, 0]),
    (aten.replication_pad2d.default, (3, 5, 4), [-1, 3, 1, -2]),
    (aten.replication_pad3d.default, (1, 2, 3, 4, 5), [1, 2, 0, 1, 2, 2]),
    (aten._pad_circular.default, (2, 3, 5), [2, 3]),
    (aten.pad.default, (2, 3, 5), [2, 3], "reflect"),
    (aten.pad.default, (2, 3, 5), [2, 3], "replicate"),
    (aten.pad.default, (2, 3, 5), [2, 3], "circular"),
    (aten.pad.default, (2, 3, 5), [2, 3]),
    (aten.pad.default, (2, 3, 5), [2, 3, 1, 1], "constant", 1.0),
]


@pytest.mark.parametrize("dtype", [*DTYPES, torch.int64])
@pytest.mark.parametrize("case", PADS, ids=str)
def test_pad(case, dtype):
    op, shape, *args = case
    if dtype is torch.int64 and op is not aten.constant_pad_nd.default:
        pytest.skip("torch has most for floating-point numbers only")
    check(op, sample(*shape, dtype=dtype), *args)


SPATIAL = {1: (2, 3, 7), 2: (2, 3, 7, 5), 3: (1, 2, 4, 5, 3)}
SIZES = {1: [[10], [4], [14]], 2: [[10, 9], [3, 5], [14, 10]], 3: [[6, 10, 4], [3, 5, 2]]}
FACTORS = {1: [2.0], 2: [1.7, 2.5], 3: [2.0, 1.3, 0.7]}


@pytest.mark.parametrize("dtype", [*DTYPES, torch.uint8])
@pytest.mark.parametrize("name", ["upsample_nearest{}d", "_upsample_nearest_exact{}d"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_nearest(rank, name, dtype):
    op, x = getattr(aten, name.format(rank)), sample(*SPATIAL[rank], dtype=dtype)
    for size in SIZES[rank]:
        check(op.default, x, size)
        check(op.vec, x, size, None)
    check(op.vec, x, None, FACTORS[rank])
    check(op.default, x, [int(n * f) for n, f in zip(SPATIAL[rank][2:], FACTORS[rank], strict=True)], *FACTORS[rank])


SMOOTH = [
    ("upsample_linear1d", 1),
    ("upsample_bilinear2d", 2),
    ("upsample_trilinear3d", 3),
    ("upsample_bicubic2d", 2),
    ("_upsample_bilinear2d_aa", 2),
    ("_upsample_bicubic2d_aa", 2),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("align", [True, False])
@pytest.mark.parametrize(("name", "rank"), SMOOTH)
def test_interpolate(name, rank, align, dtype):
    if dtype is torch.bfloat16 and rank == 2 and name != "upsample_bilinear2d":
        pytest.skip("torch rounds in between")
    op, x = getattr(aten, name), sample(*SPATIAL[rank], dtype=dtype)
    tolerance = {torch.float32: 2e-5, torch.bfloat16: 5e-2}.get(dtype)
    for size in SIZES[rank]:
        check(op.default, x, size, align, atol=tolerance)
        check(op.vec, x, size, align, None, atol=tolerance)
    check(op.vec, x, None, align, FACTORS[rank], atol=tolerance)


@pytest.mark.parametrize("align", [True, False])
@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_grid_sampler(mode, padding, align):
    grid = sample(2, 4, 6, 2, scale=1.0)
    check(aten.grid_sampler_2d.default, sample(2, 3, 7, 5), grid, mode, padding, align, atol=5e-5, rtol=1e-4)
    wide = sample(2, 4, 6, 2, scale=1.0, dtype=torch.float64)
    check(aten.grid_sampler_2d.default, sample(2, 3, 7, 5, dtype=torch.float64), wide, mode, padding, align)
