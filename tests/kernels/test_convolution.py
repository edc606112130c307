"""Convolution kernels against torch eager."""

import pytest
import torch

from tests.support.kernels import check, sample

aten = torch.ops.aten

# input, weight, bias, stride, padding, dilation, transposed, output padding, groups
CONVOLUTIONS = {
    "1x1": ((2, 4, 5, 6), (3, 4, 1, 1), True, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
    "1x1 stride": ((2, 4, 7, 6), (3, 4, 1, 1), True, [2, 3], [0, 0], [1, 1], False, [0, 0], 1),
    "1x1 groups": ((2, 4, 5, 6), (6, 2, 1, 1), False, [1, 1], [0, 0], [1, 1], False, [0, 0], 2),
    "1x1 padded": ((1, 2, 3, 3), (2, 2, 1, 1), True, [1, 1], [1, 2], [1, 1], False, [0, 0], 1),
    "3x3": ((2, 3, 8, 9), (5, 3, 3, 3), True, [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
    "3x3 stride dilation": ((1, 3, 11, 12), (5, 3, 3, 2), True, [2, 3], [2, 1], [2, 3], False, [0, 0], 1),
    "no bias": ((1, 3, 8, 8), (5, 3, 3, 3), False, [2, 2], [0, 0], [1, 1], False, [0, 0], 1),
    "groups": ((2, 6, 8, 8), (9, 2, 3, 3), True, [1, 1], [1, 1], [1, 1], False, [0, 0], 3),
    "depthwise 3": ((2, 6, 9, 9), (6, 1, 3, 3), True, [2, 2], [1, 1], [1, 1], False, [0, 0], 6),
    "depthwise 5": ((2, 6, 9, 10), (6, 1, 5, 5), True, [1, 1], [2, 2], [1, 1], False, [0, 0], 6),
    "depthwise 5 stride": ((2, 6, 19, 20), (6, 1, 5, 5), True, [2, 3], [2, 2], [2, 2], False, [0, 0], 6),
    "depthwise 5 many": ((2, 32, 9, 10), (32, 1, 5, 5), True, [1, 1], [2, 2], [1, 1], False, [0, 0], 32),
    "depthwise dilated many": ((2, 32, 19, 20), (32, 1, 3, 5), True, [2, 3], [2, 2], [3, 2], False, [0, 0], 32),
    "depthwise wide": ((1, 2, 7, 90), (2, 1, 5, 5), True, [1, 1], [2, 2], [1, 1], False, [0, 0], 2),
    "depthwise multiplier": ((1, 3, 9, 9), (6, 1, 3, 3), True, [1, 1], [1, 1], [1, 1], False, [0, 0], 3),
    "in turns": ((1, 32, 64, 64), (4, 32, 3, 3), True, [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
    "groups in turns": ((1, 64, 40, 64), (64, 1, 3, 3), True, [1, 1], [1, 1], [1, 1], False, [0, 0], 64),
    "empty batch": ((0, 3, 8, 8), (5, 3, 3, 3), True, [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
    "many images": ((300, 4, 5, 6), (6, 2, 3, 2), True, [2, 1], [1, 0], [1, 2], False, [0, 0], 2),
    "many images in turns": ((1500, 4, 5, 6), (3, 4, 3, 3), True, [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
    "many images depthwise": ((300, 6, 4, 3), (6, 1, 2, 2), True, [1, 1], [0, 0], [1, 1], False, [0, 0], 6),
    "many images 1d": ((300, 4, 10), (6, 4, 3), True, [2], [1], [1], False, [0], 1),
    "many images 3d": ((300, 2, 3, 2, 3), (3, 2, 2, 2, 2), True, [1, 1, 1], [0, 1, 0], [1, 1, 1], False, [0, 0, 0], 1),
    "1d": ((2, 4, 10), (6, 2, 3), True, [2], [1], [1], False, [0], 2),
    "1d depthwise 5": ((2, 44, 10), (44, 1, 5), True, [1], [4], [1], False, [0], 44),
    "3d": ((2, 4, 5, 6, 7), (3, 4, 2, 3, 2), False, [1, 2, 1], [0, 1, 1], [1, 1, 2], False, [0, 0, 0], 1),
    "transposed": ((2, 4, 5, 6), (4, 3, 3, 2), True, [2, 3], [1, 0], [1, 1], True, [1, 2], 1),
    "transposed groups": ((2, 4, 5, 6), (4, 3, 3, 3), True, [2, 2], [1, 1], [2, 1], True, [0, 0], 2),
    "transposed plain": ((1, 4, 5, 6), (4, 3, 2, 2), False, [2, 2], [0, 0], [1, 1], True, [0, 0], 1),
    "transposed cropped": ((1, 4, 5, 6), (4, 3, 3, 3), True, [1, 1], [2, 2], [1, 1], True, [0, 0], 1),
    "transposed 1d": ((2, 4, 5), (4, 3, 4), True, [3], [1], [1], True, [2], 1),
    "transposed 3d": ((1, 2, 3, 4, 3), (2, 3, 2, 3, 2), True, [2, 1, 2], [0, 1, 0], [1, 1, 1], True, [1, 0, 0], 1),
}


def channels(weight: tuple[int, ...], transposed: bool, groups: int) -> int:
    return weight[1] * groups if transposed else weight[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution(name, dtype):
    x, weight, bias, *rest = CONVOLUTIONS[name]
    if dtype in (torch.float16, torch.bfloat16) and "turns" in name:
        pytest.skip("the path does not depend on the dtype, and torch is slow")
    if dtype is torch.int64 and rest[3]:
        pytest.skip("torch has no transposed convolution of integers")
    tolerance = {torch.float16: 1e-2, torch.float32: 5e-5}.get(dtype)
    if dtype is torch.bfloat16 and rest[3]:
        tolerance = 0.1  # results are up to 10, and torch rounds each partial sum of a transposed convolution
    bias_tensor = sample(channels(weight, rest[3], rest[5]), dtype=dtype) if bias else None
    inputs = sample(*x, dtype=dtype, scale=1), sample(*weight, dtype=dtype, scale=1, seed=1)
    check(aten.convolution.default, *inputs, bias_tensor, *rest, rtol=tolerance, atol=tolerance)


def test_strided_input():
    x = sample(2, 9, 8, 3).permute(0, 3, 1, 2)
    check(aten.convolution.default, x, sample(4, 3, 3, 3), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, atol=1e-4)
    check(aten.convolution.default, x, sample(4, 3, 1, 1), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, atol=1e-4)
    check(aten.convolution.default, x, sample(3, 1, 8, 7), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 3, atol=1e-4)


REARRANGED = [
    (aten.col2im.default, [(2, 18, 18), [7, 6], [2, 3], [1, 1], [0, 1], [2, 1]]),
    (aten.pixel_shuffle.default, [(2, 12, 3, 4), 2]),
    (aten.pixel_shuffle.default, [(9, 3, 4), 3]),
    (aten.pixel_unshuffle.default, [(2, 3, 6, 4), 2]),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("op", "args"), REARRANGED, ids=lambda v: str(v)[:60])
def test_rearranged(op, args, dtype):
    rounded = op is aten.col2im.default and dtype is torch.bfloat16  # sums of many: a step of their largest term
    check(op, sample(*args[0], dtype=dtype), *args[1:], atol=5e-2 if rounded else None)
