"""Linear layers with weights in integers, and checks of them that hold on every backend with integer kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves as leaves

import delegate
from tests.support import zoo
from tests.support.lowering import assert_runs, assert_same
from tests.support.qdq import QD, Parameters, RunTime, RunTimeRows, Weights
from tests.support.quantized import sqnr

with zoo.libraries():
    import torchao.quantization as ao

ROWS = torch.export.Dim("rows", min=0, max=64)
EXACT = 100  # dB relative to the quantized module in eager: other orders of sums alone


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


def lowered(module: nn.Module, inputs: tuple[torch.Tensor, ...], backend: str, sizes: Any = None) -> Any:
    """Return the program of a module, and assert that the backend runs it in one partition."""
    program = delegate.to_backend(torch.export.export(module, inputs, dynamic_shapes=sizes), backend)
    assert_runs(program, backend)
    assert len(program.report.partitions) == 1
    return program


def check_weights(name: str, backend: str) -> None:
    """Assert that results are those of eager in floats, for any number of rows."""
    torch.manual_seed(0)
    module, x = linear(name), torch.randn(3, CASES[name].shape[1])
    program = lowered(module, (x,), backend, ({0: ROWS},))
    for rows in (3, 1, 17, 0):
        x = torch.randn(rows, CASES[name].shape[1])
        result, expected = program(x), module(x).detach()
        assert result.shape == expected.shape
        assert not rows or sqnr(expected, result) >= EXACT


SHAPES = [(64,), (2, 3, 64), (2, 0, 64), (1, 64)]


def check_shape(name: str, shape: tuple[int, ...], backend: str) -> None:
    """Assert that activations of a shape have the results of eager."""
    torch.manual_seed(0)
    for module in (linear(name), RunTime(linear(name)).eval()):
        x = torch.randn(shape)
        if not x.numel():
            continue
        program = lowered(module, (x,), backend)
        result, expected = program(x), module(x).detach()
        assert result.shape == expected.shape
        assert sqnr(expected, result) >= 38


LOOKUPS = [  # bits, block, size, zero
    (8, 48, 48, 0), (8, 7, 7, 100), (8, 16, 64, 3), (4, 32, 64, 0), (4, 32, 96, 7), (4, 7, 7, 0), (4, 1000, 1000, 3),
]  # fmt: skip


class Lookup(nn.Module):
    """A table of integers, whose rows are looked up."""

    def __init__(self, bits: int, block: int, size: int, zero: int) -> None:
        super().__init__()
        self.table = Blocks((10, size), (1, block), bits, zero, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.embedding(x, self.table.decoded())


def check_lookup(case: tuple[int, int, int, int], backend: str) -> None:
    """Assert that rows of a table are decoded exactly as in eager."""
    torch.manual_seed(0)
    module, x = Lookup(*case).eval(), torch.randint(0, 10, (2, 5))
    assert_same(lowered(module, (x,), backend)(x), module(x), tolerance=0)


CONFIGS: Mapping[str, tuple[Callable[[], Any], float]] = {  # of torchao's quantize_ -> smallest SQNR relative to eager
    "int8 weights": (ao.Int8WeightOnlyConfig, EXACT),
    "int8": (ao.Int8DynamicActivationInt8WeightConfig, 32),
    "int4 weights": (lambda: ao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=ao.PerGroup(32)), EXACT),
    "int4": (
        lambda: ao.Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=ao.PerGroup(64)),
        32,
    ),
}


def check_quantize_(name: str, rows: tuple[int, ...], backend: str) -> None:
    """Assert that a network after torchao's `quantize_` has the results of eager."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(256, 384), nn.ReLU(), nn.LayerNorm(384), nn.Linear(384, 128, bias=False)).eval()
    config, least = CONFIGS[name]
    ao.quantize_(module, config())
    x = torch.randn(*rows, 256)
    assert sqnr(module(x).detach(), lowered(module, (x,), backend)(x)) >= least


class Shared(nn.Module):
    """Two layers of one weight, and two others of one activation that is quantized at run time."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = linear("int8"), linear("int8"), linear("int4")

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scale, zero = QD.choose_qparams.tensor(x, -128, 127, 1e-7, torch.int8)
        coded = QD.quantize_per_tensor.tensor(x, scale, zero, -128, 127, torch.int8)
        seen = QD.dequantize_per_tensor.tensor(coded, scale, zero, -128, 127, torch.int8)
        return self.first(seen), self.second(seen), self.third(seen), self.first(y), RunTime(self.first)(y)


def check_shared(backend: str) -> None:
    """Assert that layers of one weight, and layers of one activation, have the results of eager."""
    torch.manual_seed(0)
    module, inputs = Shared().eval(), (torch.randn(3, 64), torch.randn(5, 64))
    program = lowered(module, inputs, backend)
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


class RunTimeTokens(RunTime):
    """A layer after PT2E's quantization at run time with one range per row."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale, zero = QD.choose_qparams_per_token_asymmetric(x, torch.int8)
        coded = QD.quantize_per_token(x, scale, zero, -128, 127, torch.int8)
        seen = QD.dequantize_per_token(coded, scale, zero, -128, 127, torch.int8, torch.float32)
        result: torch.Tensor = self.layer(seen)
        return result


