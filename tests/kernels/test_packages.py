"""Kernels of other packages' operators: torchvision's and transformers'."""

from __future__ import annotations

import pytest
import torch

from delegate.errors import KernelError
from tests.support import zoo
from tests.support.detection import torchvision
from tests.support.kernels import check, run, sample
from tests.support.sampling import every


@pytest.fixture(autouse=True, scope="module")
def operators():
    with torchvision(), zoo.libraries():
        import transformers.integrations.moe  # noqa: F401 - registers its operators

        yield torch.ops.torchvision


def boxes(count: int, size: float = 20.0, seed: int = 0) -> torch.Tensor:
    corners = sample(count, 2, seed=seed).abs() * size / 4
    return torch.cat([corners, corners + 1 + sample(count, 2, seed=seed + 1).abs() * size / 6], 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("count", [0, 1, 2, 60])
def test_nms(operators, count, threshold, dtype):
    """Test also equal scores, equal boxes and boxes without an area."""
    corners, scores = boxes(count).to(dtype), sample(count).to(dtype).round(decimals=1)
    if count > 2:
        corners[5], corners[7, 2:] = corners[9], corners[7, :2]
    check(operators.nms.default, corners, scores, threshold)
    check(operators.nms.default, corners.T.contiguous().T, scores, threshold)


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("ratio", every(2, [2, 3, 0, -1]))
@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_roi_align(operators, scale, ratio, aligned):
    """Test also empty regions, and regions that exceed the image or are smaller than a bin."""
    x = sample(2, 3, 14, 17)
    rois = torch.cat([torch.arange(12).remainder(2)[:, None].float(), boxes(12) / scale], 1)
    rois[0, 1:], rois[1, 1:] = torch.tensor([-9.0, -7, 40, 50]) / scale, torch.tensor([3.0, 3, 3, 3]) / scale
    rois[2, 1:] = torch.tensor([30.0, 30, 60, 60]) / scale
    for height, width in ((7, 7), (2, 5)):
        check(operators.roi_align.default, x, rois, scale, height, width, ratio, aligned, rtol=1e-4, atol=1e-4)
    check(operators.roi_align.default, x, rois[:0], scale, 7, 7, ratio, aligned)
    check(operators.roi_align.default, x.transpose(2, 3), rois, scale, 3, 3, ratio, aligned, rtol=1e-4, atol=1e-4)


def test_roi_of_an_image_that_is_not_there(operators):
    rois = torch.tensor([[0.0, 1, 1, 4, 4], [2.0, 1, 1, 4, 4]])
    arguments = (sample(2, 3, 8, 8), rois, 1.0, 2, 2, 2, False)
    with pytest.raises(KernelError, match="images 0 to 2, but there are 2"):
        run(operators.roi_align.default, *arguments, expected=(torch.empty(2, 3, 2, 2),))


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_roi_pool(operators, scale):
    x = sample(2, 3, 14, 17)
    rois = torch.cat([torch.arange(12).remainder(2)[:, None].float(), boxes(12) / scale], 1)
    rois[0, 1:] = torch.tensor([30.0, 30, 60, 60]) / scale
    check(operators.roi_pool.default, x, rois, scale, 4, 3)


@pytest.mark.parametrize("use_mask", [False, True])
@pytest.mark.parametrize(
    ("groups", "offset_groups", "stride", "padding", "dilation"),
    [(1, 1, (1, 1), (0, 0), (1, 1)), (2, 1, (2, 1), (1, 1), (1, 2)), (1, 2, (1, 1), (2, 0), (1, 1)),
     (2, 2, (1, 3), (1, 1), (2, 1))],
)  # fmt: skip
def test_deform_conv2d(operators, groups, offset_groups, stride, padding, dilation, use_mask):
    x, weight, bias = sample(2, 4, 11, 12), sample(6, 4 // groups, 3, 2), sample(6)
    axes = zip((11, 12), (3, 2), stride, padding, dilation, strict=True)
    out = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in axes]
    offset = sample(2, offset_groups * 12, *out, scale=2.0)
    mask = sample(2, offset_groups * 6, *out) if use_mask else torch.zeros(2, 1)
    options = (*stride, *padding, *dilation, groups, offset_groups, use_mask)
    check(operators.deform_conv2d.default, x, weight, offset, mask, bias, *options, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("ends", [[2, 2, 7], [0, 0, 9], [9, 9, 9], [1, 2, 3]], ids=str)
def test_grouped_products(ends, dtype):
    x, weight = sample(9, 5, dtype=dtype), sample(3, 5, 4, dtype=dtype)
    for bounds in (torch.tensor(ends), torch.tensor(ends, dtype=torch.int32)):
        check(torch.ops.transformers.grouped_mm_fallback.default, x, weight, bounds)
        check(torch.ops.transformers.grouped_mm_fallback.default, x, weight.mT.contiguous().mT, bounds)
