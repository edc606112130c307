"""The HTP computes in float16: others run what that makes wrong, and kept errors are as large as their rows say."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, tensor

import delegate
from delegate.verdict import Reason
from tests.support.availability import require
from tests.support.functions import Function
from tests.support.lowering import assert_same, relative_error

X = tensor([2.0, -3.75, 7.5, 5.7, 1000.5, -1.5, 11.0])
Y = tensor([0.3, 1.25, -0.1, 0.3, 0.7, 0.1, 1.1])
RANGE, UNIT = torch.linspace(-8, 8, 513), torch.linspace(-0.9375, 0.9375, 513)


def lower_model(function: Callable[..., Tensor], *inputs: Tensor) -> delegate.CompiledProgram:
    config = {"backends": ["dsp"], "partitioning": {"min_partition_size": 0}}
    return delegate.to_backend(torch.export.export(Function(function), inputs), config=config)


REJECTED: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "remainder": (torch.remainder, (X, Y)),
    "remainder of a number": (lambda x: torch.remainder(7.0, x), (Y,)),
    "remainder by a number": (lambda x: x % 0.3, (X,)),
    "fmod": (torch.fmod, (X, Y)),
    "floor": (lambda x, y: torch.div(x, y, rounding_mode="floor"), (X, Y)),
    "trunc": (lambda x: torch.div(x, 0.3, rounding_mode="trunc"), (X,)),
}


@pytest.mark.parametrize("name", REJECTED)
def test_what_float16_makes_wrong_is_left_to_others(name: str) -> None:
    require("dsp")
    function, inputs = REJECTED[name]
    program = lower_model(function, *inputs)
    (node,) = (n for n in program.report.nodes if n.backend != "dsp")
    assert node.verdicts["dsp"].reason is Reason.INACCURATE
    assert_same(program(*inputs), function(*inputs), 1e-6, each=True)


@pytest.mark.parametrize("mode", ["floor", "trunc"])
def test_quotients_of_integers_stay(mode: str) -> None:
    require("dsp")
    x, y = torch.arange(-20, 20, dtype=torch.int32), torch.arange(1, 41, dtype=torch.int32) % 7 - 8
    program = lower_model(lambda x, y: torch.div(x, y, rounding_mode=mode), x, y)
    assert {n.backend for n in program.report.nodes} == {"dsp"}
    assert_same(program(x, y), torch.div(x, y, rounding_mode=mode), 0)


# Function, input, and bounds of the largest error, relative to the largest result and to 1 at least.
KEPT: dict[str, tuple[Callable[[Tensor], Tensor], Tensor, float, float]] = {
    **{name: (getattr(torch, name), UNIT, 2e-4, 3e-3) for name in ("erf", "sigmoid")},
    **{name: (getattr(F, name), RANGE / 2, 5e-5, 2e-3) for name in ("elu", "selu", "gelu", "silu", "softplus")},
    **{name: (getattr(F, name), RANGE / 2, 5e-5, 2e-3) for name in ("logsigmoid", "hardswish", "hardsigmoid")},
    "mish": (F.mish, RANGE / 2, 1e-3, 5e-3),
    "sin": (torch.sin, RANGE, 2e-3, 8e-3),
    "cos of a large angle": (torch.cos, tensor([1000.0]), 0.05, 1.0),
    "softmax": (lambda x: x.softmax(-1), tensor([100.0, 98.0, 96.0, 95.5]), 4e-3, 2e-2),
    "power": (lambda x: torch.pow(2.5, x) / 59604.6, torch.linspace(0, 12, 65), 2e-3, 6e-3),
    "norm": (lambda x: torch.linalg.vector_norm(x, 2, 0), tensor([300.0, 400.0]), 0.2, 0.4),
    "norm of little": (lambda x: torch.linalg.vector_norm(x, 2, 0) * 1e3, tensor([1e-4, 1e-4]), 0.1, 0.15),
    "deviation": (lambda x: x.std(0), tensor([0.0, 800.0]), 0.2, 0.9),
    "quotient": (lambda x: 1e-3 / x, tensor([1e-5]), 0.2, 0.5),
    "little": (lambda x: x.relu() * 1e8, tensor([1e-8]), 0.9, 1.1),
    "running sum": (lambda x: x.cumsum(0), torch.rand(256, generator=torch.Generator().manual_seed(0)), 1.5e-3, 8e-3),
    "layer norm": (lambda x: F.layer_norm(x, (64,)), 4096 + 4 * torch.arange(64.0).remainder(3), 0.05, 1.0),
    "integers": (lambda x: x.float() * 1e-4, tensor([10**7], dtype=torch.int32), 0.9, 0.999),
}


@pytest.mark.parametrize("name", KEPT)
def test_kept_errors_are_as_large_as_the_table_says(name: str) -> None:
    require("dsp")
    function, x, least, most = KEPT[name]
    program = lower_model(function, x)
    assert "dsp" in {n.backend for n in program.report.nodes}
    assert least < relative_error(program(x).double(), function(x.double()).double(), at_least=1.0) <= most
