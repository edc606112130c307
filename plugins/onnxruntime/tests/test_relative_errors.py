"""Small results and results close to 0 keep their digits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import delegate
from delegate.testing import assert_same
from tests.support.cases.relative_errors import BOUND, CASES, compare
from tests.support.functions import Function

F = nn.functional


@pytest.mark.parametrize("name", CASES)
def test_relative_error(name: str) -> None:
    # ONNX has no erfinv. Tanh, in mish, loses digits below 1e-37.
    backends = compare(name, ["onnxruntime"], 8e-6 if name == "mish" else BOUND)
    assert backends == {"portable" if name == "erfinv" else "onnxruntime"}


@pytest.mark.parametrize("activation", [F.silu, lambda x: x * x.sigmoid()], ids=["silu", "product"])
@pytest.mark.parametrize("is_last", [False, True], ids=["between convolutions", "last"])
def test_silu_of_a_convolution(activation: Callable[[Tensor], Tensor], is_last: bool) -> None:
    """Between convolutions, the sigmoid of ONNX Runtime stays and keeps their layout."""
    first, second = nn.Conv2d(1, 1, 1).requires_grad_(False), nn.Conv2d(1, 1, 1).requires_grad_(False)
    for layer in (first, second):
        layer.weight.fill_(1)
        layer.bias.fill_(0)
    x = torch.tensor([-80.0, -20, -15, -5, 0, 3, 80]).reshape(1, 1, 1, -1)
    module = Function(lambda x: activation(first(x)) if is_last else second(activation(first(x))))
    program = delegate.to_backend(torch.export.export(module, (x,)), ["onnxruntime"])
    assert {n.backend for n in program.report.nodes} == {"onnxruntime"}
    exact = F.silu(x.double()).float()
    assert_same(program(x), exact, 2e-6 if is_last else 0.01, each=True, at_least=0.0 if is_last else 1e-3)
    (partition,) = program.report.partitions
    assert partition.notes[0].startswith("4 ONNX operators") != is_last


@pytest.mark.parametrize(("function", "count"), [(torch.sigmoid, 3), (F.silu, 4)], ids=["sigmoid", "silu"])
def test_a_quantized_result_takes_no_more_operators(function: Callable[[Tensor], Tensor], count: int) -> None:
    q = torch.ops.quantized_decomposed
    ends = (-128, 127, torch.int8)

    def module(x: Tensor) -> Tensor:
        value = function(q.dequantize_per_tensor.default(x, 0.125, 3, *ends))
        return q.quantize_per_tensor.default(value, 0.0625, -128, *ends)

    x = torch.arange(-128, 128).to(torch.int8)
    program = delegate.to_backend(torch.export.export(Function(module), (x,)), ["onnxruntime"])
    (partition,) = program.report.partitions
    assert partition.backend == "onnxruntime"
    assert partition.notes[0].startswith(f"{count} ONNX operators")
    assert_same(program(x), module(x), steps=1)


@pytest.mark.parametrize("divisor", [3.0, -0.1, float("inf"), -float("inf"), 0.0])
def test_floor_division(divisor: float) -> None:
    x = torch.tensor([0.0, 1.0, -1.0, 2.5, -2.5, 7.0, -7.0, 1e8, -1e8, 2.0**24 + 2, 1e20, -1e20])
    y = torch.full_like(x, divisor)
    for function, inputs in ((torch.floor_divide, (x, y)), (lambda x: x // divisor, (x,))):
        program = delegate.to_backend(torch.export.export(Function(function), inputs), ["onnxruntime"])
        assert {n.backend for n in program.report.nodes} == {"onnxruntime"}
        assert_same(program(*inputs), function(*inputs), 0)
