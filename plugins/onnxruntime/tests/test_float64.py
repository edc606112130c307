"""Operators on float64 with numbers that float32 does not hold; they were rounded to float32 without a note."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.support.cases.casts import lowered, ran
from tests.support.lowering import assert_same, refused

X = torch.tensor([[0.1, 0.3, -0.7, 1.5], [2.25, -3.1, 0.10000000149011612, 7.7]], dtype=torch.float64)
CASES: dict[str, Callable[[Tensor], Tensor]] = {
    "add": lambda x: x + 0.1,
    "rsub": lambda x: 0.1 - x,
    "mul": lambda x: x * 0.1,
    "mul by a large number": lambda x: x * 1e300,
    "add an integer": lambda x: x + 16777217,
    "div": lambda x: x / 0.1,
    "alpha": lambda x: torch.add(x, x.flip(0), alpha=0.1),
    "power of a number": lambda x: 1.1**x,
    "power": lambda x: x.abs() ** 0.1,
    "fmod": lambda x: torch.fmod(x, 0.3),
    "remainder": lambda x: torch.remainder(x, 0.3),
    "floor of a quotient": lambda x: x // 0.3,
    "eq": lambda x: x == 0.1,
    "le": lambda x: x <= 0.1,
    "clamp": lambda x: x.clamp(-0.1, 0.1),
    "hardtanh": lambda x: F.hardtanh(x, -0.1, 0.1),
    "threshold": lambda x: F.threshold(x, 0.1, 0.3),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.1),
    "celu": lambda x: F.celu(x, 0.3),
    "hardshrink": lambda x: F.hardshrink(x, 0.1),
    "addcmul": lambda x: torch.addcmul(x, x, x.flip(0), value=0.1),
    "addmm": lambda x: torch.addmm(x[:, :2], x[:, :2], x[:, 2:], alpha=0.1, beta=0.3),
    "layer norm": lambda x: F.layer_norm(x, (4,)),
    "rms norm": lambda x: F.rms_norm(x, (4,), eps=1e-5),
    "full": lambda x: x * torch.full((4,), 0.1, dtype=torch.float64),
    "masked_fill": lambda x: x.masked_fill(x > 1, 0.1),
    "where": lambda x: torch.where(x > 1, x, 0.1),
    "pad": lambda x: F.pad(x, (1, 1), value=0.1),
    "log10": lambda x: x.abs().log10(),
    "log2": lambda x: x.abs().log2(),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], scale=0.1),
}

# Case -> the operators that are refused, with the number of their nodes: float32 does not hold their numbers.
REFUSED: dict[str, dict[str, int]] = {
    "add": {"aten.add.Tensor": 1},
    "rsub": {"aten.sub.Tensor": 1},
    "mul": {"aten.mul.Tensor": 1},
    "mul by a large number": {"aten.mul.Tensor": 1},
    "add an integer": {"aten.add.Tensor": 1},
    "div": {"aten.div.Tensor": 1},
    "alpha": {"aten.add.Tensor": 1},
    "power of a number": {"aten.pow.Scalar": 1},
    "power": {"aten.pow.Tensor_Scalar": 1},
    "fmod": {"aten.fmod.Scalar": 1},
    "remainder": {"aten.remainder.Scalar": 1},
    "floor of a quotient": {"aten.div.Tensor_mode": 1},
    "eq": {"aten.eq.Scalar": 1},
    "le": {"aten.le.Scalar": 1},
    "clamp": {"aten.clamp.default": 1},
    "hardtanh": {"aten.hardtanh.default": 1},
    "threshold": {"aten.le.Scalar": 1},
    "leaky_relu": {"aten.leaky_relu.default": 1},
    "celu": {"aten.celu.default": 1},
    "hardshrink": {"aten.hardshrink.default": 1},
    "addcmul": {"aten.addcmul.default": 1},
    "addmm": {"aten.slice.Tensor": 2, "aten.addmm.default": 1},
    "layer norm": {"aten.layer_norm.default": 1},
    "rms norm": {"aten.rms_norm.default": 1},
    "pad": {"aten.constant_pad_nd.default": 1},
    "log10": {"aten.log10.default": 1},
    "log2": {"aten.log2.default": 1},
    "attention": {"aten.unsqueeze.default": 1, "aten.scaled_dot_product_attention.default": 1},
}


@pytest.mark.parametrize("name", CASES)
def test_numbers_keep_their_digits(name: str) -> None:
    program = lowered(CASES[name], X, "onnxruntime")
    assert refused(program, "onnxruntime") == REFUSED.get(name, {})
    assert_same(program(X), CASES[name](X), 1e-14)


@pytest.mark.parametrize("function", [lambda x: x + 0.5, lambda x: x * 3, lambda x: x.clamp(min=0.25)])
def test_exact_numbers_run(function: Callable[[Tensor], Tensor]) -> None:
    program = lowered(function, X, "onnxruntime")
    assert ran(program) == {"onnxruntime"}
    assert_same(program(X), function(X), 0)
