"""Elementwise operators against eager: values, broadcasting, scalars, orders."""

import pytest
import torch
from torch import nn

import delegate
from delegate.testing import assert_same
from tests.backends.xnnpack.harness import lower, run
from tests.support.functions import Function
from tests.support.lowering import refused

X = torch.cat([torch.linspace(-9, 9, 997), torch.tensor([0.0, 1e-6, -1e-6, 80.0, -80.0, 1e20, -1e20])])
ANY = [
    torch.abs,
    torch.ceil,
    torch.floor,
    torch.neg,
    torch.round,
    torch.square,
    torch.reciprocal,
    torch.sigmoid,
    torch.tanh,
]
POSITIVE = [torch.sqrt, torch.rsqrt, torch.log, torch.log2, torch.log10]
SMALL = [torch.exp, torch.sin, torch.cos]


@pytest.mark.parametrize(
    ("functions", "x"), [(ANY, X), (POSITIVE, X.abs()), (SMALL, X[:999])], ids=["any", "positive", "small"]
)
def test_unary(functions, x):
    run(Function(lambda x: tuple(f(x) for f in functions)), (x,), 1e-5, 3e-7)


def test_power():
    whole = (1, 2, 3, 4, 7, 16, -1, -2, 2.0)
    run(Function(lambda x: tuple(x**n for n in whole)), (X[:997],), 1e-5, 0)
    run(Function(lambda x: (x**0.5, x**-0.5)), (X[:997].abs(),), 1e-5, 0)


SHAPES = [
    ((2, 3, 4, 5), (2, 3, 4, 5)),
    ((2, 3, 4, 5), (4, 1)),
    ((2, 1, 4, 1), (1, 3, 1, 5)),
    ((5,), (2, 3, 4, 5)),
    ((2, 3), ()),
    ((), ()),
]


def all_binary(a, b):
    """Each binary operator on the same two tensors."""
    operators = (torch.add, torch.sub, torch.mul, torch.div, torch.maximum, torch.minimum, torch.rsub)
    return tuple(f(a, b) for f in operators)


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_binary(shapes):
    torch.manual_seed(0)
    a, b = (torch.randn(s) for s in shapes)
    run(Function(all_binary), (a, b + 3))


NUMBERS = {
    "add": lambda x: x + 2,
    "add alpha": lambda x: torch.add(x, x * x, alpha=0.5),
    "sub alpha": lambda x: torch.sub(x, x * x, alpha=2),
    "sub": lambda x: x - 0.25,
    "rsub": lambda x: 1 - x,
    "rsub alpha": lambda x: torch.rsub(x, x * x, alpha=3),
    "mul": lambda x: 3 * x,
    "div": lambda x: x / 7,
    "rdiv": lambda x: 7 / (x.abs() + 1),
    "clamp": lambda x: x.clamp(-0.5, 0.75),
    "clamp min": lambda x: x.clamp(min=0.1),
    "clamp max": lambda x: torch.clamp_max(x, 0.1),
    "clamp to 6": lambda x: x.clamp(0, 6),
}


def test_with_numbers():
    torch.manual_seed(0)
    run(Function(lambda x: tuple(f(x) for f in NUMBERS.values())), (torch.randn(3, 4, 5),))


class Conv(nn.Module):
    """A convolution, then a function of its result, which is in channels-last order."""

    def __init__(self, function):
        super().__init__()
        self.conv, self.function = nn.Conv2d(3, 4, 1), function
        self.register_buffer("scale", torch.randn(4, 1, 1))
        self.register_buffer("columns", torch.randn(6))

    def forward(self, x, *others):
        return self.function(self, self.conv(x), *others)


ORDERS = {
    "constant per channel": (lambda m, y: y * m.scale, ()),
    "constant per column": (lambda m, y: m.columns - y, ()),
    "constant per channel and column": (lambda m, y: y + m.scale * m.columns, ()),
    "input per channel": (lambda m, y, s: y * s, (torch.randn(1, 4, 1, 1),)),
    "input of lower rank": (lambda m, y, s: s - y, (torch.randn(4, 1, 6),)),
    "input per column": (lambda m, y, s: y * s, (torch.randn(6),)),
    "number": (lambda m, y: y * 2 + 1, ()),
}


@pytest.mark.parametrize("name", ORDERS)
def test_orders_meet(name):
    torch.manual_seed(0)
    function, others = ORDERS[name]
    lowered = run(Conv(function), (torch.randn(2, 3, 5, 6), *others), 1e-5, 1e-5)
    small = any(sum(s > 1 for s in o.shape) > 1 for o in others)
    assert lowered.transposes == 2 + small


def test_large_operand_decides_the_order():
    torch.manual_seed(0)
    lowered = run(Conv(lambda m, y, big: y + big), (torch.randn(1, 3, 1, 6), torch.randn(2, 4, 5, 6)), 1e-5, 1e-5)
    assert lowered.transposes == 2  # the convolution's input and its small result; the large sum stays row-major


def test_result_that_is_an_input_or_a_repeated_output():
    def twice(x):
        y = x + 1
        return y, y * 2, y, x

    run(Function(twice), (torch.randn(3, 4),))


def test_constant_nodes_are_folded():
    module = Conv(lambda m, y: y * (m.scale * 2 + 1))
    lowered = run(module, (torch.randn(1, 3, 5, 6),), 1e-5, 1e-5)
    assert lowered.operators == 4  # TRANSPOSE, CONV_2D, MUL, TRANSPOSE


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_constants_of_nan_are_left_to_others(name):
    bound = torch.tensor([1.0, torch.nan, -1.0])
    module, x = Function(lambda x: getattr(torch, name)(x, bound)), torch.tensor([0.5, 0.5, torch.nan])
    program = delegate.to_backend(torch.export.export(module, (x,)), "xnnpack")
    assert refused(program, "xnnpack") == {f"aten.{name}.default": 1}
    assert_same(program(x), module(x))


def test_dynamic_batch_broadcast():
    torch.manual_seed(0)
    module = Function(lambda a, b: a * b + a)
    n = torch.export.Dim("n", min=1, max=32)
    lowered = lower(module, (torch.randn(2, 3, 4), torch.randn(3, 4)), (({0: n}, {}),))
    for size in (2, 7, 1, 7):
        a, b = torch.randn(size, 3, 4), torch.randn(3, 4)
        assert_same(lowered(a, b, shapes=[a.shape])[0], module(a, b))
