"""RReLU: leaky in eval mode, random slopes in training."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from delegate.testing import assert_same
from tests.support.lowering import compiled


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_in_eval_mode_it_is_leaky(dtype):
    x = torch.tensor([-3.0, -0.0, 0.0, 2.0, float("nan"), float("inf"), -float("inf")]).to(dtype)
    module = nn.RReLU(0.2, 0.6).eval()
    assert_same(compiled(module, (x,))(x), module(x))


def test_in_training_slopes_are_within_their_bounds():
    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.rrelu(x, 0.25, 0.75, training=True)

    x = torch.linspace(-2, 2, 1001)
    with pytest.warns(UserWarning, match="exported in training mode"):
        program = compiled(Net(), (x,))
    slopes = program(x) / x
    assert (slopes[x > 0] == 1).all()
    negative = slopes[x < 0]
    assert 0.25 <= negative.min() < 0.3
    assert 0.7 < negative.max() <= 0.75
