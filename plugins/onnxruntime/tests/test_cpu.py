"""Every operator that a provider takes, over the project's table of cases, gives what eager gives."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers quantized_decomposed
from torch import nn

import delegate
from delegate.testing import assert_same
from tests.support.cases.operators import FAMILIES, IN_ORDER, All
from tests.support.functions import NamedFunction
from tests.support.sampling import every

quantized = torch.ops.quantized_decomposed
COARSE = 2e-6  # relative to the largest value: float32 in another order
# ONNX's Elu has no scale within; the exporter drops sums into constant places that are all in order.
PORTABLE = {"aten.elu.default, scaled within", *IN_ORDER}


def long(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.long() if tensor.dtype is torch.int32 else tensor


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize(("cast", "family"), [*product([torch.Tensor.clone], FAMILIES), *every(4, [long], FAMILIES)])
def test_what_it_takes_is_right(family: str, cast: Callable[[torch.Tensor], torch.Tensor]) -> None:
    cases = FAMILIES[family]
    module = All(cases).eval()
    inputs = tuple(cast(x.clone()) for _, example in cases.values() for x in example)
    with torch.no_grad():
        program = delegate.to_backend(torch.export.export(module, inputs), "onnxruntime")
        answers, eager = program(*inputs), module(*inputs)
    if cast is torch.Tensor.clone:
        places = {(n.module.split(".")[0], n.backend) for n in program.report.nodes}
        assert {place for place, backend in places if backend == "onnxruntime"} == {
            f"case{i}" for i, case in enumerate(cases) if case not in PORTABLE
        }
    wrong: dict[str, Any] = {}
    for name, results, expected in zip(cases, answers, eager, strict=True):
        try:
            assert_same(results, expected, COARSE)
        except AssertionError as error:
            wrong[name] = str(error)
    assert not wrong


@pytest.mark.parametrize("of", [torch.fmod, torch.remainder], ids=["fmod", "remainder"])
def test_what_is_left_of_large_numbers(of: Callable[..., torch.Tensor]) -> None:
    """Quotients beyond 2^12, where what is left by quotients is off by up to a third."""

    class Left(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return of(x, y), of(x, 0.1)

    x = torch.tensor([1e5, -1e5, 123456.7, 1e7, -1e7, 1e10, 7.0, torch.inf])
    y = torch.tensor([0.1, 0.3, -0.7, 0.1, 3.0, 3.0, torch.inf, 2.0])
    program = delegate.to_backend(torch.export.export(Left(), (x, y)), "onnxruntime")
    assert {n.backend for n in program.report.nodes} == {"onnxruntime"}
    assert_same(program(x, y), Left()(x, y), tolerance=0)


INTEGERS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "fmod": torch.fmod,
    "remainder": torch.remainder,
    "fmod by a number": lambda x, y: torch.fmod(x, -10),
    "remainder by a number": lambda x, y: x % -3,
    "remainder by a large number": lambda x, y: x % (2**53 + 1),
    "remainder of a number": lambda x, y: torch.remainder(2**62 + 3, y),
    "floor": lambda x, y: x // y,
    "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
}


@pytest.mark.parametrize("name", INTEGERS)
def test_what_is_left_of_large_integers(name: str) -> None:
    """ONNX Runtime computes Mod of x's sign in float64, which has no odd number beyond 2^53."""
    x = torch.tensor([2**53 + 1, 2**62 + 3, -(2**62) - 7, 2**63 - 1, -(2**63) + 1, 12345678901234567, 7, -7, 0])
    y = torch.tensor([3, -10, 10, 1000000007, 7, -7, 2**53 + 1, 3, 5])
    program = delegate.to_backend(torch.export.export(NamedFunction(INTEGERS[name]).eval(), (x, y)), "onnxruntime")
    assert {n.backend for n in program.report.nodes} == {"onnxruntime"}
    assert_same(program(x, y), INTEGERS[name](x, y))


def _quantize_array(x: torch.Tensor, step: float, zero_point: int, dtype: torch.dtype) -> torch.Tensor:
    info = torch.iinfo(dtype)
    code = quantized.quantize_per_tensor(x, step, zero_point, info.min, info.max, dtype)
    result: torch.Tensor = quantized.dequantize_per_tensor(code, step, zero_point, info.min, info.max, dtype)
    return result


@pytest.mark.parametrize("dtype", every(3, [torch.int8, torch.uint8, torch.int16, torch.uint16]), ids=str)
@pytest.mark.parametrize(("first", "second"), [((0.05, 3), (0.35, 3)), ((0.35, 3), (0.05, 3)), ((0.05, 3), (0.05, 23))])
def test_two_quantizations_are_two(first: tuple[float, int], second: tuple[float, int], dtype: torch.dtype) -> None:
    """ONNX Runtime made one of them, with another scale than both."""
    x = torch.randn(8, 8, generator=torch.Generator().manual_seed(1)) * 3
    function = NamedFunction(lambda v: _quantize_array(_quantize_array(v, *first, dtype), *second, dtype)).eval()
    program = delegate.to_backend(torch.export.export(function, (x,)), "onnxruntime")
    assert {n.backend for n in program.report.nodes} == {"onnxruntime"}
    assert_same(program(x), function(x), 1e-6)


class Quantized(nn.Module):
    """A product of bytes whose sums are beyond 16 bits, as PT2E writes it."""

    def __init__(self, dtype: torch.dtype, conv: bool) -> None:
        super().__init__()
        signs = torch.rand(16, 64, generator=torch.Generator().manual_seed(0)) < 0.8
        weight = torch.where(signs, 127, -128).to(torch.int8)
        self.register_buffer("weight", weight[..., None, None] if conv else weight)
        self.limits = torch.iinfo(dtype).min, torch.iinfo(dtype).max, dtype
        self.product = nn.functional.conv2d if conv else nn.functional.linear

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rounded = quantized.quantize_per_tensor(x, 1 / 128, self.limits[0], *self.limits)
        taken = quantized.dequantize_per_tensor(rounded, 1 / 128, self.limits[0], *self.limits)
        weight = quantized.dequantize_per_tensor(self.weight, 0.01, 0, -128, 127, torch.int8)
        result: torch.Tensor = quantized.quantize_per_tensor(self.product(taken, weight), 0.6, 3, *self.limits)
        return result


@pytest.mark.parametrize("conv", [False, True])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
def test_sums_of_bytes_do_not_saturate(dtype: torch.dtype, conv: bool) -> None:
    """As ONNX Runtime's products of uint8 and int8 do on CPUs without VNNI where nobody forbids it."""
    module, x = Quantized(dtype, conv).eval(), torch.rand(5, 64).clamp(0.75) * 2
    x = x[..., None, None] if conv else x
    with torch.no_grad():
        program = delegate.to_backend(torch.export.export(module, (x,)), "onnxruntime")
        assert {n.backend for n in program.report.nodes} == {"onnxruntime"}
        assert_same(program(x), module(x), steps=1)
