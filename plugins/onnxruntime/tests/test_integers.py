"""Operators between quantized values on the CPU provider, and the operators that it computes in floats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

import delegate
from tests.support.cases.integer_operators import OPS
from tests.support.lowering import assert_runs, assert_same
from tests.support.qdq import Coded, Parameters, drawn, fitted
from tests.support.quantized import floats_within
from tests.support.sampling import every

# Cases without an integer kernel in ONNX Runtime 1.31. It has the results all the same.
FLOATS = {
    "linear relu",  # of more than two dimensions: ONNX Runtime puts a view between the sum and the activation
    *("conv hardtanh", "conv clamp", "transposed", "transposed output_padding", "transposed per tensor"),
    *("add number", "sub", "rsub number", "mul number", "div", "mean", "mean last", "adaptive pool, uneven", "tanh"),
    *("silu", "elu", "hardswish", "hardsigmoid", "gelu", "layer norm", "pad", "pad with a number", "pad reflect"),
    *("bilinear", "bilinear aligned", "split", "chunk"),
    "softmax",  # of a range that ends below 1, where QLinearSoftmax is wrong
}


@pytest.mark.parametrize("name", every(5, OPS))
def test_integer_operators(name: str) -> None:
    op, generator = OPS[name], torch.Generator().manual_seed(1)
    inputs = tuple(torch.randn(shape, generator=generator) * 2 for shape in op.shapes)
    function = op.make(generator)
    parameters = [drawn(generator) for _ in inputs]
    parameters = [replace(p, zero_point=0) if i in op.symmetric else p for i, p in enumerate(parameters)]
    with torch.no_grad():
        floats = function(*(p.through(x) for p, x in zip(parameters, inputs, strict=True)))
        result = parameters[0] if op.same else fitted([floats])
        module = Coded(function, parameters, result).eval()
        program = delegate.to_backend(torch.export.export(module, inputs), "onnxruntime")
        assert_runs(program, "onnxruntime")
        expected = module(*inputs)
        assert_same(program(*inputs), expected, tolerance=1.01 * result.scale / float(expected.abs().max()))
    assert bool(floats_within(program)) == (name in FLOATS)


@pytest.mark.parametrize(
    "function", [torch.sigmoid, lambda x: x.softmax(1), lambda x: x * x], ids=["sigmoid", "softmax", "mul"]
)
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8], ids=str)
def test_results_above_the_range(function: Callable[..., torch.Tensor], dtype: torch.dtype) -> None:
    """They are the largest integer: of QLinearSoftmax they would be the smallest one."""
    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0)) * 3
    result = Parameters(0.4 / 255, torch.iinfo(dtype).min, dtype)
    module = Coded(function, [fitted([x], dtype)], result).eval()
    program = delegate.to_backend(torch.export.export(module, (x,)), "onnxruntime")
    assert_runs(program, "onnxruntime")
    expected = module(x)
    assert float(function(x).max()) > 1.5 * float(expected.max())
    assert_same(program(x), expected, tolerance=1.01 * result.scale / float(expected.max()))
