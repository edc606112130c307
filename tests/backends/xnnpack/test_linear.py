"""Matrix products against eager."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.backends.xnnpack.harness import run
from tests.support.functions import Function

RTOL, ATOL = 1e-4, 1e-5


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("shape", [(12,), (3, 12), (2, 3, 12), (2, 3, 4, 12)], ids=str)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_linear(shape, bias):
    lowered = run(nn.Linear(12, 7, bias=bias), (torch.randn(shape),), RTOL, ATOL)
    assert lowered.transposes == 0


def test_linear_of_channels_last_map_keeps_its_order():
    class Mlp(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.linear = nn.Conv2d(3, 4, 3), nn.Linear(4, 5)

        def forward(self, x):
            return self.linear(self.conv(x).permute(0, 2, 3, 1))

    assert run(Mlp(), (torch.randn(1, 3, 6, 6),), RTOL, ATOL).transposes == 1  # the input alone


def test_linear_with_constant_weight():
    x, w, b = torch.randn(2, 3, 4), torch.randn(6, 4), torch.randn(6)
    assert run(Function(F.linear), (x, w, b), RTOL, ATOL).transposes == 0
    run(Function(F.linear), (x[0, 0], w), RTOL, ATOL)


class Constant(nn.Module):
    """A function of the input and a constant."""

    def __init__(self, function, *shape):
        super().__init__()
        self.function = function
        self.register_buffer("w", torch.randn(*shape))

    def forward(self, *x):
        return self.function(*x, self.w)


A, B, C = torch.randn(4, 5, 6), torch.randn(4, 6, 7), torch.randn(4, 5, 7)
PRODUCTS = {
    "mm": (Function(torch.mm), (A[0], B[0])),
    "mm with constant": (Constant(torch.mm, 6, 3), (A[0],)),
    "mm with turned constant": (Constant(lambda x, w: x.mm(w.T), 3, 6), (A[0],)),
    "addmm": (Function(torch.addmm, beta=0.5, alpha=2), (C[0], A[0], B[0])),
    "addmm, beta 0": (Function(torch.addmm, beta=0), (C[0], A[0], B[0])),
    "addmm with constant": (Constant(torch.addmm, 6, 7), (C[0], A[0])),
    "bmm": (Function(torch.bmm), (A, B)),
    "bmm with constant": (Constant(torch.bmm, 4, 6, 3), (A,)),
    "baddbmm": (Function(torch.baddbmm, beta=2, alpha=0.5), (C, A, B)),
    "matmul, 4d": (Function(torch.matmul), (torch.randn(2, 3, 4, 5), torch.randn(2, 3, 5, 6))),
    "matmul, fewer dimensions": (Function(torch.matmul), (torch.randn(2, 3, 4, 5), torch.randn(3, 5, 6))),
    "matmul, fewer on the left": (Function(torch.matmul), (torch.randn(4, 5), torch.randn(2, 3, 5, 6))),
    "matmul, broadcast both ways": (Function(torch.matmul), (torch.randn(2, 1, 4, 5), torch.randn(1, 3, 5, 6))),
    "matmul by a matrix": (Function(torch.matmul), (torch.randn(2, 3, 4, 5), torch.randn(5, 6))),
    "matmul by a constant": (Constant(torch.matmul, 5, 6), (torch.randn(2, 3, 4, 5),)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_product(name):
    module, inputs = PRODUCTS[name]
    assert run(module, inputs, RTOL, ATOL).transposes == 0
