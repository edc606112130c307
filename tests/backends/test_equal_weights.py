"""Weights of equal bytes are stored once: each use gets its own numbers all the same."""

from __future__ import annotations

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers quantized_decomposed
import torch.nn.functional as F
from torch import nn

import delegate
from tests.support.availability import require
from tests.support.cases.equal_weights import CASES, FILTERS, compare
from tests.support.lowering import assert_runs, assert_same
from tests.support.quantizing import last_step, quantized
from tests.support.sampling import every

decomposed = torch.ops.quantized_decomposed
STEP = 0.3
TOLERANCE = {"xnnpack": 1e-6, "webgpu": 1e-6, "dsp": 2e-3}  # the HTP computes in float16: 6.8e-4 is measured
# (backend, weight) -> operators that the backend refuses, with the number of their nodes.
REFUSED = {
    ("xnnpack", "matrix"): {"aten.gt.Scalar": 1, "aten._to_copy.default": 1, "aten.index.Tensor": 1},
    ("xnnpack", "filters"): {"aten.convolution.default": 2},  # transposed in groups
    ("webgpu", "matrix"): {"aten._to_copy.default": 1},
    ("dsp", "matrix"): {"aten._to_copy.default": 1},
    ("dsp", "filters"): {"aten.convolution.default": 2},  # transposed in groups
}


@pytest.mark.parametrize("case", every(2, CASES))
@pytest.mark.parametrize("backend", TOLERANCE)
def test_each_use_has_its_numbers(backend, case):
    require(backend)
    compare(case, backend, TOLERANCE[backend], REFUSED.get((backend, case.split()[0]), {}))


class Tied(nn.Module):
    """What encodes and decodes by the same weight."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(FILTERS)

    def forward(self, x):
        return F.conv_transpose2d(F.conv2d(x, self.weight).relu(), self.weight)


@pytest.mark.parametrize("backend", TOLERANCE)
def test_tied_weights(backend):
    require(backend)
    module, x = Tied().eval(), torch.randn(2, 8, 9, 9)
    with torch.no_grad():
        program = delegate.to_backend(torch.export.export(module, (x,)), backend)
        assert_runs(program, backend)
        assert_same(program(x), module(x), TOLERANCE[backend])


@pytest.mark.parametrize("backend", ["xnnpack", "dsp"])
def test_tied_weights_in_8_bits(backend):
    require(backend)
    batches = [(torch.randn(2, 8, 9, 9),) for _ in range(4)]
    module, exported = quantized(Tied(), batches, torch.int8, per_channel=False)
    program = delegate.to_backend(exported, backend)
    assert backend in {n.backend for n in program.report.nodes}
    with torch.no_grad():
        for batch in batches:
            steps = (program(*batch) - module(*batch)).abs() / last_step(exported)
            # The dsp rounds both layers: a step of the first is up to two more of the second.
            assert steps.max() <= 3.01
            assert steps.mean() < 0.3


class Decoded(nn.Module):
    """What decodes a weight once, for two layers."""

    def __init__(self):
        super().__init__()
        self.register_buffer("weight", (FILTERS * 100).to(torch.int8))

    def forward(self, x):
        weight = decomposed.dequantize_per_tensor(self.weight, 0.02, 0, -128, 127, torch.int8)
        x = in_8_bits(x, 0.03)
        return in_8_bits(F.conv2d(x, weight), STEP), in_8_bits(F.conv_transpose2d(x, weight), STEP)


def in_8_bits(x, scale):
    kind = (scale, 0, -128, 127, torch.int8)
    return decomposed.dequantize_per_tensor(decomposed.quantize_per_tensor(x, *kind), *kind)


@pytest.mark.parametrize("backend", ["xnnpack", "dsp"])
def test_a_weight_that_is_decoded_once(backend):
    require(backend)
    module, x = Decoded().eval(), torch.randn(2, 8, 9, 9)
    program = delegate.to_backend(torch.export.export(module, (x,)), backend)
    assert backend in {n.backend for n in program.report.nodes}
    for got, expected in zip(program(x), module(x), strict=True):  # one step, or two neighbours of a tie
        assert_same((got / STEP).round().int(), (expected / STEP).round().int(), steps=1)
