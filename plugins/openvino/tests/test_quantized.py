"""Layers with weights in 4 and 8 bits on the CPU provider, beside the quantized module in eager."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import delegate
from tests.support import zoo
from tests.support.lowering import assert_runs, assert_same
from tests.support.qdq import QD, RunTime, RunTimeRows, Weights
from tests.support.quantized import sqnr
from tests.support.sampling import every

with zoo.libraries():
    import torchao.quantization as ao

ROWS = torch.export.Dim("rows", min=0, max=64)
EXACT = 100  # dB relative to the quantized module in eager: other orders of sums alone


def whole(program: delegate.CompiledProgram) -> None:
    """Assert that OpenVINO runs a program in one partition."""
    assert_runs(program, "openvino")
    assert len(program.report.partitions) == 1


class Blocks(nn.Module):
    """A linear layer of integers in blocks, as torchao writes it.

    Args:
        shape: of the weight: outputs, inputs.
        block: the sizes of a block.
        bits: of a number.
        zero: the largest zero point; they differ from block to block.
        bias: true to add one.
    """

    def __init__(self, shape: tuple[int, int], block: tuple[int, int], bits: int, zero: int, bias: bool) -> None:
        super().__init__()
        self.block, self.ends = block, (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        counts = [s // b for s, b in zip(shape, block, strict=True)]
        self.register_buffer("weight", torch.randint(self.ends[0], self.ends[1] + 1, shape).to(torch.int8))
        self.register_buffer("scale", torch.rand(counts) * 0.02 + 0.01)
        self.register_buffer("zero", torch.randint(-zero, zero + 1, counts))
        self.bias = nn.Parameter(torch.randn(shape[0])) if bias else None

    def decoded(self) -> torch.Tensor:
        """Return the weight in floats."""
        decode = torch.ops.torchao.dequantize_affine
        result: torch.Tensor = decode(self.weight, self.block, self.scale, self.zero, torch.int8, *self.ends)
        return result

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.decoded(), self.bias)


@dataclass(frozen=True, slots=True)
class Case:
    """A linear layer of integers.

    Args:
        block: the sizes of a block.
        bits: of a number.
        shape: of the weight.
        zero: the largest zero point.
        bias: true if it has one.
    """

    block: tuple[int, int]
    bits: int
    shape: tuple[int, int] = (6, 64)
    zero: int = 0
    bias: bool = True


CASES: Mapping[str, Case] = {
    "int4": Case((1, 64), 4),
    "int4 in blocks of 16": Case((1, 16), 4),
    "int4 in blocks of 32 with zero points": Case((1, 32), 4, zero=7),
    "int4 in 3 blocks with zero points": Case((1, 32), 4, (5, 96), zero=7, bias=False),
    "int4 in blocks of 48": Case((1, 48), 4, (5, 96)),
    "int4 in blocks of 512": Case((1, 512), 4, (3, 1024)),
    "int4 of 33 inputs": Case((1, 33), 4, (7, 33), zero=3),
    "int4 of one input": Case((1, 1), 4, (1, 1)),
    "int4 per tensor": Case((6, 64), 4),
    "int4 of 1000 inputs": Case((1, 1000), 4, (4, 1000)),
    "int8": Case((1, 64), 8),
    "int8 with zero points": Case((1, 64), 8, zero=100),
    "int8 in blocks of 16": Case((1, 16), 8, zero=3),
    "int8 in blocks of 8": Case((1, 8), 8),
}


def linear(name: str) -> Blocks:
    case = CASES[name]
    return Blocks(case.shape, case.block, case.bits, case.zero, case.bias).eval()


@pytest.mark.parametrize("name", CASES)
def test_weights_in_integers(name: str) -> None:
    """Results are those of eager in floats, for any number of rows."""
    torch.manual_seed(0)
    module, x = linear(name), torch.randn(3, CASES[name].shape[1])
    program = delegate.to_backend(torch.export.export(module, (x,), dynamic_shapes=({0: ROWS},)), "openvino")
    whole(program)
    for rows in (3, 1, 17, 0):
        x = torch.randn(rows, CASES[name].shape[1])
        result, expected = program(x), module(x).detach()
        assert result.shape == expected.shape
        assert not rows or sqnr(expected, result) >= EXACT


@pytest.mark.parametrize("quantize", [RunTime, RunTimeRows])
@pytest.mark.parametrize("name", [n for n in CASES if n != "int4 of one input"])
def test_quantized_at_run_time(name: str, quantize: type[RunTime]) -> None:
    """Results are as near to the layer in floats as those of eager."""
    torch.manual_seed(0)
    layer, case = linear(name), CASES[name]
    module = quantize(layer).eval()
    exported = torch.export.export(module, (torch.randn(3, case.shape[1]),), dynamic_shapes=({0: ROWS},))
    program = delegate.to_backend(exported, "openvino")
    whole(program)
    for rows in (3, 1, 17):
        x = torch.randn(rows, case.shape[1]) * 3 + 0.5
        exact, reference, result = (f(x).detach() for f in (layer, module, program))
        assert sqnr(exact, result) >= min(sqnr(exact, reference) - 1, 38)


@pytest.mark.parametrize("shape", [(64,), (2, 3, 64), (2, 0, 64), (1, 64)], ids=str)
@pytest.mark.parametrize("name", ["int4", "int8"])
def test_shapes_of_activations(name: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    for module in (linear(name), RunTime(linear(name)).eval()):
        x = torch.randn(shape)
        if not x.numel():
            continue
        program = delegate.to_backend(torch.export.export(module, (x,)), "openvino")
        whole(program)
        result, expected = program(x), module(x).detach()
        assert result.shape == expected.shape
        assert sqnr(expected, result) >= 38


@pytest.mark.parametrize(("bits", "block", "size", "zero"), [
    (8, 48, 48, 0), (8, 7, 7, 100), (8, 16, 64, 3), (4, 32, 64, 0), (4, 32, 96, 7), (4, 7, 7, 0), (4, 1000, 1000, 3),
])  # fmt: skip
def test_lookups(bits: int, block: int, size: int, zero: int) -> None:
    """Rows of a table are decoded exactly as in eager."""

    class Lookup(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = Blocks((10, size), (1, block), bits, zero, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.embedding(x, self.table.decoded())

    torch.manual_seed(0)
    module, x = Lookup().eval(), torch.randint(0, 10, (2, 5))
    program = delegate.to_backend(torch.export.export(module, (x,)), "openvino")
    whole(program)
    assert_same(program(x), module(x), tolerance=0)


CONFIGS: Mapping[str, tuple[Callable[[], Any], float]] = {  # of torchao's quantize_ -> smallest SQNR relative to eager
    "int8 weights": (ao.Int8WeightOnlyConfig, EXACT),
    "int8": (ao.Int8DynamicActivationInt8WeightConfig, 32),
    "int4 weights": (lambda: ao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=ao.PerGroup(32)), EXACT),
    "int4": (
        lambda: ao.Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=ao.PerGroup(64)),
        32,
    ),
}


@pytest.mark.parametrize(("name", "rows"), every(2, CONFIGS, [(5,), (2, 3)]), ids=str)
def test_quantize_(name: str, rows: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(256, 384), nn.ReLU(), nn.LayerNorm(384), nn.Linear(384, 128, bias=False)).eval()
    config, least = CONFIGS[name]
    ao.quantize_(module, config())
    x = torch.randn(*rows, 256)
    program = delegate.to_backend(torch.export.export(module, (x,)), "openvino")
    whole(program)
    assert sqnr(module(x).detach(), program(x)) >= least


def test_layers_share_weights_and_activations() -> None:
    """Two layers read one weight, and two others one activation that is quantized at run time."""

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.third = linear("int8"), linear("int8"), linear("int4")

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
            scale, zero = QD.choose_qparams.tensor(x, -128, 127, 1e-7, torch.int8)
            coded = QD.quantize_per_tensor.tensor(x, scale, zero, -128, 127, torch.int8)
            seen = QD.dequantize_per_tensor.tensor(coded, scale, zero, -128, 127, torch.int8)
            return self.first(seen), self.second(seen), self.third(seen), self.first(y), RunTime(self.first)(y)

    torch.manual_seed(0)
    module, inputs = Shared().eval(), (torch.randn(3, 64), torch.randn(5, 64))
    program = delegate.to_backend(torch.export.export(module, inputs), "openvino")
    whole(program)
    for result, expected in zip(program(*inputs), module(*inputs), strict=True):
        assert sqnr(expected.detach(), result) >= 38


@dataclass(frozen=True, slots=True)
class Refused:
    """A pattern that almost matches.

    Args:
        make: returns the module, for an input of 3 rows of 64 numbers.
        reason: part of the reported reason.
        shape: of the input.
    """

    make: Callable[[], nn.Module]
    reason: str
    shape: tuple[int, ...] = (3, 64)


class AlsoRead(RunTime):
    """A layer whose quantized input is a result, too."""

    def forward(self, x: torch.Tensor) -> Any:
        scale, zero = QD.choose_qparams.tensor(x, -128, 127, 1e-7, torch.int8)
        coded = QD.quantize_per_tensor.tensor(x, scale, zero, -128, 127, torch.int8)
        seen = QD.dequantize_per_tensor.tensor(coded, scale, zero, -128, 127, torch.int8)
        return self.layer(seen), seen * 2


class Wide(nn.Module):
    """A linear layer of int16 weights."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randint(-100, 100, (6, 64)).to(torch.int16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = QD.dequantize_per_tensor(self.weight, 0.01, 0, -(2**15), 2**15 - 1, torch.int16)
        return nn.functional.linear(x, weight)


