"""Normalisations and softmax against eager, in row-major and in NHWC, with dynamic sizes."""

import pytest
import torch
from torch import nn
from torch.export import Dim

from tests.backends.xnnpack.harness import assert_as_eager, lower, run
from tests.support.functions import Function

torch.manual_seed(0)
X = torch.randn(2, 6, 4, 5) * 2 + 0.5


def randomised(module: nn.Module) -> nn.Module:
    """Return the module with random parameters."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return module


class Permuted(nn.Module):
    """A module applied to channels-last memory: after a convolution and a permute."""

    def __init__(self, inner, last):
        super().__init__()
        self.conv, self.inner, self.last = randomised(nn.Conv2d(6, 6, 1)), inner, last

    def forward(self, x):
        x = self.conv(x)
        return self.inner(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2) if self.last else self.inner(x)


def infinite() -> torch.Tensor:
    x = X.clone()
    x[0, :, 0, 0] = -torch.inf
    x[1, 0, 0, 1] = torch.inf
    x[1, 2, 0, 2] = -torch.inf
    return x


MODULES = {
    "layer_norm": nn.LayerNorm(5),
    "layer_norm_of_two": nn.LayerNorm((4, 5), eps=1e-3),
    "layer_norm_plain": nn.LayerNorm(5, elementwise_affine=False),
    "layer_norm_without_bias": nn.LayerNorm(5, bias=False),
    "group_norm": nn.GroupNorm(3, 6),
    "group_norm_one": nn.GroupNorm(1, 6, affine=False),
    "group_norm_each": nn.GroupNorm(6, 6),
    "instance_norm": nn.InstanceNorm2d(6, affine=True),
    "instance_norm_plain": nn.InstanceNorm2d(6),
    "rms_norm": nn.RMSNorm(5),
    "rms_norm_plain": nn.RMSNorm((4, 5), eps=1e-2, elementwise_affine=False),
    "softmax_last": nn.Softmax(-1),
    "softmax_channels": nn.Softmax(1),
    "softmax_first": nn.Softmax(0),
    "log_softmax": nn.LogSoftmax(-1),
    "log_softmax_channels": nn.LogSoftmax(1),
}


@pytest.mark.parametrize("name", MODULES)
def test_row_major(name):
    assert (
        run(randomised(MODULES[name]), (X,), 1e-5, 2e-6).transposes
        == (name in ("softmax_channels", "softmax_first")) * 2
    )


@pytest.mark.parametrize(
    "name", ["group_norm", "group_norm_each", "instance_norm", "softmax_channels", "log_softmax_channels"]
)
def test_after_convolution(name):
    """Check that NHWC needs transposes of the input and of the output only."""
    assert run(Permuted(randomised(MODULES[name]), False), (X,), 1e-4, 1e-5).transposes <= 2


@pytest.mark.parametrize("module", [nn.LayerNorm(6), nn.RMSNorm(6), nn.LayerNorm((5, 6))], ids=str)
def test_channels_last(module):
    assert run(Permuted(randomised(module), True), (X,), 1e-4, 1e-5).transposes <= 2


@pytest.mark.parametrize("shape", [(4, 6), (2, 6, 5), (2, 6, 3, 2, 4), (2, 6, 1, 2, 1, 2)], ids=str)
def test_group_norm_ranks(shape):
    run(randomised(nn.GroupNorm(2, 6)), (torch.randn(shape),), 1e-5, 2e-6)


def test_far_from_zero():
    run(nn.LayerNorm(64), (torch.randn(3, 64) + 1000,), 1e-3, 1e-3)


def test_log_softmax_does_not_underflow():
    run(nn.LogSoftmax(-1), (torch.tensor([[0.0, -200.0, 300.0], [1.0, -torch.inf, 2.0]]),))


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "softmax_last", "log_softmax"])
def test_dynamic(name):
    module = randomised(MODULES[name])
    sizes = {0: Dim("n", min=2, max=64), 2: Dim("h", min=2, max=64)}
    lowered = lower(module, (X,), (sizes,))
    for x in (X, torch.randn(7, 6, 3, 5), torch.randn(3, 6, 9, 5)):
        assert_as_eager(module, (x,), lowered, 1e-5, 2e-6)


@pytest.mark.parametrize("convolved", [False, True])
def test_dynamic_sizes_of_group_norm(convolved):
    module = randomised(MODULES["group_norm"])
    module = Permuted(module, False) if convolved else module
    lowered = lower(module, (X,), ({d: Dim(f"d{d}", min=2, max=64) for d in (0, 2, 3)},))
    for n, h, w in ((2, 4, 5), (5, 4, 5), (3, 9, 2)):
        assert_as_eager(module, (torch.randn(n, 6, h, w),), lowered, 1e-4, 1e-5)


def test_group_norm_with_weights_of_run_time():
    module = Function(lambda x, w, b: nn.functional.group_norm(x, 3, w, b))
    run(module, (X, torch.randn(6), torch.randn(6)), 1e-5, 2e-6)
