"""Convolutions against eager, whole on XNNPACK."""

import pytest
import torch
from torch import nn

import delegate
from tests.backends.xnnpack.harness import run

RTOL, ATOL = 1e-4, 1e-5

CASES_2D = {
    "plain": lambda: nn.Conv2d(8, 6, 3),
    "same padding": lambda: nn.Conv2d(8, 6, 3, padding=1),
    "stride and padding": lambda: nn.Conv2d(8, 6, 3, 2, 1),
    "asymmetric": lambda: nn.Conv2d(8, 6, (3, 1), (1, 2), (0, 2)),
    "even kernel": lambda: nn.Conv2d(8, 6, 4, 1, 2, bias=False),
    "padding='same'": lambda: nn.Conv2d(8, 6, (3, 5), padding="same"),
    "pointwise": lambda: nn.Conv2d(8, 6, 1, bias=False),
    "dilated": lambda: nn.Conv2d(8, 6, 3, 1, 2, dilation=2),
    "grouped": lambda: nn.Conv2d(8, 6, 3, 1, 1, groups=2),
    "one group of one channel each way": lambda: nn.Conv2d(8, 4, 3, groups=4),
    "depthwise": lambda: nn.Conv2d(8, 8, 3, 2, 1, groups=8),
    "depthwise with multiplier": lambda: nn.Conv2d(8, 16, 3, 1, 1, groups=8, bias=False),
    "depthwise dilated": lambda: nn.Conv2d(8, 8, 3, 1, 2, 2, groups=8),
    "transposed": lambda: nn.ConvTranspose2d(8, 6, 3),
    "transposed, doubling": lambda: nn.ConvTranspose2d(8, 6, 4, 2, 1),
    "transposed, output padding": lambda: nn.ConvTranspose2d(8, 6, 3, 2, 1, 1),
    "transposed, output padding beyond the kernel": lambda: nn.ConvTranspose2d(8, 6, 2, 3, 0, (1, 2)),
}
CASES_1D = {
    "plain": lambda: nn.Conv1d(8, 6, 3, padding=1),
    "grouped, stride": lambda: nn.Conv1d(8, 6, 4, 2, 1, groups=2),
    "depthwise": lambda: nn.Conv1d(8, 8, 3, 1, 1, groups=8),
    "transposed": lambda: nn.ConvTranspose1d(8, 6, 3, 2, 1, 1),
}


@pytest.mark.parametrize("name", CASES_2D)
def test_conv2d(name):
    torch.manual_seed(0)
    lowered = run(CASES_2D[name](), (torch.randn(2, 8, 11, 13),), RTOL, ATOL)
    assert lowered.transposes == 2  # in and out, nothing between


@pytest.mark.parametrize("name", CASES_1D)
def test_conv1d(name):
    torch.manual_seed(0)
    assert run(CASES_1D[name](), (torch.randn(2, 8, 15),), RTOL, ATOL).transposes == 2


DEPTHWISE = {
    "7x7, same": ((7, 7), {"padding": 3}),
    "7x7, valid": ((7, 7), {}),
    "7x7, little padding": ((7, 7), {"padding": 1}),
    "7x7, stride": ((7, 7), {"padding": 3, "stride": 2}),
    "7x7, dilated": ((7, 7), {"padding": 6, "dilation": 2}),
    "9x9": ((9, 9), {"padding": 4, "bias": False}),
    "11x11, stride and dilation": ((11, 11), {"padding": 8, "stride": (2, 1), "dilation": (1, 2)}),
    "even": ((6, 8), {"padding": (3, 2)}),
    "a row": ((1, 31), {"padding": (0, 15)}),
}


@pytest.mark.parametrize("name", DEPTHWISE)
@pytest.mark.parametrize("size", [(21, 24), (22, 23)], ids=str)
def test_depthwise_of_many_taps(name, size):
    torch.manual_seed(0)
    kernel, options = DEPTHWISE[name]
    module = nn.Conv2d(3, 3, kernel, groups=3, **options)
    assert run(module, (torch.randn(2, 3, *size),), RTOL, ATOL).transposes == 2


def test_depthwise_of_many_taps_keeps_to_what_xnnpack_unrolls():
    lowered = run(nn.Conv2d(3, 3, 7, padding=3, groups=3), (torch.randn(1, 3, 9, 9),), RTOL, ATOL)
    assert lowered.operators == 2 + 3 + 2 + 2  # transposes, parts, sums, paddings that are not the same on both sides


def test_chain_stays_channels_last():
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 1, 1, groups=8), nn.Hardswish(), nn.Conv2d(8, 4, 1)
    )
    assert run(module, (torch.randn(1, 3, 12, 12),), RTOL, ATOL).transposes == 2


def test_one_channel_needs_no_transpose():
    torch.manual_seed(0)
    assert run(nn.Conv2d(1, 1, 3), (torch.randn(1, 1, 9, 9),), RTOL, ATOL).transposes == 0


def test_residual_joins_in_one_order():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(4, 4, 3, padding=1)

        def forward(self, x):
            return torch.relu(x + self.conv(x))

    torch.manual_seed(0)
    # The input is transposed for the convolution; the sum uses that copy again.
    assert run(Residual(), (torch.randn(1, 4, 9, 9),), RTOL, ATOL).transposes == 2


def test_nan_spreads_over_the_output_padding_of_a_transposed_convolution():
    """A row of the table of deviations: rows of zeros in the kernel compute the output padding."""
    module, x = nn.ConvTranspose2d(4, 4, 2, 3, output_padding=1).eval(), torch.randn(1, 4, 5, 5)
    x[0, 0, 4, 4] = float("nan")
    program = delegate.to_backend(torch.export.export(module, (torch.randn(1, 4, 5, 5),)), "xnnpack")
    assert [n.backend for n in program.report.nodes] == ["xnnpack"]
    assert not module(x)[..., -1].isnan().any()
    assert program(x)[..., -1].isnan().any()
