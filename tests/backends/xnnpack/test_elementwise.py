"""Elementwise operators against eager."""

import pytest
import torch

from tests.backends.xnnpack.harness import Call, run

X = torch.linspace(-4, 4, 24).reshape(2, 3, 4)


@pytest.mark.parametrize("f", [torch.abs, torch.exp, torch.neg, torch.relu, torch.sigmoid], ids=lambda f: f.__name__)
def test_unary(f):
    run(Call(f), (X,))


@pytest.mark.parametrize("f", [torch.add, torch.sub, torch.mul, torch.div], ids=lambda f: f.__name__)
def test_binary(f):
    run(Call(f), (X, X[0] + 0.5))
