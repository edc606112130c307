"""Statistics that norms write, and checks of factorizations, which have effects beside their results."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._higher_order_ops.map import map as map_over

from delegate.testing import assert_same

from .compiling import Lowered, compile_on

T = torch.Tensor
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's own


class Statistics(nn.Module):
    """A norm whose statistics are buffers, with its results and them."""

    def __init__(self, norm: Callable[..., T]) -> None:
        super().__init__()
        self.norm = norm
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("var", torch.ones(3))

    def forward(self, x: T) -> tuple[T, T, T]:
        return self.norm(x, self.mean, self.var) * 2, self.mean + 0, self.var + 0


@pytest.mark.parametrize(
    "norm",
    [
        lambda x, mean, var: F.instance_norm(x, mean, var, use_input_stats=True, momentum=0.3),
        lambda x, mean, var: F.batch_norm(x, mean, var, training=True),
    ],
    ids=["instance_norm", "batch_norm"],
)
def test_statistics_change_as_in_eager(norm: Callable[..., T]) -> None:
    model, other = Statistics(norm), Statistics(norm)
    run = compile_on(model, backends=None)
    with torch.no_grad():
        for number in range(3):
            x = torch.randn(2, 3, 5) * 3 + number
            assert_same(run(x), other(x))
    assert_same([model.mean, model.var], [other.mean, other.var])


def solve(x: T) -> T:
    return torch.linalg.solve(x, x + 1).contiguous()


def alone(x: T) -> T:
    return solve(x) + 1


def beside_cond(x: T) -> T:
    return torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: a - 1, (solve(x),))


def in_map(x: T) -> T:
    return map_over(lambda a: solve(a) + 1, torch.stack([x, x + x.mT]))


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("function", [alone, beside_cond, in_map])
def test_checks_have_no_tokens(
    function: Callable[[T], T], requires_grad: bool, recwarn: pytest.WarningsRecorder, lowered: Lowered
) -> None:
    x = torch.tensor([[4.0, 1.0, 0.5], [1.0, 3.0, 0.25], [0.5, 0.25, 2.0]]).requires_grad_(requires_grad)
    result = compile_on(function)(x)
    assert_same(result.detach(), function(x).detach(), 1e-4)
    if requires_grad:
        (mine,) = torch.autograd.grad(result.sum(), x)
        (theirs,) = torch.autograd.grad(function(x).sum(), x)
        assert_same(mine, theirs, 1e-3)
    assert not [w for w in recwarn if "cannot be lowered" in str(w.message)]
    assert lowered.backends >= {"xnnpack"}
