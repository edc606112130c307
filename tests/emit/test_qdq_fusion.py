"""Quantized values that only kernels see: rounded at once, not twice, looked up before they are decoded; as torch's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # defines the operators
from torch import nn

import delegate
from delegate.program.instructions import walk
from delegate.program.model import KernelCall
from delegate.testing import assert_same
from tests.support.functions import NamedFunction

Q: Any = torch.ops.quantized_decomposed
INT8: Any = (-128, 127, torch.int8)


def rounded(x: torch.Tensor, scale: float = 0.037, zero: int = -3, kind: Any = INT8) -> torch.Tensor:
    return Q.dequantize_per_tensor.default(Q.quantize_per_tensor.default(x, scale, zero, *kind), scale, zero, *kind)


def by_token(x: torch.Tensor) -> torch.Tensor:
    scales, zeros = Q._choose_qparams_per_token_asymmetric_impl(x, torch.int8)
    coded = Q.quantize_per_token(x, scales, zeros, *INT8)
    return Q.dequantize_per_token(coded, scales, zeros, *INT8, torch.float32) * 2


def at_run_time(x: torch.Tensor) -> torch.Tensor:
    scale, zero = Q.choose_qparams.tensor(x, -128, 127, 1e-5, torch.int8)
    coded = Q.quantize_per_tensor.tensor(x, scale, zero, *INT8)
    return Q.dequantize_per_tensor.tensor(coded, scale, zero, *INT8) + x


def with_its_integers(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    coded = Q.quantize_per_tensor.default(x, 0.05, 4, *INT8)
    return coded, -Q.dequantize_per_tensor.default(coded, 0.05, 4, *INT8)


def decoded_otherwise(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    coded = Q.quantize_per_tensor.default(x, 0.05, 4, *INT8)
    return Q.dequantize_per_tensor.default(coded, 0.05, 4, *INT8), Q.dequantize_per_tensor.default(coded, 0.1, 4, *INT8)


def moved(x: torch.Tensor) -> torch.Tensor:
    y = rounded(x).permute(1, 0)[1:].reshape(-1).relu()
    return rounded(rounded(y)) + 1


def moved_to_other_parameters(x: torch.Tensor) -> torch.Tensor:
    return rounded(rounded(x).permute(1, 0), 0.04)


def one_zero(x: torch.Tensor) -> torch.Tensor:
    return torch.copysign(torch.ones_like(x), rounded(x, 5.0, 0))


def under_a_condition(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda x: rounded(x) + 1, lambda x: rounded(x, 0.1) - 1, (x,))


# Function -> operators of `joined`, and how often a value is quantized apart from them.
CASES: Mapping[str, tuple[Callable[[torch.Tensor], Any], list[str], int]] = {
    "int8": (rounded, ["round_per_tensor"], 0),
    "uint8": (lambda x: rounded(x, 0.05, 128, (0, 255, torch.uint8)), ["round_per_tensor"], 0),
    "int16": (lambda x: rounded(x, 1e-4, 7, (-32768, 32767, torch.int16)), ["round_per_tensor"], 0),
    "int32": (lambda x: rounded(x, 1e-4, 7, (-(2**20), 2**20, torch.int32)), ["round_per_tensor"], 0),
    "4 bits": (lambda x: rounded(x, 0.5, 0, (-8, 7, torch.int8)), ["round_per_tensor"], 0),
    "by token": (by_token, ["round_per_token"], 0),
    "at run time": (at_run_time, ["round_per_tensor"], 0),
    "with its integers": (with_its_integers, ["round_per_tensor"], 1),
    "decoded otherwise": (decoded_otherwise, ["round_per_tensor"], 1),
    "moved": (moved, ["round_per_tensor"], 0),
    "moved to other parameters": (moved_to_other_parameters, ["round_per_tensor"] * 2, 0),
    "one zero": (one_zero, ["round_per_tensor"], 0),
    "under a condition": (under_a_condition, ["round_per_tensor"] * 2, 0),
}


def operators(program: delegate.CompiledProgram) -> list[str]:
    """The operators of all calls of kernels, those of control flow included."""
    made = program.program
    calls = (call for method in made.methods for call in walk(method.instructions))
    return [made.operators[call.operator] for call in calls if isinstance(call, KernelCall)]


@pytest.mark.parametrize("name", CASES)
def test_rounding(name: str) -> None:
    function, expected, apart = CASES[name]
    x = torch.cat([torch.linspace(-9, 9, 30).reshape(5, 6), torch.tensor([[0.0, -0.0, 1e9, -1e9, -0.01, 0.0185]])])
    module = NamedFunction(function)
    batch = torch.export.Dim("batch", min=2, max=20)
    program = delegate.to_backend(torch.export.export(module, (x,), dynamic_shapes=({0: batch},)), [])
    found = operators(program)
    assert [op.split(".")[1] for op in found if op.startswith("joined.")] == expected
    assert sum(".quantize_per" in op for op in found) == apart
    for given in (x, x[2:], -x):
        assert_same(program(given), module(given), tolerance=0)


class Looked(nn.Module):
    """A table in integers, and a layer that may share it."""

    def __init__(self, kind: Any, *, zeros: bool, tied: bool) -> None:
        super().__init__()
        low, high, dtype = self.kind = kind
        self.tied = tied
        self.register_buffer("table", torch.randint(low, high, (20, 8)).to(dtype))
        self.register_buffer("scales", torch.rand(20, dtype=torch.float64) / 50 + 1e-3)
        self.register_buffer("zeros", torch.randint(-3, 3, (20,)) if zeros else None)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        table = Q.dequantize_per_channel.default(self.table, self.scales, self.zeros, 0, *self.kind)
        found = nn.functional.embedding(ids, table)
        return found @ table.T if self.tied else found


@pytest.mark.parametrize("kind", [INT8, (-8, 7, torch.int8), (0, 255, torch.uint8)], ids=str)
@pytest.mark.parametrize("zeros", [False, True], ids=["", "zeros"])
@pytest.mark.parametrize("tied", [False, True], ids=["", "tied"])
def test_tables(kind: Any, zeros: bool, tied: bool) -> None:
    module, ids = Looked(kind, zeros=zeros, tied=tied), torch.randint(0, 20, (3, 4))
    program = delegate.to_backend(torch.export.export(module, (ids,)), [])
    found = operators(program)
    assert "joined.embedding.default" in found
    assert any("dequantize_per_channel" in op for op in found) is tied
    assert_same(program(ids), module(ids), 1e-5 if tied else 0)
