"""Convolutions, pools and changes of size against eager, whole on XNNPACK."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import delegate
from delegate.testing import assert_same
from tests.backends.xnnpack.harness import run
from tests.support.functions import Function

torch.manual_seed(0)
X = torch.randn(2, 3, 6, 7)
INFINITE = X.clone()
INFINITE[0, 0, 0, 0], INFINITE[1, 1, 2, 2] = torch.inf, -torch.inf
GLOBAL = torch.randn(2, 6, 13, 11)
GLOBAL[0, 1, 3, 3], GLOBAL[1, 2, 0] = torch.nan, -torch.inf

RESIDUAL = nn.Conv2d(4, 4, 3, padding=1)
CONVOLUTIONS: dict[str, nn.Module] = {  # of [2, 8, 11, 13] or [2, 8, 15]
    "plain": nn.Conv2d(8, 6, 3),
    "same padding": nn.Conv2d(8, 6, 3, padding=1),
    "stride and padding": nn.Conv2d(8, 6, 3, 2, 1),
    "asymmetric": nn.Conv2d(8, 6, (3, 1), (1, 2), (0, 2)),
    "even kernel": nn.Conv2d(8, 6, 4, 1, 2, bias=False),
    "padding='same'": nn.Conv2d(8, 6, (3, 5), padding="same"),
    "pointwise": nn.Conv2d(8, 6, 1, bias=False),
    "dilated": nn.Conv2d(8, 6, 3, 1, 2, dilation=2),
    "grouped": nn.Conv2d(8, 6, 3, 1, 1, groups=2),
    "one group of one channel each way": nn.Conv2d(8, 4, 3, groups=4),
    "depthwise": nn.Conv2d(8, 8, 3, 2, 1, groups=8),
    "depthwise with multiplier": nn.Conv2d(8, 16, 3, 1, 1, groups=8, bias=False),
    "depthwise dilated": nn.Conv2d(8, 8, 3, 1, 2, 2, groups=8),
    "transposed": nn.ConvTranspose2d(8, 6, 3),
    "transposed, doubling": nn.ConvTranspose2d(8, 6, 4, 2, 1),
    "transposed, output padding": nn.ConvTranspose2d(8, 6, 3, 2, 1, 1),
    "transposed, output padding beyond the kernel": nn.ConvTranspose2d(8, 6, 2, 3, 0, (1, 2)),
    "1d": nn.Conv1d(8, 6, 3, padding=1),
    "1d, grouped, stride": nn.Conv1d(8, 6, 4, 2, 1, groups=2),
    "1d, depthwise": nn.Conv1d(8, 8, 3, 1, 1, groups=8),
    "1d, transposed": nn.ConvTranspose1d(8, 6, 3, 2, 1, 1),
}
DEPTHWISE: dict[str, tuple[tuple[int, int], dict[str, Any]]] = {  # kernel and options
    "same": ((7, 7), {"padding": 3}),
    "valid": ((7, 7), {}),
    "little padding": ((7, 7), {"padding": 1}),
    "stride": ((7, 7), {"padding": 3, "stride": 2}),
    "dilated": ((7, 7), {"padding": 6, "dilation": 2}),
    "9x9": ((9, 9), {"padding": 4, "bias": False}),
    "stride and dilation": ((11, 11), {"padding": 8, "stride": (2, 1), "dilation": (1, 2)}),
    "even": ((6, 8), {"padding": (3, 2)}),
    "a row": ((1, 31), {"padding": (0, 15)}),
}
MAX = {
    "plain": (2,), "overlapping, padded": (3, 2, 1), "wide padding": (5, 1, 2), "asymmetric": ((3, 2), (2, 1), (1, 0)),
    "one row": ((1, 3), (1, 2), (0, 1)), "every second": (1, 2), "every second row": (1, (2, 1)),
}  # fmt: skip
AVERAGE: dict[str, dict[str, Any]] = {
    "plain": {"kernel_size": 2},
    "padded": {"kernel_size": 3, "stride": 2, "padding": 1},
    "padding not counted": {"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": False},
    "ceil": {"kernel_size": 3, "stride": 2, "ceil_mode": True},
    "ceil, padded": {"kernel_size": (3, 2), "stride": 2, "padding": 1, "ceil_mode": True},
    "ceil, not counted": {
        "kernel_size": (3, 4), "stride": 2, "padding": 1, "ceil_mode": True, "count_include_pad": False,
    },
    "own divisor": {"kernel_size": 2, "divisor_override": 3},
    "every second": {"kernel_size": 1, "stride": 2},
    "every second, ceil": {"kernel_size": 1, "stride": (2, 3), "ceil_mode": True},
    "gaps": {"kernel_size": 2, "stride": 3},
    "gaps, ceil, not counted": {
        "kernel_size": 2, "stride": (4, 3), "padding": 1, "ceil_mode": True, "count_include_pad": False,
    },
}  # fmt: skip
SIZES: tuple[dict[str, Any], ...] = (
    {"size": (12, 14)}, {"size": (3, 11)}, {"scale_factor": 2.0}, {"size": (1, 1)},
    {"scale_factor": 0.5, "recompute_scale_factor": True},
)  # fmt: skip
PADS: tuple[tuple[tuple[int, ...], str], ...] = (
    ((1, 2, 3, 0), "constant"), ((2, 2), "constant"), ((0, 0, 0, 0, 1, 2), "constant"), ((-1, -2, 0, -1), "constant"),
    ((-1, 2, 3, -1), "constant"), ((2, 1, 3, 2), "reflect"), ((2, 1, 3, 0), "replicate"),
)  # fmt: skip
Resize = Callable[[Tensor], Any]

# Module or function, input, relative and absolute tolerance, and the number of transposes if it matters.
CASES: dict[str, tuple[Any, ...]] = {
    **{
        f"convolution, {name}": (module, torch.randn(2, 8, *((15,) if "1d" in name else (11, 13))), 1e-4, 1e-5, 2)
        for name, module in CONVOLUTIONS.items()
    },
    **{
        f"depthwise of many taps, {name}, {size}": (
            nn.Conv2d(3, 3, kernel, groups=3, **options), torch.randn(2, 3, *size), 1e-4, 1e-5, 2
        )
        for name, (kernel, options) in DEPTHWISE.items() for size in ((21, 24), (22, 23))
    },
    "convolutions in NHWC": (
        nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 1, 1, groups=8), nn.Hardswish(), nn.Conv2d(8, 4, 1)
        ),
        torch.randn(1, 3, 12, 12), 1e-4, 1e-5, 2,
    ),
    "convolution of one channel": (nn.Conv2d(1, 1, 3), torch.randn(1, 1, 9, 9), 1e-4, 1e-5, 0),
    **{
        f"max pool, {name}, ceil {ceil}": (
            nn.MaxPool2d(*MAX[name], ceil_mode=ceil), torch.randn(2, 8, 11, 12) - 3, 0, 0  # zeros as padding would show
        )
        for name in MAX for ceil in (False, True)
    },
    "global max pool": (nn.AdaptiveMaxPool2d(1), GLOBAL, 0, 0),
    **{
        f"average pool, {name}": (nn.AvgPool2d(**options), torch.randn(2, 8, 12, 13), 1e-5, 1e-6)
        for name, options in AVERAGE.items()
    },
    **{
        f"adaptive pool to {size}": (
            Function(torch.ops.aten._adaptive_avg_pool2d.default, list(size)), torch.randn(2, 8, 8, 12), 1e-5, 1e-6
        )
        for size in ((1, 1), (2, 3), (8, 1), (4, 4))
    },
    **{
        f"adaptive pool of uneven windows to {size}": (
            nn.AdaptiveAvgPool2d(size), torch.randn(2, 6, 13, 11), 1e-5, 1e-6
        )
        for size in ((5, 4), (13, 11), (6, 1), (20, 3))
    },
    **{
        str(module): (module, torch.randn(2, 4, 15), 1e-5, 1e-6)
        for module in (
            nn.AvgPool1d(3, 2, 1), nn.AvgPool1d(3, 2, 1, True, False), nn.MaxPool1d(3, 2, 1), nn.AdaptiveAvgPool1d(5)
        )
    },
    **{f"{mode} padding of {widths}": (Function(F.pad, widths, mode=mode), INFINITE, 0, 0) for widths, mode in PADS},
    "padding in one dimension": (
        lambda x: (nn.ReflectionPad1d(2)(x), nn.ReplicationPad1d((0, 3))(x), nn.ZeroPad1d(1)(x)), INFINITE[0], 0, 0,
    ),
    **{
        f"bilinear, {size}, aligned {aligned}": (
            Function(F.interpolate, **size, mode="bilinear", align_corners=aligned), X, 1e-5, 2e-6
        )
        for size in SIZES for aligned in (False, True)
    },
    **{
        f"nearest, {size}": (Function(F.interpolate, **size, mode="nearest"), INFINITE, 0, 0)
        for size in (*SIZES, {"scale_factor": (3.0, 1.5)})
    },
    "nearest, exact": (Function(F.interpolate, size=(4, 9), mode="nearest-exact"), X, 0, 0),
    "nearest in NHWC": (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.Upsample(scale_factor=2), nn.ReflectionPad2d(1), nn.Conv2d(4, 2, 3)), X,
        1e-4, 1e-5, 2,
    ),
    "pixel shuffle": (nn.PixelShuffle(2), torch.randn(2, 12, 3, 4), 0, 0, 1),
    "pixel shuffle by 3": (nn.PixelShuffle(3), torch.randn(1, 9, 3, 4), 0, 0, 1),
    "pixel unshuffle": (nn.PixelUnshuffle(2), torch.randn(2, 3, 4, 6), 0, 0, 1),
    "pixel shuffles between convolutions": (  # transposes of the input, of the shuffle, of the output
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.PixelShuffle(2), nn.Conv2d(2, 4, 3), nn.PixelUnshuffle(2)), X[..., :6],
        1e-4, 1e-5, 3,
    ),
    "sum of a convolution and its input": (  # which is transposed for the convolution, and that copy is used again
        lambda x: torch.relu(x + RESIDUAL(x)), torch.randn(1, 4, 9, 9), 1e-4, 1e-5, 2,
    ),
    **{  # rows of three channels are so short that two more transposes take less time
        f"a number for each of {channels} channels": (
            lambda x: F.avg_pool2d(F.avg_pool2d(x, 2) - torch.arange(float(x.shape[1]))[:, None, None], 2),
            torch.randn(1, channels, 12, 12), 1e-5, 1e-5, transposes,
        )
        for channels, transposes in ((3, 4), (5, 2))
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_as_eager(name: str) -> None:
    given, x, rtol, atol, *transposes = CASES[name]
    lowered = run(given if isinstance(given, nn.Module) else Function(given), (x,), rtol, atol)
    assert not transposes or lowered.transposes == transposes[0]


def test_depthwise_of_many_taps_keeps_to_what_xnnpack_unrolls() -> None:
    lowered = run(nn.Conv2d(3, 3, 7, padding=3, groups=3), (torch.randn(1, 3, 9, 9),), 1e-4, 1e-5)
    assert lowered.operators == 2 + 3 + 2 + 2  # transposes, parts, sums, paddings that are not the same on both sides


@pytest.mark.parametrize(("before", "operators"), [(nn.ReLU(), 7), (nn.ReLU6(), 7), (nn.Hardtanh(), 10)], ids=repr)
def test_padding_with_zeros_where_nothing_is_negative(before: nn.Module, operators: int) -> None:
    lowered = run(nn.Sequential(before, nn.MaxPool2d(3, 2, 1)), (torch.randn(1, 4, 8, 8) - 2,), 0, 0)
    assert lowered.operators - lowered.transposes == operators


def test_nan_spreads_over_the_output_padding_of_a_transposed_convolution() -> None:
    """A row of the table of deviations: rows of zeros in the kernel compute the output padding."""
    module, x = nn.ConvTranspose2d(4, 4, 2, 3, output_padding=1).eval(), torch.randn(1, 4, 5, 5)
    x[0, 0, 4, 4] = float("nan")
    program = delegate.to_backend(torch.export.export(module, (torch.randn(1, 4, 5, 5),)), "xnnpack")
    assert [n.backend for n in program.report.nodes] == ["xnnpack"]
    assert not module(x)[..., -1].isnan().any()
    assert program(x)[..., -1].isnan().any()


IMAGE = torch.arange(36.0).reshape(1, 1, 6, 6) - 10
IMAGE[0, 0, 1, 1], IMAGE[0, 0, 4, 4] = -torch.inf, torch.inf
NOTES: dict[str, tuple[Resize, str]] = {  # of infinities that become NaN -> the operator of the partition's note
    "average of 4": (lambda x: F.avg_pool2d(x, 2), ""),
    "average of 9": (lambda x: F.avg_pool2d(x, 3), ""),
    "average of 2": (lambda x: F.avg_pool2d(x, (1, 2)), "avg_pool2d"),
    "average of 6": (lambda x: F.avg_pool2d(x, (2, 3)), "avg_pool2d"),
    "one average": (lambda x: F.adaptive_avg_pool2d(x, 1), ""),
    "average in one dimension": (lambda x: F.avg_pool1d(x[0], 2), "avg_pool2d"),
    "bilinear": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), "upsample_bilinear2d"),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2, mode="nearest"), ""),
}


@pytest.mark.parametrize(("function", "operator"), NOTES.values(), ids=NOTES)
def test_infinities_are_right_or_noted(function: Resize, operator: str) -> None:
    program = delegate.to_backend(torch.export.export(Function(function), (IMAGE,)), "xnnpack")
    assert {n.backend for n in program.report.nodes} == {"xnnpack"}
    (partition,) = program.report.partitions
    notes = [note for note in partition.notes if "infinities" in note]
    assert notes == ([f"infinities may become NaN in {operator}"] if operator else [])
    result, expected = program(IMAGE), function(IMAGE)
    right = result.isfinite() if operator else torch.ones_like(result, dtype=torch.bool)  # a wrong result is NaN
    assert_same(result[right], expected[right])
