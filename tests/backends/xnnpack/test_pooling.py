"""Pooling against eager: paddings, ceil mode, divisors."""

import pytest
import torch
from torch import nn

from tests.backends.xnnpack.harness import run
from tests.support.functions import Function

MAX = {
    "plain": (2,),
    "overlapping, padded": (3, 2, 1),
    "wide padding": (5, 1, 2),
    "asymmetric": ((3, 2), (2, 1), (1, 0)),
    "one row": ((1, 3), (1, 2), (0, 1)),
    "every second": (1, 2),
    "every second row": (1, (2, 1)),
}
AVERAGE = {
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


@pytest.mark.parametrize("ceil", [False, True], ids=["floor", "ceil"])
@pytest.mark.parametrize("name", MAX)
def test_max_pool(name, ceil):
    torch.manual_seed(0)
    x = torch.randn(2, 8, 11, 12) - 3  # negative: padding with zeros would show
    run(nn.MaxPool2d(*MAX[name], ceil_mode=ceil), (x,), 0, 0)


@pytest.mark.parametrize(("before", "operators"), [(nn.ReLU(), 7), (nn.ReLU6(), 7), (nn.Hardtanh(), 10)], ids=repr)
def test_padding_with_zeros_where_nothing_is_negative(before, operators):
    torch.manual_seed(0)
    lowered = run(nn.Sequential(before, nn.MaxPool2d(3, 2, 1)), (torch.randn(1, 4, 8, 8) - 2,), 0, 0)
    assert lowered.operators - lowered.transposes == operators


@pytest.mark.parametrize("name", AVERAGE)
def test_avg_pool(name):
    torch.manual_seed(0)
    run(nn.AvgPool2d(**AVERAGE[name]), (torch.randn(2, 8, 12, 13),), 1e-5, 1e-6)


@pytest.mark.parametrize("size", [1, (2, 3), (8, 1), 4], ids=str)
def test_adaptive(size):
    torch.manual_seed(0)
    region_input = torch.randn(2, 8, 8, 12)
    run(Function(torch.ops.aten._adaptive_avg_pool2d.default, [size, size] if isinstance(size, int) else list(size)),
        (region_input,), 1e-5, 1e-6)  # fmt: skip


@pytest.mark.parametrize("size", [(1, 1), (5, 4), (13, 11), (6, 1), (20, 3)], ids=str)
def test_adaptive_of_uneven_windows(size):
    torch.manual_seed(0)
    x = torch.randn(2, 6, 13, 11)
    run(nn.AdaptiveAvgPool2d(size), (x,), 1e-5, 1e-6)


def test_global_max_pool():
    x = torch.randn(2, 6, 13, 11)
    x[0, 1, 3, 3], x[1, 2, 0] = torch.nan, -torch.inf
    run(nn.AdaptiveMaxPool2d(1), (x,), 0, 0)


@pytest.mark.parametrize(
    "module",
    [nn.AvgPool1d(3, 2, 1), nn.AvgPool1d(3, 2, 1, True, False), nn.MaxPool1d(3, 2, 1), nn.AdaptiveAvgPool1d(5)],
    ids=repr,
)
def test_1d(module):
    torch.manual_seed(0)
    run(module, (torch.randn(2, 4, 15),), 1e-5, 1e-6)
