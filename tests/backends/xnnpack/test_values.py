"""Operators that compute values, against eager: elementwise, activations, products, reductions, normalisations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import delegate
from delegate.testing import assert_same
from tests.backends.xnnpack.harness import AfterConv, assert_as_eager, lower, run
from tests.support.functions import Function
from tests.support.lowering import refused

torch.manual_seed(0)
X = torch.cat([torch.linspace(-9, 9, 997), torch.tensor([0.0, 1e-6, -1e-6, 80.0, -80.0, 1e20, -1e20])])
WIDE = torch.cat([torch.linspace(-30, 30, 4001), torch.tensor([0.0, 1e-6, -1e-6, 87.0, -87.0, 1e20, -1e20])])
LARGE = torch.tensor([3e38, -3e38, torch.inf, -torch.inf, torch.nan, 1.5, -1.5])
BLOCK, MAP = torch.randn(2, 3, 4, 5), torch.randn(2, 6, 4, 5) * 2 + 0.5
INFINITE = BLOCK.clone()
INFINITE[0, :, 0, 0], INFINITE[1, 1, 1, 1], INFINITE[1, 0, 2, 2] = -torch.inf, torch.inf, -torch.inf

ANY = (torch.abs, torch.ceil, torch.floor, torch.neg, torch.round, torch.square, torch.reciprocal, torch.sigmoid,
       torch.tanh)  # fmt: skip
POSITIVE = (torch.sqrt, torch.rsqrt, torch.log, torch.log2, torch.log10)
RELATIVE = (  # as precise as eager relative to the result
    F.relu, F.relu6, F.hardtanh, lambda x: F.hardtanh(x, -0.5, 3), F.leaky_relu, lambda x: F.leaky_relu(x, 0.0),
    lambda x: F.leaky_relu(x, -0.3), F.hardsigmoid, F.elu, lambda x: F.elu(x, 0.7), F.selu, F.silu, F.softplus,
    lambda x: F.softplus(x, 2.0), lambda x: F.softplus(x, -2.0), F.logsigmoid, F.softsign,
)  # fmt: skip
NEAR_ZERO = (F.gelu, lambda x: F.gelu(x, approximate="tanh"), F.hardswish)  # where eager itself cancels
NUMBERS = (  # scaled sums, and numbers on either side
    lambda x: torch.add(x, x * x, alpha=0.5), lambda x: torch.sub(x, x * x, alpha=2), lambda x: x - 0.25,
    lambda x: 1 - x, lambda x: torch.rsub(x, x * x, alpha=3), lambda x: 3 * x, lambda x: x / 7,
    lambda x: 7 / (x.abs() + 1), lambda x: x.clamp(-0.5, 0.75), lambda x: x.clamp(min=0.1), lambda x: x.clamp(0, 6),
)  # fmt: skip
BINARY = (torch.add, torch.sub, torch.mul, torch.div, torch.maximum, torch.minimum, torch.rsub)
SHAPES = (((2, 3, 4, 5), (2, 3, 4, 5)), ((2, 3, 4, 5), (4, 1)), ((2, 1, 4, 1), (1, 3, 1, 5)), ((5,), (2, 3, 4, 5)),
          ((2, 3), ()), ((), ()))  # fmt: skip
DIMS = ((1,), (-1,), (0, 2), (1, 3), (2, 3), (0, 1, 2, 3))
EXTREMES = (torch.mean, torch.sum, torch.amax, torch.amin)
A, B, C = torch.randn(4, 5, 6), torch.randn(4, 6, 7), torch.randn(4, 5, 7)
E = [torch.randn(2, 3, 4, 5), torch.randn(2, 3, 5, 6)]


def each(functions: Any, **options: Any) -> Callable[..., tuple[Tensor, ...]]:
    """Return a function with the results of several."""
    return lambda *inputs: tuple(f(*inputs, **options) for f in functions)


class Constant(nn.Module):
    """A function of the input and a constant."""

    def __init__(self, function: Callable[..., Tensor], *shape: int) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("w", torch.randn(*shape))

    def forward(self, *x: Tensor) -> Tensor:
        return self.function(*x, self.w)


class Permuted(nn.Module):
    """A module on channels-last memory: after a convolution, and between two permutes if it is along the last."""

    def __init__(self, inner: nn.Module, last: bool) -> None:
        super().__init__()
        self.conv, self.inner, self.last = nn.Conv2d(6, 6, 1), inner, last

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return self.inner(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2) if self.last else self.inner(x)


def trained(module: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    """Return a batch normalisation with statistics."""
    module.train()(torch.randn(shape) * 2 + 1)
    return module.eval()


NORMS: dict[str, tuple[nn.Module, int]] = {  # of MAP, with the number of transposes
    "layer_norm": (nn.LayerNorm(5), 0),
    "layer_norm of two": (nn.LayerNorm((4, 5), eps=1e-3), 0),
    "layer_norm, plain": (nn.LayerNorm(5, elementwise_affine=False), 0),
    "layer_norm without bias": (nn.LayerNorm(5, bias=False), 0),
    "group_norm": (nn.GroupNorm(3, 6), 0),
    "group_norm of one": (nn.GroupNorm(1, 6, affine=False), 0),
    "group_norm of each": (nn.GroupNorm(6, 6), 0),
    "instance_norm": (nn.InstanceNorm2d(6, affine=True), 0),
    "instance_norm, plain": (nn.InstanceNorm2d(6), 0),
    "rms_norm": (nn.RMSNorm(5), 0),
    "rms_norm, plain": (nn.RMSNorm((4, 5), eps=1e-2, elementwise_affine=False), 0),
    "softmax of the last": (nn.Softmax(-1), 0),
    "softmax of channels": (nn.Softmax(1), 2),
    "softmax of the first": (nn.Softmax(0), 2),
    "log_softmax": (nn.LogSoftmax(-1), 0),
    "log_softmax of channels": (nn.LogSoftmax(1), 0),
}
IN_NHWC = ("group_norm", "group_norm of each", "instance_norm", "softmax of channels", "log_softmax of channels")

# Module or function, inputs, relative and absolute tolerance, and the number of transposes if it matters.
CASES: dict[str, tuple[Any, ...]] = {
    "any": (each(ANY), X, 1e-5, 3e-7),
    "positive": (each(POSITIVE), X.abs(), 1e-5, 3e-7),
    "small": (each((torch.exp, torch.sin, torch.cos)), X[:999], 1e-5, 3e-7),
    "powers": (lambda x: tuple(x**n for n in (1, 2, 3, 4, 7, 16, -1, -2, 2.0)), X[:997], 1e-5, 0),
    "roots": (lambda x: (x**0.5, x**-0.5), X[:997].abs(), 1e-5, 0),
    "numbers": (each(NUMBERS), BLOCK, 1e-5, 1e-6),
    **{
        f"binary, {a} and {b}": (each(BINARY), (torch.randn(a), torch.randn(b) + 3), 1e-5, 1e-6) for a, b in SHAPES
    },
    "activations": (each(RELATIVE), WIDE, 1e-5, 1e-36),
    "activations near zero": (each(NEAR_ZERO), WIDE, 1e-5, 1e-6),
    "leaky_relu by 0 of large values": (lambda x: F.leaky_relu(x, 0.0), LARGE, 1e-5, 0),
    "elu by -1e10 of large values": (lambda x: F.elu(x, -1e10), LARGE, 1e-5, 0),
    **{
        f"softplus by {k} of large values": (lambda x, k=k: F.softplus(x, k), LARGE, 1e-5, 0)
        for k in (1e10, -1e10, 1e-10)
    },
    "prelu": (nn.PReLU(4), torch.randn(2, 4, 5, 5), 1e-4, 1e-5),
    "prelu of a vector": (nn.PReLU(), torch.randn(5), 1e-4, 1e-5),
    "prelu of rows": (nn.PReLU(4), torch.randn(3, 4), 1e-4, 1e-5),
    "prelu in NHWC": (nn.Sequential(nn.Conv2d(4, 4, 3), nn.PReLU(4)), torch.randn(1, 4, 6, 6), 1e-4, 1e-5),
    "prelu in NWC": (nn.Sequential(nn.Conv1d(4, 4, 3), nn.PReLU(4)), torch.randn(1, 4, 6), 1e-4, 1e-5),
    "batch_norm": (trained(nn.BatchNorm2d(4), (2, 4, 5, 5)), torch.randn(2, 4, 5, 5), 1e-4, 1e-5),
    "batch_norm of rows": (trained(nn.BatchNorm1d(4), (3, 4)), torch.randn(3, 4), 1e-4, 1e-5),
    "batch_norm, plain": (trained(nn.BatchNorm1d(4, affine=False), (3, 4, 7)), torch.randn(3, 4, 7), 1e-4, 1e-5),
    "batch_norm in NHWC": (
        trained(nn.Sequential(nn.ReLU(), nn.Conv2d(3, 4, 1), nn.ReLU(), nn.BatchNorm2d(4)), (2, 3, 5, 5)),
        torch.randn(2, 3, 5, 5), 1e-4, 1e-5,
    ),
    "activations in NHWC": (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.GELU(), nn.Mish(), nn.Conv2d(4, 3, 1), nn.ELU(0.5)),
        torch.randn(1, 3, 6, 6), 1e-4, 1e-5, 2,
    ),
    # products
    **{
        f"linear of rank {rank}, bias {bias}": (
            nn.Linear(12, 7, bias=bias), torch.randn((2, 3, 4, 12)[4 - rank :]), 1e-4, 1e-5, 0
        )
        for rank in (1, 2, 3, 4) for bias in (True, False)
    },
    "linear of inputs": (F.linear, (torch.randn(2, 3, 4), torch.randn(6, 4), torch.randn(6)), 1e-4, 1e-5, 0),
    "linear of a vector and an input": (F.linear, (torch.randn(4), torch.randn(6, 4)), 1e-4, 1e-5),
    "mm": (torch.mm, (A[0], B[0]), 1e-4, 1e-5, 0),
    "mm with constant": (Constant(torch.mm, 6, 3), A[0], 1e-4, 1e-5, 0),
    "mm with turned constant": (Constant(lambda x, w: x.mm(w.T), 3, 6), A[0], 1e-4, 1e-5, 0),
    "addmm": (Function(torch.addmm, beta=0.5, alpha=2), (C[0], A[0], B[0]), 1e-4, 1e-5, 0),
    "addmm, beta 0": (Function(torch.addmm, beta=0), (C[0], A[0], B[0]), 1e-4, 1e-5, 0),
    "addmm with constant": (Constant(torch.addmm, 6, 7), (C[0], A[0]), 1e-4, 1e-5, 0),
    "bmm": (torch.bmm, (A, B), 1e-4, 1e-5, 0),
    "bmm with constant": (Constant(torch.bmm, 4, 6, 3), A, 1e-4, 1e-5, 0),
    "baddbmm": (Function(torch.baddbmm, beta=2, alpha=0.5), (C, A, B), 1e-4, 1e-5, 0),
    "matmul, 4d": (torch.matmul, (E[0], E[1]), 1e-4, 1e-5, 0),
    "matmul, fewer dimensions": (torch.matmul, (E[0], E[1][0]), 1e-4, 1e-5, 0),
    "matmul, fewer on the left": (torch.matmul, (E[0][0, 0], E[1]), 1e-4, 1e-5, 0),
    "matmul, broadcast both ways": (torch.matmul, (E[0][:, :1], E[1][:1]), 1e-4, 1e-5, 0),
    "matmul by a matrix": (torch.matmul, (E[0], E[1][0, 0]), 1e-4, 1e-5, 0),
    "matmul by a constant": (Constant(torch.matmul, 5, 6), E[0], 1e-4, 1e-5, 0),
    # reductions
    **{
        f"reductions along {dims}, keepdim {keepdim}": (
            each(EXTREMES, dim=dims, keepdim=keepdim), BLOCK, 1e-5, 2e-6
        )
        for dims in DIMS for keepdim in (False, True)
    },
    **{
        f"mean along {dims} of a permutation, keepdim {keepdim}": (
            lambda x, d=dims, k=keepdim: x.permute(0, 3, 1, 2).mean(d, keepdim=k).relu().sum(), BLOCK, 1e-5, 2e-6, 0
        )
        for dims in ((1,), (2, 3), (1, 2)) for keepdim in (False, True)
    },
    "of all": (lambda x: (x.mean(), x.sum(), x.max(), x.min() + 1, x.var(), x.norm()), BLOCK, 1e-5, 2e-6),
    "values of extremes": (lambda x: (x.max(1).values, x.min(-2, keepdim=True)[0]), BLOCK, 1e-5, 2e-6),
    "variances": (
        lambda x: (x.var(1), x.var((1, 2), correction=0, keepdim=True), x.std(-1), x.std((2, 3), correction=2)),
        BLOCK, 1e-5, 2e-6,
    ),
    "var_mean": (lambda x: torch.var_mean(x, dim=(1, 3), correction=0), BLOCK, 1e-5, 2e-6),
    "norm": (lambda x: x.norm(dim=1), BLOCK, 1e-5, 2e-6),
    "norm, 1": (lambda x: torch.linalg.vector_norm(x, 1, dim=(1, 2)), BLOCK, 1e-5, 2e-6),
    "norm, infinite": (lambda x: torch.linalg.vector_norm(x, torch.inf, dim=-1, keepdim=True), BLOCK, 1e-5, 2e-6),
    "normalize": (lambda x: F.normalize(x, dim=1), BLOCK, 1e-5, 2e-6),
    "logsumexp": (lambda x: (x.logsumexp(1), x.logsumexp((1, 3), keepdim=True)), BLOCK, 1e-5, 2e-6),
    "logsumexp of infinities": (lambda x: x.logsumexp(1), INFINITE, 1e-5, 1e-6),
    # normalisations
    **{name: (module, MAP, 1e-5, 2e-6, transposes) for name, (module, transposes) in NORMS.items()},
    **{
        f"group_norm of {len(shape)} dimensions": (nn.GroupNorm(2, 6), torch.randn(shape), 1e-5, 2e-6)
        for shape in ((4, 6), (2, 6, 5), (2, 6, 3, 2, 4), (2, 6, 1, 2, 1, 2))
    },
    "group_norm by inputs": (
        lambda x, w, b: F.group_norm(x, 3, w, b), (MAP, torch.randn(6), torch.randn(6)), 1e-5, 2e-6,
    ),
    "layer_norm far from zero": (nn.LayerNorm(64), torch.randn(3, 64) + 1000, 1e-3, 1e-3),
    "log_softmax that would underflow": (
        nn.LogSoftmax(-1), torch.tensor([[0.0, -200.0, 300.0], [1.0, -torch.inf, 2.0]]), 1e-5, 1e-6,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_as_eager(name: str) -> None:
    given, inputs, rtol, atol, *transposes = CASES[name]
    module = randomised(given) if isinstance(given, nn.Module) else Function(given)
    lowered = run(module, inputs if isinstance(inputs, tuple) else (inputs,), rtol, atol)
    assert not transposes or lowered.transposes == transposes[0]


def randomised(module: nn.Module) -> nn.Module:
    """Return the module with random weights."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return module


