"""Normalization in half precision: training and inference by torch.compile equal eager, under autocast and without."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from delegate.testing import assert_same
from tests.support.sampling import every

from .compiling import Lowered, compile_on

T = torch.Tensor


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 5)

    def forward(self, x: T) -> T:
        return F.cross_entropy(self.layer(x), torch.arange(4) % 5)


def _rows(*norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), *norm, nn.Linear(8, 3))


def _images(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(4, 4, 3), norm, nn.Conv2d(4, 3, 1))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "layer norm": (lambda: _rows(nn.LayerNorm(8)), (4, 8)),
    "layer norm without a bias": (lambda: _rows(nn.LayerNorm(8, bias=False)), (4, 8)),
    "layer norm without weights": (lambda: _rows(nn.LayerNorm(8, elementwise_affine=False)), (4, 8)),
    "RMS norm": (lambda: _rows(nn.RMSNorm(8)), (4, 8)),
    "softmax": (lambda: nn.Sequential(_rows(nn.Softmax(-1)), nn.LogSoftmax(-1)), (4, 8)),
    "cross entropy": (Classifier, (4, 8)),
    "group norm": (lambda: _images(nn.GroupNorm(2, 4)), (2, 4, 6, 6)),
    "group norm without weights": (lambda: _images(nn.GroupNorm(2, 4, affine=False)), (2, 4, 6, 6)),
    "batch norm": (lambda: _images(nn.BatchNorm2d(4)), (2, 4, 6, 6)),
    "batch norm without weights": (lambda: _images(nn.BatchNorm2d(4, affine=False)), (2, 4, 6, 6)),
    "batch norm without statistics": (lambda: _images(nn.BatchNorm2d(4, track_running_stats=False)), (2, 4, 6, 6)),
    "instance norm": (lambda: _images(nn.InstanceNorm2d(4, affine=True)), (2, 4, 6, 6)),
}
DB = {torch.bfloat16: 30.0, torch.float16: 48.0}  # of 8 and of 11 significant bits, rounded at other operators


def decibels(mine: T, reference: T) -> float:
    """Return how far above the difference the reference is."""
    noise = (mine.double() - reference.double()).norm()
    return float(20 * torch.log10(reference.double().norm() / noise.clamp_min(1e-30)))


def run(net: nn.Module, forward: Callable[[T], T], x: T, dtype: torch.dtype, autocast: bool) -> list[T]:
    """Return the result, then the gradients of the input and of the parameters, and buffers."""
    x = x.clone().requires_grad_(net.training)
    with torch.autocast("cpu", dtype) if autocast else contextlib.nullcontext(), torch.set_grad_enabled(net.training):
        y = forward(x)
    if not net.training:
        return [y]
    (y.float() * torch.linspace(0, 1, y.numel()).reshape(y.shape)).sum().backward()
    values = [y.detach(), x.grad, *(p.grad for p in net.parameters()), *(b.clone() for b in net.buffers())]
    net.zero_grad()
    return [value for value in values if value is not None]


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight:UserWarning")  # of torch's RMS norm
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("name", "dtype", "autocast"), every(3, NETWORKS, DB, (True, False)))
def test_as_in_eager(name: str, dtype: torch.dtype, autocast: bool, training: bool, lowered: Lowered) -> None:
    torch.manual_seed(0)
    make, shape = NETWORKS[name]
    net, x = make().train(training), torch.randn(shape)
    if not autocast:
        net, x = net.to(dtype), x.to(dtype)
    reference_net = make().train(training)
    reference_net = reference_net if autocast else reference_net.to(dtype)
    reference_net.load_state_dict(net.state_dict())
    mine = run(net, compile_on(net), x, dtype, autocast)
    reference = run(reference_net, reference_net, x, dtype, autocast)
    largest = max(float(value.double().norm()) for value in reference)
    for a, b in zip(mine, reference, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        if b.is_floating_point() and b.double().norm() > 1e-2 * largest:  # others are sums that cancel
            assert decibels(a, b) > DB[dtype]
        elif not b.is_floating_point():
            assert_same(a, b)
    assert lowered
