"""Outputs of a region: results in any order, twice, inputs and constants among them; transposes are shared."""

import pytest
import torch
from torch import nn

from tests.backends.xnnpack.harness import run
from tests.support.functions import Function


class Conv(nn.Module):
    """A function of the input and of a convolution of it."""

    def __init__(self, function):
        super().__init__()
        self.conv, self.function = nn.Conv2d(3, 4, 3, padding=1), function

    def forward(self, x):
        return self.function(x, self.conv(x))


def test_permuted_results_need_no_transpose():
    torch.manual_seed(0)
    module = Conv(lambda x, y: (y.permute(0, 2, 3, 1), y.flatten(2).transpose(1, 2)))
    assert run(module, (torch.randn(2, 3, 6, 6),), 1e-4, 1e-5).transposes == 1  # the input


def test_readers_of_one_order_share_a_transpose():
    torch.manual_seed(0)
    module = Conv(lambda x, y: (y.flatten(1), y, y.reshape(8, 36)))
    assert run(module, (torch.randn(2, 3, 6, 6),), 1e-4, 1e-5).transposes == 2


def test_value_that_is_an_output_twice():
    torch.manual_seed(0)
    run(
        Conv(lambda x, y: (y, y.permute(0, 2, 3, 1), y.permute(0, 2, 3, 1), torch.relu(x))),
        (torch.randn(2, 3, 6, 6),),
        1e-4,
        1e-5,
    )


def test_input_and_constant_as_output():
    module = nn.Linear(4, 3)
    run(Function(lambda x: (x, x + 1)), (torch.randn(3, 4),))
    run(Conv(lambda x, y: (y.mean(), x)), (torch.randn(1, 3, 6, 6),), 1e-4, 1e-5)

    class Constant(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = module

        def forward(self, x):
            return x + 1, self.linear.weight * 2

    run(Constant(), (torch.randn(2, 4),))


def test_dimensions_of_size_one_move_without_transpose():
    torch.manual_seed(0)
    pooled = Conv(lambda x, y: torch.flatten(torch.nn.functional.adaptive_avg_pool2d(y, 1), 1))
    assert run(pooled, (torch.randn(2, 3, 6, 6),), 1e-4, 1e-5).transposes == 1  # the input


def test_leading_sizes_of_one_that_no_operand_lays_out():
    """Both operands come with fewer dimensions than the result; the next operator counts on all of them."""
    table = torch.randn(1, 2, 32)

    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(table)

        def forward(self, x):
            return torch.split(self.table + x.squeeze(0), 8, 2)

    run(Table(), (torch.randn(1, 2, 32),))


@pytest.mark.filterwarnings("ignore:The tensor attribute:UserWarning")  # of torch, on its own weights
@pytest.mark.parametrize("recurrent", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers(recurrent):
    torch.manual_seed(0)
    run(recurrent(4, 8, num_layers=2, bidirectional=True), (torch.randn(5, 2, 4),))
