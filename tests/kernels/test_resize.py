"""Padding, resizing and sampling kernels against torch eager."""

import pytest
import torch

import delegate
from tests.support.functions import Function
from tests.support.kernels import check, sample
from tests.support.lowering import assert_same

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
    (aten.replication_pad2d.default, (3, 5, 4), [2, 3, 1, 0]),
    (aten.replication_pad2d.default, (3, 5, 4), [-1, 3, 1, -2]),
    (aten.replication_pad3d.default, (1, 2, 3, 4, 5), [1, 2, 0, 1, 2, 2]),
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [[26, 12], [13, 36], [52, 24], [39, 60], [26, 3]], ids=str)
@pytest.mark.parametrize("name", ["upsample_bilinear2d", "_upsample_bilinear2d_aa"])
def test_growth_by_whole_factors(name, size, dtype):
    x = sample(2, 3, 13, 12, dtype=dtype)
    check(getattr(aten, name).default, x, size, False, atol=2e-5)
    check(getattr(aten, name).default, x, size, False, size[0] / 13, size[1] / 12, atol=2e-5)


@pytest.mark.parametrize("align", [True, False])
@pytest.mark.parametrize("size", [[3, 2], [1, 1], [4, 3], [2, 40]], ids=str)
@pytest.mark.parametrize("name", ["bilinear2d", "bicubic2d", "bilinear2d_aa", "bicubic2d_aa"])
def test_few_places_of_a_large_image(name, size, align):
    op = getattr(aten, f"_upsample_{name}" if "aa" in name else f"upsample_{name}")
    check(op.default, sample(2, 3, 90, 70), size, align, atol=2e-5)
    check(op.default, sample(2, 90, 70, 3).permute(0, 3, 1, 2), size, align, atol=2e-5)


@pytest.mark.parametrize("size", [[26, 24], [6, 7], [30, 3]], ids=str)
@pytest.mark.parametrize("name", ["_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"])
def test_what_is_not_a_number_spreads_as_far_as_it_is_weighed(name, size):
    x = sample(2, 3, 13, 12)
    x[0, 0, 6, 6] = x[1, 2, 0, 11] = x[0, 1, 12, 0] = torch.nan
    x[0, 2, 0, 0] = x[1, 0, 12, 11] = x[1, 1, 5, 7] = torch.inf
    check(getattr(aten, name).default, x, size, False, atol=2e-5)


@pytest.mark.parametrize("align", [True, False])
@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_grid_sampler(mode, padding, align):
    grid = sample(2, 4, 6, 2, scale=1.0)
    check(aten.grid_sampler_2d.default, sample(2, 3, 7, 5), grid, mode, padding, align, atol=5e-5, rtol=1e-4)
    for channels in (3, 9):  # of images that have many more pixels than are asked for
        large = sample(2, channels, 31, 40)
        large[:, :, -1, -1] = large[:, :, 0, 0] = torch.nan  # beside which a point outside is 0
        check(aten.grid_sampler_2d.default, large, grid[:, :1, :2] * 2, mode, padding, align, atol=5e-5, rtol=1e-4)
    many = sample(2, 40, 40, 2, scale=1.0, dtype=torch.float64)
    for channels in (3, 9):  # of images that are gathered one by one
        for size in ((7, 5), (230, 240)):
            x = sample(2, channels, *size, dtype=many.dtype)
            check(aten.grid_sampler_2d.default, x, many, mode, padding, align)
    batch = sample(9000, 2, 1, 2, scale=1.0, dtype=torch.float64)  # of which a part is gathered at a time
    check(aten.grid_sampler_2d.default, sample(9000, 2, 3, 2, dtype=batch.dtype), batch, mode, padding, align)
    wide = sample(2, 4, 6, 2, scale=1.0, dtype=torch.float64)
    check(aten.grid_sampler_2d.default, sample(2, 3, 7, 5, dtype=torch.float64), wide, mode, padding, align)


@pytest.mark.parametrize("name", ["upsample_bilinear2d", "_upsample_bilinear2d_aa",
                                  "_upsample_bicubic2d_aa"])  # fmt: skip
@pytest.mark.parametrize("shape", [(1, 3, 20, 30), (2, 1, 7, 9), (1, 6, 33, 17), (1, 3, 2, 5)], ids=str)
def test_bytes_are_those_of_torch(name, shape):
    """Compare for equality, because torch computes bytes in integers."""
    op = getattr(torch.ops.aten, name)
    x = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    x[0, 0] = torch.where(x[0, 0] > 127, 255, 0)  # cubic weights go beyond both ends
    for size in ((40, 60), (7, 9), (13, 5), (3, 4), shape[2:]):
        for align in (False, True):
            check(op.vec, x, list(size), align, None)
            check(op.default, x, list(size), align)
    for factors in ((1.7, 2.3), (0.6, 0.4)):
        check(op.vec, x, None, False, list(factors))


# A factor of 1.3 leaves 2 and 3 elements: torch then copies with some operators, and with others goes by the factor.
UNCHANGED = [
    (1, "nearest"), (2, "nearest"), (3, "nearest"), (1, "linear"), (2, "bilinear"), (2, "bicubic"), (3, "trilinear"),
]  # fmt: skip


@pytest.mark.parametrize(("backends", "is_dynamic"), [([], False), ([], True), (["xnnpack"], False)], ids=str)
@pytest.mark.parametrize(("rank", "mode"), UNCHANGED)
def test_a_factor_that_leaves_the_size(rank, mode, backends, is_dynamic):
    module = Function(torch.nn.functional.interpolate, scale_factor=1.3, mode=mode)
    x = torch.randn(1, 2, *([2] * rank))
    dynamic = {2: torch.export.Dim("size", min=2, max=16)} if is_dynamic else None
    exported = torch.export.export(module, (x,), dynamic_shapes=None if dynamic is None else ((dynamic,),))
    program = delegate.to_backend(exported, backends)
    assert {n.backend for n in program.report.nodes} <= {"portable", *backends}
    for size in (2, 3, 5) if is_dynamic else (2,):
        x = torch.randn(1, 2, size, *([2] * (rank - 1)))
        assert_same(program(x), module(x), 1e-6)