@pytest.mark.parametrize("name", IN_NHWC)
def test_norms_after_a_convolution_need_no_transposes_but_of_input_and_output(name: str) -> None:
    assert run(Permuted(randomised(NORMS[name][0]), False), (MAP,), 1e-4, 1e-5).transposes <= 2


@pytest.mark.parametrize("module", [nn.LayerNorm(6), nn.RMSNorm(6), nn.LayerNorm((5, 6))], ids=str)
def test_norms_of_channels_that_are_last_in_memory(module: nn.Module) -> None:
    assert run(Permuted(randomised(module), True), (MAP,), 1e-4, 1e-5).transposes <= 2


def test_linear_of_a_channels_last_map_keeps_its_order() -> None:
    linear = nn.Linear(6, 5)
    lowered = run(AfterConv(lambda x: linear(x.permute(0, 2, 3, 1))), (torch.randn(1, 3, 6, 6),), 1e-4, 1e-5)
    assert lowered.transposes == 1  # the input alone


SCALE, COLUMNS = torch.randn(6, 1, 1), torch.randn(6)
ORDERS: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...], int]] = {  # of a map in NHWC and inputs: transposes
    "constant per channel": (lambda y: y * SCALE, (), 2),
    "constant per column": (lambda y: COLUMNS - y, (), 2),
    "constant per channel and column": (lambda y: y + SCALE * COLUMNS, (), 2),
    "input per channel": (lambda y, s: y * s, (torch.randn(1, 6, 1, 1),), 2),
    "input of lower rank": (lambda y, s: s - y, (torch.randn(6, 1, 6),), 3),
    "input per column": (lambda y, s: y * s, (torch.randn(6),), 2),
    "number": (lambda y: y * 2 + 1, (), 2),
}