class Symmetric(RunTime):
    """A layer after quantization at run time with a range around 0."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale, zero = QD.choose_qparams_symmetric.tensor(x, -128, 127, 1e-7, torch.int8)
        coded = QD.quantize_per_tensor.tensor(x, scale, zero, -128, 127, torch.int8)
        result: torch.Tensor = self.layer(QD.dequantize_per_tensor.tensor(coded, scale, zero, -128, 127, torch.int8))
        return result


def convolution() -> nn.Module:
    return Weights(nn.functional.conv2d, torch.randn(6, 8, 3, 3))


@dataclass(frozen=True, slots=True)
class Rounded:
    """A value that is quantized at run time for readers that compute in floats.

    Args:
        make: returns the module.
        reader: part of the partition's note on a reader.
        shape: of the input.
        least: the smallest SQNR relative to eager.
    """

    make: Callable[[], nn.Module]
    reader: str
    shape: tuple[int, ...] = (3, 64)
    least: float = EXACT


ROUNDED: Mapping[str, Rounded] = {
    "other readers": Rounded(lambda: AlsoRead(linear("int8")), "aten.mul.Tensor", least=38),
    "weights in floats": Rounded(lambda: RunTime(nn.Linear(64, 6)), "aten.linear.default"),
    "a convolution": Rounded(lambda: RunTime(convolution()), "aten.convolution.default", (2, 8, 5, 5)),
    "a convolution of rows": Rounded(lambda: RunTimeRows(convolution()), "aten.convolution.default", (2, 8, 5, 5)),
    "a convolution of tokens": Rounded(lambda: RunTimeTokens(convolution()), "aten.convolution.default", (2, 8, 5, 5)),
}


def check_rounded(case: Rounded, backend: str) -> None:
    """Assert that a backend runs all of a module, that a note names the reader, and that results are those of eager."""
    torch.manual_seed(0)
    module, x = case.make().eval(), torch.randn(case.shape)
    program = lowered(module, (x,), backend)
    (partition,) = program.report.partitions
    assert any(note.startswith(f"computed in floats, not in integers: {case.reader}") for note in partition.notes)
    with torch.no_grad():
        for result, expected in zip(leaves(program(x)), leaves(module(x)), strict=True):
            assert sqnr(expected, result) >= case.least


REFUSED: Mapping[str, Refused] = {
    "a range around 0": Refused(lambda: Symmetric(convolution()), "another choice than by the least", (2, 8, 5, 5)),
}


def beyond() -> nn.Module:
    """Return a layer whose zero points int8 does not hold."""
    layer = linear("int8")
    layer.zero += 200
    return layer


def check_refusal(case: Refused, backend: str) -> None:
    """Assert that a refusal has its reason, and that kernels run the pattern with the results of eager."""
    torch.manual_seed(0)
    module, x = case.make().eval(), torch.randn(case.shape)
    program = delegate.to_backend(torch.export.export(module, (x,)), backend)
    verdicts = " ".join(str(v) for n in program.report.nodes for v in n.verdicts.values())
    assert case.reason in verdicts
    assert any(n.backend == "portable" for n in program.report.nodes)
    with torch.no_grad():
        assert_same(program(x), module(x))


INPUT, RESULT = Parameters(1 / 64, -100), Parameters(0.8, 3)


class Layers(nn.Module):
    """Two readers of one weight of large numbers, and a weight with the same zero points.

    Args:
        outputs: of each layer; small constants of sessions are merged.
        axis: of the scales; None for one.
        conv: true for convolutions.
    """

    def __init__(self, outputs: int, axis: int | None, conv: bool) -> None:
        super().__init__()
        function = nn.functional.conv2d if conv else nn.functional.linear
        signs = torch.rand(2, outputs, 64, generator=torch.Generator().manual_seed(0)) < 0.8
        weights = torch.where(signs, 1.0, -1.0)
        first, second = weights[..., None, None] if conv else weights
        self.first = Weights(function, first, axis)
        self.second = Weights(function, second, axis)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, y = INPUT.through(x), INPUT.through(y)
        return tuple(RESULT.through(r) for r in (self.first(x), self.second(x), self.first(y)))


SATURATING = [(16, 0), (16, None), (4, 0), (1, 0)]  # outputs and axis of `Layers`


def check_static_products(outputs: int, axis: int | None, conv: bool, backend: str) -> None:
    """Assert that products of large bytes are within a step of eager."""
    module, inputs = Layers(outputs, axis, conv).eval(), tuple(torch.rand(2, 5, 64) + 1)
    if conv:
        inputs = tuple(x[..., None, None] for x in inputs)
    with torch.no_grad():
        program = delegate.to_backend(torch.export.export(module, inputs), backend)
        assert_runs(program, backend)
        for result, expected in zip(program(*inputs), module(*inputs), strict=True):
            assert_same(result, expected, tolerance=RESULT.scale * 1.01 / float(expected.abs().max()))


class LayersAtRunTime(nn.Module):
    """`Layers` of activations that are quantized at run time."""

    def __init__(self, outputs: int, quantize: type[RunTime]) -> None:
        super().__init__()
        layers = Layers(outputs, 0, conv=False)
        self.first, self.second = quantize(layers.first), quantize(layers.second)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.first(x), self.second(x), self.first(y)


def cpu_has_exact_products() -> bool | None:
    """Return if the instructions of this CPU have exact products of bytes; None if it is not an x86-64 with AVX2."""
    with open("/proc/cpuinfo", encoding="utf-8") as info:
        flags = next((set(line.split()) for line in info if line.startswith("flags")), set[str]())
    return bool(flags & {"avx512_vnni", "avx_vnni"}) if "avx2" in flags else None


class Decoded(nn.Module):
    """A linear layer of int8 weights with a zero point for each output."""

    def __init__(self, zero: float, dtype: torch.dtype) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        self.register_buffer("weight", torch.randint(-100, 100, (6, 8), generator=draw).to(torch.int8))
        self.register_buffer("scale", torch.full((6,), 0.01))
        self.register_buffer("zero", torch.full((6,), zero, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        decode = torch.ops.quantized_decomposed.dequantize_per_channel.default
        weight = decode(self.weight, self.scale, self.zero, 0, -128, 127, torch.int8)
        return nn.functional.linear(x, weight)
