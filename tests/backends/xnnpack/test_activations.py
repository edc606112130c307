"""Activations and batch normalisation against eager, small and large values included."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.backends.xnnpack.harness import run
from tests.support.functions import Function

X = torch.cat([torch.linspace(-30, 30, 4001), torch.tensor([0.0, 1e-6, -1e-6, 87.0, -87.0, 1e20, -1e20])])
EXACT = {  # to relative precision
    "relu": F.relu, "relu6": F.relu6, "hardtanh": F.hardtanh, "hardtanh(-0.5, 3)": lambda x: F.hardtanh(x, -0.5, 3),
    "leaky_relu": F.leaky_relu, "leaky_relu(0)": lambda x: F.leaky_relu(x, 0.0),
    "leaky_relu(-0.3)": lambda x: F.leaky_relu(x, -0.3),
    "hardsigmoid": F.hardsigmoid, "elu": F.elu, "elu(0.7)": lambda x: F.elu(x, 0.7), "selu": F.selu,
    "silu": F.silu, "softplus": F.softplus,
    "softplus(2)": lambda x: F.softplus(x, 2.0), "softplus(-2)": lambda x: F.softplus(x, -2.0),
    "log_sigmoid": F.logsigmoid, "softsign": F.softsign,
}  # fmt: skip
CLOSE = {"gelu": F.gelu, "gelu by tanh": lambda x: F.gelu(x, approximate="tanh"), "hardswish": F.hardswish}


def test_relative_precision():
    run(Function(lambda x: tuple(f(x) for f in EXACT.values())), (X,), 1e-5, 1e-36)


def test_absolute_precision():
    # Eager itself cancels where these come near zero.
    run(Function(lambda x: tuple(f(x) for f in CLOSE.values())), (X,), 1e-5, 1e-6)


LARGE = torch.tensor([3e38, -3e38, torch.inf, -torch.inf, torch.nan, 1.5, -1.5])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.leaky_relu(x, 0.0),
        lambda x: F.softplus(x, 1e10),
        lambda x: F.softplus(x, -1e10),
        lambda x: F.softplus(x, 1e-10),
        lambda x: F.elu(x, -1e10),
    ],
    ids=["leaky_relu 0", "softplus 1e10", "softplus -1e10", "softplus 1e-10", "elu"],
)
def test_large_values(function):
    run(Function(function), (LARGE,), 1e-5, 0)


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.PReLU(4), (2, 4, 5, 5)),
        (nn.PReLU(), (5,)),
        (nn.PReLU(4), (3, 4)),
        (nn.Sequential(nn.Conv2d(4, 4, 3), nn.PReLU(4)), (1, 4, 6, 6)),
        (nn.Sequential(nn.Conv1d(4, 4, 3), nn.PReLU(4)), (1, 4, 6)),
    ],
    ids=["map", "vector", "rows", "channels last", "1d channels last"],
)
def test_prelu(module, shape):
    torch.manual_seed(0)
    run(module, (torch.randn(shape),), 1e-4, 1e-5)


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.BatchNorm2d(4), (2, 4, 5, 5)),
        (nn.BatchNorm1d(4), (3, 4)),
        (nn.BatchNorm1d(4, affine=False), (3, 4, 7)),
        (nn.Sequential(nn.ReLU(), nn.Conv2d(3, 4, 1), nn.ReLU(), nn.BatchNorm2d(4)), (2, 3, 5, 5)),
    ],
    ids=["map", "rows", "not affine", "channels last"],
)
def test_batch_norm(module, shape):
    torch.manual_seed(0)
    module.train()(torch.randn(shape) * 2 + 1)
    run(module, (torch.randn(shape),), 1e-4, 1e-5)


def test_activation_keeps_channels_last():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GELU(), nn.Mish(), nn.Conv2d(4, 3, 1), nn.ELU(0.5))
    assert run(module, (torch.randn(1, 3, 6, 6),), 1e-4, 1e-5).transposes == 2
