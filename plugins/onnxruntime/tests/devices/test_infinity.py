"""The HTP has no infinity: what a program names is left to others, and no finite number comes out as a wrong one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import delegate
from tests.support.availability import require
from tests.support.functions import NamedFunction
from tests.support.lowering import assert_same, refused
from tests.support.sampling import every

INF = float("inf")
X = torch.linspace(-3, 3, 32).reshape(1, 2, 4, 4)
LINE = torch.tensor([INF, 1.0, -INF, 2.0])
MASK = torch.zeros(4, 4).masked_fill(torch.ones(4, 4).triu(1) > 0, -INF)
WIDE = torch.tensor([[0.0, -100.0, 5.0, -150.0], [200.0, 3.0, 100.0, -88.0], [-1e3, -3e4, -20.0, 8.0]])


def lower_model(function: Callable[[Tensor], Tensor], x: Tensor, **options: str) -> delegate.CompiledProgram:
    backends = [{"name": "dsp", "options": options}]
    config = {"backends": backends, "partitioning": {"min_partition_size": 0}}
    return delegate.to_backend(torch.export.export(NamedFunction(function).eval(), (x,)), config=config)


NAMED = {
    "sum": lambda x: F.pad(x, (1, 2), value=-INF) + 1,
    "product": lambda x: F.pad(x, (1, 2), value=INF) * 2,
    "moved": lambda x: F.pad(x, (1, 2), value=-INF).reshape(-1).flip(0),
    "joined": lambda x: torch.cat([F.pad(x, (1, 1), value=INF), F.pad(x, (1, 1), value=1.0)], 1) - 1,
    "compared": lambda x: F.pad(x, (1, 1), value=INF) > 1e5,
    "function": lambda x: F.pad(x, (1, 2), value=-INF).relu(),
    "a constant": lambda x: x.abs() * LINE,
    "a mask that is shown": lambda x: (x + MASK) * 2,
    "chosen": lambda x: torch.where(x > 0, x, torch.tensor(-INF)) - 1,
    "quotient": lambda x: 1 / F.pad(x.abs() + 1, (1, 2), value=INF),
    "filled": lambda x: x.masked_fill(x > 0, -INF),
    "filled and summed": lambda x: x.masked_fill(x > 0, INF) + x,
    "filled and exponential": lambda x: x.masked_fill(x > 0, -INF).exp(),
    "filled, for a maximum and a sum": lambda x: (
        x.masked_fill(x > 2.8, -INF).amax(-1) + x.masked_fill(x > 2.8, -INF).sum()
    ),
}


# How many nodes, none of which sees an infinity, stay on the DSP.
BEFORE_INFINITY = {
    **dict.fromkeys(["joined", "a constant", "chosen", "filled", "filled and summed", "filled and exponential"], 1),
    "filled, for a maximum and a sum": 1,
    "quotient": 2,
}


@pytest.mark.parametrize("name", NAMED)
def test_an_infinity_that_the_program_names_is_right(name: str) -> None:
    require("dsp")
    program = lower_model(NAMED[name], X)
    assert sum(n.backend == "dsp" for n in program.report.nodes) == BEFORE_INFINITY.get(name, 0)
    assert_same(program(X), NAMED[name](X), 5e-3)


SOFTMAX = {
    "softmax": lambda x: x.masked_fill(x > 2.8, -INF).softmax(-1),
    "softmax of moved": lambda x: x.masked_fill(x > 1, -INF).reshape(2, 16).softmax(-1),
    "mask": lambda x: (x + MASK).softmax(-1),
}


@pytest.mark.parametrize("name", SOFTMAX)
def test_softmax_beside_minus_infinity_stays(name: str) -> None:
    require("dsp")
    program = lower_model(SOFTMAX[name], X)
    assert {n.backend for n in program.report.nodes if n.op == "aten._softmax.default"} == {"dsp"}
    assert_same(program(X), SOFTMAX[name](X), 5e-3)


# Maxima of nothing but -infinity, which they show: they were -65504.
ALL = {
    "amax": lambda x: x.masked_fill(x < 1, -INF).amax(-1),
    "amin": lambda x: x.masked_fill(x < 1, INF).amin(-1),
    "max": lambda x: x.masked_fill(x < 1, -INF).max(-1).values,
    "max of all": lambda x: x.masked_fill(x < 9, -INF).max(),
    "maximum": lambda x: torch.maximum(x.masked_fill(x < 1, -INF), x.masked_fill(x < 1, -INF)),
    "pool": lambda x: F.max_pool2d(x.masked_fill(x < 1, -INF), 2),
    "a constant": lambda x: (x + torch.full((4, 4), -INF)).amax(-1),
}
MAXIMA = {
    "amax": "aten.amax.default",
    "amin": "aten.amin.default",
    "max": "aten.max.dim",
    "max of all": "aten.max.default",
    "maximum": "aten.maximum.default",
    "pool": "aten.max_pool2d.default",
    "a constant": "aten.amax.default",
}


@pytest.mark.parametrize("name", ALL)
def test_maxima_of_minus_infinity_alone_are_minus_infinity(name: str) -> None:
    require("dsp")
    program = lower_model(ALL[name], X)
    assert MAXIMA[name] in refused(program, "dsp")  # kernels compute it
    assert ALL[name](X).isinf().any()
    assert_same(program(X), ALL[name](X), 5e-3)


EXPONENTS = {
    "exp": lambda x: x.clamp(max=10).exp(),
    "exp2": lambda x: x.clamp(max=10).exp2(),
    "expm1": lambda x: x.clamp(max=10).expm1(),
    "power": lambda x: torch.pow(0.5, x.clamp(min=-10)),
    "log_softmax": lambda x: x.log_softmax(1),
    "softmax": lambda x: x.softmax(1),
    "logaddexp": lambda x: torch.logaddexp(x, x.flip(0)),
    "softplus": F.softplus,
    "elu": F.elu,
    "sigmoid": torch.sigmoid,
    "mish": F.mish,
}


@pytest.mark.parametrize("name", every(3, EXPONENTS))
def test_exponents_beyond_the_range(name: str) -> None:
    """Of finite results: the HTP's exponential wraps around, by which exp(-100) was -131008."""
    require("dsp")
    program = lower_model(EXPONENTS[name], WIDE)
    assert "dsp" in {n.backend for n in program.report.nodes}
    assert_same(program(WIDE), EXPONENTS[name](WIDE), 5e-3)