class Joined(AfterConv):
    """A function of a convolution's result and of other inputs."""

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        return self.function(self.conv(x), *others)


@pytest.mark.parametrize("name", ORDERS)
def test_orders_meet(name: str) -> None:
    function, others, transposes = ORDERS[name]
    assert run(Joined(function), (torch.randn(2, 3, 5, 6), *others), 1e-5, 1e-5).transposes == transposes


def test_large_operand_decides_the_order() -> None:
    inputs = torch.randn(1, 3, 1, 6), torch.randn(2, 6, 5, 6)
    lowered = run(Joined(lambda y, big: y + big), inputs, 1e-5, 1e-5)
    assert lowered.transposes == 2  # the convolution's input and its small result; the large sum stays row-major


def test_constant_nodes_are_folded() -> None:
    lowered = run(AfterConv(lambda y: y * (SCALE * 2 + 1)), (torch.randn(1, 3, 5, 6),), 1e-5, 1e-5)
    assert lowered.operators == 4  # TRANSPOSE, CONV_2D, MUL, TRANSPOSE


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_constants_of_nan_are_left_to_others(name: str) -> None:
    bound = torch.tensor([1.0, torch.nan, -1.0])
    module, x = Function(lambda x: getattr(torch, name)(x, bound)), torch.tensor([0.5, 0.5, torch.nan])
    program = delegate.to_backend(torch.export.export(module, (x,)), "xnnpack")
    assert refused(program, "xnnpack") == {f"aten.{name}.default": 1}
    assert_same(program(x), module(x))


# Modules or functions, and their dynamic dimensions: of MAP, called with other sizes of these.
DYNAMIC: dict[str, tuple[Any, tuple[int, ...]]] = {
    **{name: (NORMS[name][0], (0, 2)) for name in ("layer_norm", "rms_norm", "softmax of the last", "log_softmax")},
    "group_norm": (NORMS["group_norm"][0], (0, 2, 3)),
    "group_norm in NHWC": (Permuted(NORMS["group_norm"][0], False), (0, 2, 3)),
    "a sum that broadcasts": (Constant(lambda x, w: x * w + x, 6, 1, 5), (0, 2)),
}


@pytest.mark.parametrize("name", DYNAMIC)
def test_dynamic(name: str) -> None:
    module, dims = DYNAMIC[name]
    sizes = {d: torch.export.Dim(f"d{d}", min=2, max=64) for d in dims}
    lowered = lower(randomised(module), (MAP,), (sizes,) if not isinstance(module, Constant) else ((sizes,),))
    for n, h in ((2, 4), (7, 3), (3, 9)):
        x = torch.randn(n, 6, h, h + 1 if 3 in dims else 5)
        assert_as_eager(module, (x,), lowered, 1e-4, 1e-5)
