"""What moves pixels, before what looks at windows of them: DSPs join the two, and then may read other places."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import delegate
from tests.support.availability import require
from tests.support.lowering import assert_runs, assert_same, refused
from tests.support.quantizing import quantized
from tests.support.sampling import only

T = torch.Tensor
Step = Callable[[T], T]

_RANDOM = torch.Generator().manual_seed(0)


def weights(*shape: int) -> T:
    return torch.randn(*shape, generator=_RANDOM) / 2


MIX, BIAS, THREE = weights(4, 4, 1, 1), torch.ones(4), weights(4, 4, 3, 3)
TWO, EACH = weights(4, 4, 2, 2), weights(4, 1, 2, 2)

MOVES: dict[str, Step] = {
    "as it is": lambda x: x,
    "rows": lambda x: x[:, :, 1:],
    "far rows": lambda x: x[:, :, 5:],
    "columns": lambda x: x[..., 1:],
    "last rows": lambda x: x[:, :, -4:],
    "inner": lambda x: x[:, :, 1:-1, 2:-1],
    "channels": lambda x: torch.cat([x[:, 1:], x[:, :1]], 1),
    "rows, then relu": lambda x: x[:, :, 1:].relu(),
    "part": lambda x: x.split(4, 2)[1],
    "roll": lambda x: x.roll(1, 2),
    "roll of two": lambda x: x.roll((-2, 3), (2, 3)),
    "flip": lambda x: x.flip(2),
    "pad before": lambda x: F.pad(x, (1, 0, 1, 0)),
    "pad around": lambda x: F.pad(x, (1, 1, 1, 1), value=0.5),
    "pad and cut": lambda x: F.pad(x, (-1, 2, 0, -1)),
    "joined rows": lambda x: torch.cat([x, x + 1], 2),
    "joined columns": lambda x: torch.cat([x[..., :3], x + 1], 3),
    "repeated": lambda x: x.repeat_interleave(2, 2),
}
WINDOWS: dict[str, Step] = {
    "3x3": lambda x: F.conv2d(x, THREE),
    "3x3, padded": lambda x: F.conv2d(x, THREE, padding=1),
    "2x2": lambda x: F.conv2d(x, TWO),
    "2x2 of each channel": lambda x: F.conv2d(x, EACH, stride=2, groups=4),
    "mean of 2": lambda x: F.avg_pool2d(x, 2, 1),
    "mean of 2, apart": lambda x: F.avg_pool2d(x, 2),
    "mean of 3": lambda x: F.avg_pool2d(x, 3, 1),
    "mean of 2, padded": lambda x: F.avg_pool2d(x, 2, 1, 1),
    "mean of 3, padded": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "largest of 2": lambda x: F.max_pool2d(x, 2, 1),
    "largest of 3": lambda x: F.max_pool2d(x, 3, 2, 1),
    "transposed": lambda x: F.conv_transpose2d(x, TWO, stride=2),
    "resized": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "channels last": lambda x: x.permute(0, 2, 3, 1) + 1,
}
TOLERANCE = {"dsp": 3e-3, "webgpu": 8e-7}  # 7.8e-4 and 2e-7 are measured
IN_INTEGERS = {torch.int8: 4e-2, torch.int16: 2.8e-3}  # 1.6e-2 and 7.2e-4 are measured: one step of the result
# What QNN 2.7 does not load, or computes wrongly: it refuses a node of these.
REFUSED = {("transposed", torch.int16), ("2x2 of each channel", torch.int8)}
QUICK = ("rows", "pad around")
SOME = ("3x3", "mean of 2, padded", "largest of 2")


class Behind(nn.Module):
    """A convolution, what moves its pixels, and what looks at windows of them."""

    def __init__(self, move: Step, window: Step) -> None:
        super().__init__()
        self.move, self.window = move, window

    def forward(self, x: T) -> T:
        return self.window(self.move(F.conv2d(x, MIX, BIAS)))


@pytest.mark.parametrize("window", ["largest of 2", "largest of 3"])
def test_zeros_before_maxima_are_no_padding_of_the_window(window):
    require("webgpu")
    module, x = Behind(MOVES["pad before"], WINDOWS[window]).eval(), torch.randn(2, 4, 8, 6) - 4
    with torch.no_grad():
        program = delegate.to_backend(torch.export.export(module, (x,)), "webgpu")
        assert_runs(program, "webgpu")
        assert_same(program(x), module(x), TOLERANCE["webgpu"])


@pytest.mark.parametrize("backend", ["dsp", pytest.param("webgpu", marks=pytest.mark.slow)])
@pytest.mark.parametrize("window", only(SOME, WINDOWS))
@pytest.mark.parametrize("move", only(QUICK, MOVES))
def test_windows_behind_what_moves(move, window, backend):
    require(backend)
    module = Behind(MOVES[move], WINDOWS[window]).eval()
    for x in (torch.randn(2, 4, 8, 6), torch.randn(1, 4, 19, 21)):
        with torch.no_grad():
            program = delegate.to_backend(torch.export.export(module, (x,)), backend)
            assert_runs(program, backend)
            assert_same(program(x), module(x), TOLERANCE[backend])


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16], ids=str)
@pytest.mark.parametrize("window", only(("mean of 2, apart", "mean of 3, padded", "2x2 of each channel"), WINDOWS))
@pytest.mark.parametrize("move", only(("as it is", "rows, then relu"), MOVES))
def test_in_integers(move, window, dtype):
    require("dsp")
    batches = [(torch.randn(2, 4, 8, 6),) for _ in range(2)]
    module, exported = quantized(Behind(MOVES[move], WINDOWS[window]), batches, dtype, per_channel=False)
    program = delegate.to_backend(exported, "dsp")
    if (window, dtype) in REFUSED:
        assert refused(program, "dsp")
    else:
        assert_runs(program, "dsp")
    with torch.no_grad():
        assert_same(program(*batches[0]), module(*batches[0]), IN_INTEGERS[dtype])
