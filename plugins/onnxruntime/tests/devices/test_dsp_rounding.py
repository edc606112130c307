"""Quantization on the DSP that is not computed with integers: QNN dropped its rounding and clamp, or rounded down."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers quantized_decomposed
import torch.nn.functional as F
from torch import Tensor

from tests.support.availability import require
from tests.support.cases.casts import lowered
from tests.support.lowering import assert_runs, assert_same, refused, steps_of
from tests.support.sampling import every

quantized = torch.ops.quantized_decomposed
Coding = Callable[[Tensor], Tensor]

STEP = {torch.int8: 0.05, torch.uint8: 0.05, torch.int16: 0.002, torch.uint16: 0.002}
X = torch.randn(8, 8, generator=torch.Generator().manual_seed(1)) * 3
WEIGHT = torch.randint(-127, 128, (8, 8), generator=torch.Generator().manual_seed(0)).to(torch.int8)
_QUANTIZE = {"quantized_decomposed.quantize_per_tensor.default": 1}


def coding(dtype: torch.dtype, factor: float = 1.0) -> Coding:
    """Return the quantization of a dtype and its decoding as one function; the zero point is in the middle."""
    info = torch.iinfo(dtype)
    parameters = (STEP[dtype] * factor, (info.min + info.max + 1) // 2, info.min, info.max, dtype)
    return lambda x: quantized.dequantize_per_tensor(quantized.quantize_per_tensor(x, *parameters), *parameters)


def linear(x: Tensor) -> Tensor:
    return F.linear(x, quantized.dequantize_per_tensor(WEIGHT, 0.01, 0, -127, 127, torch.int8))


# Results on the grid of the quantization: case -> function of the input and of a coding.
ROUNDED: dict[str, Callable[[Tensor, Coding], Tensor]] = {
    "alone": lambda x, code: code(x),
    "viewed before": lambda x, code: code(x.reshape(4, 16)),
    "viewed": lambda x, code: code(x).reshape(4, 16),
    "moved before": lambda x, code: code(x.t()),
    "moved": lambda x, code: code(x).flip(0),
    "pooled": lambda x, code: code(F.max_pool2d(code(x)[None, None], 2)),
    "twice": lambda x, code: code(code(x)),
    "joined": lambda x, code: code(torch.cat([x, x.abs()])),
    "clamped": lambda x, code: code(F.hardtanh(x, -2, 2)),
    "relu between": lambda x, code: code(F.relu(code(x))),
    "gelu": lambda x, code: code(F.gelu(x)),
    "product": lambda x, code: code(x * 1.5),
    "abs": lambda x, code: code(x.abs()),
    "neg": lambda x, code: code(-x),
    "amax": lambda x, code: code(x.amax(1)),
    "sum with a number": lambda x, code: code(x + 0.25),
    "linear": lambda x, code: code(linear(code(x))),
}
# Results in float16 of what is quantized; none of them is on the grid.
READ: dict[str, Callable[[Tensor, Coding], Tensor]] = {
    "gelu": lambda x, code: F.gelu(code(x)),
    "relu": lambda x, code: F.relu(code(x)),
    "sum with a number": lambda x, code: code(x) + 5.5,
    "product": lambda x, code: code(x) * 3,
    "square": lambda x, code: code(x) * code(x),
    "sum": lambda x, code: code(x).sum(1),
    "matrix product": lambda x, code: code(x) @ code(x),
    "softmax": lambda x, code: code(x).softmax(1),
    "viewed": lambda x, code: code(x).reshape(4, 16).sum(1),
    "joined": lambda x, code: torch.cat([code(x), x.abs()]),
    "behind an operator": lambda x, code: code(F.hardtanh(x, -9, 9)) * 3,
}
QUICK = (torch.int8, torch.uint16)


def _dtypes() -> list[object]:
    return [pytest.param(d, id=str(d), marks=[] if d in QUICK else pytest.mark.slow) for d in STEP]


@pytest.mark.parametrize("dtype", _dtypes())
@pytest.mark.parametrize("name", every(3, ROUNDED))
def test_results_are_rounded(name: str, dtype: torch.dtype) -> None:
    """Ties may go either way; float16 holds 16 bits to 4 steps at 8."""
    require("dsp")
    function, code = ROUNDED[name], coding(dtype)
    program = lowered(lambda x: function(x, code), X, "dsp")
    assert_runs(program, "dsp")
    result, expected = (steps_of(y.double(), STEP[dtype]) for y in (program(X), function(X, code)))
    assert_same(result, expected, steps=1 if dtype.itemsize == 1 else 4)
    if dtype.itemsize == 1:  # it was half of them that were a step lower
        assert (result != expected).float().mean() < 0.1


@pytest.mark.parametrize("dtype", _dtypes())
@pytest.mark.parametrize("name", every(3, READ))
def test_what_floats_read_is_rounded_and_clamped(name: str, dtype: torch.dtype) -> None:
    """QNN drops the quantization, which is left to others; it reads their integers."""
    require("dsp")
    function, code = READ[name], coding(dtype)
    program = lowered(lambda x: function(x, code), X, "dsp")
    assert_runs(program, "dsp", _QUANTIZE)
    assert "QNN drops such a rounding" in str([n.verdicts["dsp"] for n in program.report.nodes])
    assert_same(program(X), function(X, code), 3e-3)


@pytest.mark.parametrize("first", ["finer", "coarser"])
def test_two_quantizations_are_two(first: str) -> None:
    """ONNX Runtime made one of them."""
    require("dsp")
    inner, outer = (coding(torch.uint8, f) for f in ((1, 7) if first == "finer" else (7, 1)))
    program = lowered(lambda x: outer(inner(x)), X, "dsp")
    assert_runs(program, "dsp")
    assert_same(program(X), outer(inner(X)), 1e-6)


def test_per_channel() -> None:
    """Activations per channel are left to others."""
    require("dsp")
    scales, zeros = torch.full((8,), 0.05), torch.zeros(8, dtype=torch.int64)
    parameters = (scales, zeros, 0, -128, 127, torch.int8)

    def function(x: Tensor) -> Tensor:
        code = quantized.quantize_per_channel(x, *parameters)
        result: Tensor = quantized.dequantize_per_channel(code, *parameters) * 3
        return result

    program = lowered(function, X, "dsp")
    names = ("quantize_per_channel", "dequantize_per_channel")
    assert refused(program, "dsp") == {f"quantized_decomposed.{name}.default": 1 for name in names}
    assert_same(program(X), function(X), 3e-3)
