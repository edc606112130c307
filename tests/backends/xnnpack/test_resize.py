"""Padding, upsampling and pixel shuffle against eager."""

import pytest
import torch
from torch import nn
from torch.nn.functional import interpolate, pad

from tests.backends.xnnpack.harness import run
from tests.support.functions import Function

torch.manual_seed(0)
X = torch.randn(2, 3, 6, 7)
INFINITE = X.clone()
INFINITE[0, 0, 0, 0], INFINITE[1, 1, 2, 2] = torch.inf, -torch.inf

PADS = {
    "zeros": ((1, 2, 3, 0), {}),
    "last": ((2, 2), {}),
    "channels": ((0, 0, 0, 0, 1, 2), {}),
    "crop": ((-1, -2, 0, -1), {}),
    "crop_and_pad": ((-1, 2, 3, -1), {}),
    "reflect": ((2, 1, 3, 2), {"mode": "reflect"}),
    "replicate": ((2, 1, 3, 0), {"mode": "replicate"}),
}


@pytest.mark.parametrize("name", PADS)
def test_pad(name):
    widths, options = PADS[name]
    run(Function(pad, widths, **options), (INFINITE,), 0, 0)


def test_pads_of_other_ranks():
    run(
        Function(lambda x: (nn.ReflectionPad1d(2)(x), nn.ReplicationPad1d((0, 3))(x), nn.ZeroPad1d(1)(x))),
        (X[0],),
        0,
        0,
    )


SIZES = [
    {"size": (12, 14)},
    {"size": (3, 11)},
    {"scale_factor": 2.0},
    {"scale_factor": 0.5, "recompute_scale_factor": True},
    {"size": (1, 1)},
]


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_bilinear(size, align_corners):
    run(Function(interpolate, **size, mode="bilinear", align_corners=align_corners), (X,), 1e-5, 2e-6)


@pytest.mark.parametrize("size", [*SIZES, {"scale_factor": (3.0, 1.5)}], ids=str)
def test_nearest(size):
    run(Function(interpolate, **size, mode="nearest"), (INFINITE,), 0, 0)


def test_nearest_exact():
    run(Function(interpolate, size=(4, 9), mode="nearest-exact"), (X,), 0, 0)


SHUFFLES = {
    "shuffle": (nn.PixelShuffle(2), (2, 12, 3, 4)),
    "shuffle_3": (nn.PixelShuffle(3), (1, 9, 3, 4)),
    "unshuffle": (nn.PixelUnshuffle(2), (2, 3, 4, 6)),
}


@pytest.mark.parametrize("name", SHUFFLES)
def test_pixel_shuffle(name):
    module, shape = SHUFFLES[name]
    assert run(module, (torch.randn(shape),), 0, 0).transposes == 1


def test_pixel_shuffle_between_convolutions():
    """Check the transposes: one of the input, one of the shuffle, one of the output."""
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.PixelShuffle(2), nn.Conv2d(2, 4, 3), nn.PixelUnshuffle(2))
    assert run(module, (X[..., :6],), 1e-4, 1e-5).transposes == 3


def test_upsampling_after_a_convolution_stays_in_nhwc():
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Upsample(scale_factor=2), nn.ReflectionPad2d(1), nn.Conv2d(4, 2, 3))
    assert run(module, (X,), 1e-4, 1e-5).transposes == 2