def test_what_overflows_is_infinite() -> None:
    require("dsp")
    function, given = torch.exp, torch.tensor([-200.0, -100.0, -12.0, 12.0, 88.0, 100.0, 200.0])
    (partition,) = (program := lower_model(function, given)).report.partitions
    assert any("without infinity" in note for note in partition.notes)
    result, expected = program(given), function(given)
    large = expected.abs() > torch.finfo(torch.float16).max
    assert torch.equal(result[large].sign(), expected[large].sign())
    assert bool((result[large].abs() >= torch.finfo(torch.float16).max).all())


@pytest.mark.parametrize(
    "function", [lambda x: 1 / x, torch.rsqrt, torch.log, lambda x: x * 1e5], ids=["1/x", "rsqrt", "log", "x*1e5"]
)
def test_what_makes_infinity_is_noted_or_right(function: Callable[[Tensor], Tensor]) -> None:
    require("dsp")
    given = torch.tensor([0.0, 1.0, 4.0])
    fast, exact = (lower_model(function, given, nan=nan) for nan in ("fast", "exact"))
    (partition,) = fast.report.partitions
    assert any("such as 1e6, become finite numbers" in note for note in partition.notes)
    assert not exact.report.partitions
    assert_same(exact(given), function(given), 1e-6)


@pytest.mark.parametrize(
    "function",
    [torch.neg, torch.relu, lambda x: x + 1, lambda x: x.sum(1), lambda x: torch.cat([x, x])],
    ids=["neg", "relu", "sum", "sum over a dimension", "cat"],
)
@pytest.mark.parametrize("value", [float("nan"), INF, -INF, 1e6])
def test_results_are_finite(function: Callable[[Tensor], Tensor], value: float) -> None:
    """What the note of each partition and the page on special values say."""
    require("dsp")
    given = torch.full((1, 8), value)
    (partition,) = (program := lower_model(function, given)).report.partitions
    assert {node.backend for node in program.report.nodes} == {"dsp"}
    assert any("such as 1e6, become finite numbers" in note for note in partition.notes)
    result = program(given)
    assert result.isfinite().all()
    assert bool((result.abs() >= torch.finfo(torch.float16).max).all()) == (function is not torch.relu or value != -INF)