REFUSED: Mapping[str, Refused] = {
    "other readers": Refused(lambda: AlsoRead(linear("int8")), "reads a value that is quantized at run time"),
    "weights in floats": Refused(lambda: RunTime(nn.Linear(64, 6)), "the weights are not constant integers"),
    "one input": Refused(lambda: RunTime(linear("int4 of one input")), "decodes to floats", (3, 1)),
    "a convolution": Refused(
        lambda: RunTime(Weights(nn.functional.conv2d, torch.randn(6, 8, 3, 3))), "a convolution", (2, 8, 5, 5)
    ),
}


def _beyond() -> nn.Module:
    layer = linear("int8")
    layer.zero += 200
    return layer


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_have_a_reason(name: str) -> None:
    """Other backends and kernels run the pattern, with the results of eager."""
    torch.manual_seed(0)
    case = REFUSED[name]
    module, x = case.make().eval(), torch.randn(case.shape)
    program = delegate.to_backend(torch.export.export(module, (x,)), "openvino")
    verdicts = " ".join(str(v) for n in program.report.nodes for v in n.verdicts.values())
    assert case.reason in verdicts
    assert any(n.backend == "portable" for n in program.report.nodes)
    with torch.no_grad():
        assert_same(program(x), module(x))


@pytest.mark.parametrize(("make", "reason"), [(_beyond, "zero points"), (Wide, "values of int16")])
def test_weights_that_bytes_do_not_hold_are_floats(make: Callable[[], nn.Module], reason: str) -> None:
    torch.manual_seed(0)
    module, x = make().eval(), torch.randn(3, 64)
    program = delegate.to_backend(torch.export.export(module, (x,)), "openvino")
    whole(program)
    (partition,) = program.report.partitions
    assert any("stored in floats" in note and reason in note for note in partition.notes)
    with torch.no_grad():
        assert_same(program(x), module(x))
