"""Reductions against eager: dimensions, keepdim, orders in memory, corrections, infinities."""

import pytest
import torch
from torch import nn

from tests.backends.xnnpack.harness import run
from tests.support.functions import Function

torch.manual_seed(0)
X = torch.randn(2, 3, 4, 5)

DIMS = [(1,), (-1,), (0, 2), (1, 3), (2, 3), (0, 1, 2, 3)]
PLAIN = {"mean": torch.mean, "sum": torch.sum, "amax": torch.amax, "amin": torch.amin}


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dims", DIMS, ids=str)
def test_dimensions(dims, keepdim):
    run(Function(lambda x: tuple(f(x, dim=dims, keepdim=keepdim) for f in PLAIN.values())), (X,), 1e-5, 2e-6)


SAME = {
    "mean": lambda x: x.mean(),
    "sum": lambda x: x.sum(),
    "max": lambda x: x.max(),
    "min": lambda x: x.min() + 1,
    "max_values": lambda x: x.max(1).values,
    "min_values": lambda x: x.min(-2, keepdim=True)[0],
    "var": lambda x: x.var(1),
    "var_biased": lambda x: x.var((1, 2), correction=0, keepdim=True),
    "var_all": lambda x: x.var(),
    "std": lambda x: x.std(-1),
    "std_correction": lambda x: torch.std(x, dim=(2, 3), correction=2),
    "var_mean": lambda x: torch.var_mean(x, dim=(1, 3), correction=0),
    "norm": lambda x: x.norm(dim=1),
    "norm_all": lambda x: x.norm(),
    "norm_1": lambda x: torch.linalg.vector_norm(x, 1, dim=(1, 2)),
    "norm_inf": lambda x: torch.linalg.vector_norm(x, torch.inf, dim=-1, keepdim=True),
    "normalize": lambda x: nn.functional.normalize(x, dim=1),
    "logsumexp": lambda x: torch.logsumexp(x, 1),
    "logsumexp_keep": lambda x: torch.logsumexp(x, (1, 3), keepdim=True),
}


@pytest.mark.parametrize("name", SAME)
def test_same_as_eager(name):
    run(Function(SAME[name]), (X,), 1e-5, 2e-6)


@pytest.mark.parametrize("dims", [(1,), (2, 3), (1, 2)], ids=str)
@pytest.mark.parametrize("keepdim", [False, True])
def test_after_a_permute_nothing_is_transposed(dims, keepdim):
    function = Function(lambda x: x.permute(0, 3, 1, 2).mean(dims, keepdim=keepdim).relu().sum())
    assert run(function, (X,), 1e-5, 2e-6).transposes == 0


def test_logsumexp_of_infinities():
    x = X.clone()
    x[0, :, 0, 0], x[1, 1, 1, 1], x[1, 0, 2, 2] = -torch.inf, torch.inf, -torch.inf
    run(Function(lambda x: torch.logsumexp(x, 1)), (x,))
