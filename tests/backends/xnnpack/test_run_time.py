"""Layers with activations quantized at run time, and weights in integers, as torchao and PT2E convert them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import delegate
from tests.support import zoo
from tests.support.lowering import assert_runs, assert_same
from tests.support.qdq import QD, RunTime, Weights
from tests.support.quantized import floats_within, require_whole, sqnr
from tests.support.sampling import every
from tests.support.silence import silence  # noqa: F401 - for every test here

with zoo.libraries():
    import torchao.quantization as ao

BATCH = torch.export.Dim("batch", min=1, max=64)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 384), nn.ReLU(), nn.LayerNorm(384), nn.Linear(384, 128, bias=False)).eval()


@dataclass(frozen=True, slots=True)
class Config:
    """A configuration of torchao's quantize_ for linear layers.

    Args:
        config: of torchao.
        least: smallest SQNR in dB of the program relative to the quantized module in eager.
        size: of the file, relative to the file in floats.
    """

    config: Callable[[], Any]
    least: float
    size: float


CONFIGS: Mapping[str, Config] = {
    "int8 weights": Config(ao.Int8WeightOnlyConfig, 100, 0.32),
    "int8": Config(ao.Int8DynamicActivationInt8WeightConfig, 32, 0.32),  # XNNPACK's ranges are not about 0
    "int8 affine": Config(lambda: _intx(torch.int8, ao.PerAxis(0)), 100, 0.32),
    "int4": Config(lambda: _intx(torch.int4, ao.PerAxis(0)), 100, 0.18),
    "int4 in blocks of 32": Config(lambda: _intx(torch.int4, ao.PerGroup(32)), 40, 0.2),
    "int4 in blocks of 128": Config(lambda: _intx(torch.int4, ao.PerGroup(128)), 40, 0.18),
    "int8 weights, affine": Config(
        lambda: ao.IntxWeightOnlyConfig(weight_dtype=torch.int8, granularity=ao.PerAxis(0)), 100, 0.32
    ),
    "int4 weights in blocks": Config(
        lambda: ao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=ao.PerGroup(32)), 100, 1.1
    ),
}


def _intx(dtype: torch.dtype, granularity: Any) -> Any:
    return ao.Int8DynamicActivationIntxWeightConfig(weight_dtype=dtype, weight_granularity=granularity)


@pytest.mark.parametrize(("name", "rows"), every(3, CONFIGS, [(5,), (2, 3)]), ids=str)
def test_quantize_(name: str, rows: tuple[int, ...], tmp_path: Path) -> None:
    form, module = CONFIGS[name], network()
    x = torch.randn(*rows, 256)
    floats = module(x).detach()
    whole = delegate.to_backend(torch.export.export(module, (x,)), "xnnpack")
    ao.quantize_(module, form.config())
    exported = torch.export.export(module, (x,), dynamic_shapes=({0: BATCH},))
    program = delegate.to_backend(exported, "xnnpack")
    require_whole(program)
    for size in (rows[0], 1, 7):
        batch = torch.cat([x] * 4)[:size]
        expected = module(batch).detach()
        assert sqnr(expected, program(batch)) >= form.least
    assert sqnr(floats, program(x)) >= sqnr(floats, module(x).detach()) - 0.5
    for kind, saved in (("floats", whole), ("small", program)):
        saved.save(tmp_path / kind)
    assert os.path.getsize(tmp_path / "small") <= form.size * os.path.getsize(tmp_path / "floats")


def _conv(shape: tuple[int, ...], axis: int | None = 0, f: Any = nn.functional.conv2d, **options: Any) -> Any:
    outputs = shape[1] if "transpose" in f.__name__ else shape[0]
    return lambda: Weights(lambda x, w, b: f(x, w, b, **options), torch.randn(shape), axis, torch.randn(outputs))


# Name -> shape of the activation, and the layer; each image and each row has a range of its own on XNNPACK.
LAYERS: Mapping[str, tuple[tuple[int, ...], Callable[[], nn.Module]]] = {
    "conv": ((2, 8, 9, 7), _conv((6, 8, 3, 3), padding=1)),
    "conv per tensor": ((2, 8, 9, 7), _conv((6, 8, 3, 3), axis=None)),
    "conv groups": ((2, 8, 9, 7), _conv((6, 4, 3, 3), groups=2, stride=2)),
    "conv dilation": ((2, 8, 9, 7), _conv((6, 8, 3, 3), dilation=2, padding=(1, 2))),
    "conv 1d": ((2, 8, 11), _conv((6, 8, 3), f=nn.functional.conv1d)),
    "transposed": ((2, 8, 5, 7), _conv((8, 6, 3, 3), axis=1, f=nn.functional.conv_transpose2d, stride=2)),
    "linear": ((4, 32), _conv((6, 32), f=nn.functional.linear)),
    "linear per tensor": ((4, 32), _conv((6, 32), axis=None, f=nn.functional.linear)),
    "linear of a vector": ((32,), _conv((6, 32), f=nn.functional.linear)),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", LAYERS)
def test_pt2e(name: str, seed: int) -> None:
    torch.manual_seed(seed)
    shape, make = LAYERS[name]
    layer, x = make().eval(), torch.randn(shape) * 3 + seed
    program = delegate.to_backend(torch.export.export(RunTime(layer).eval(), (x,)), "xnnpack")
    require_whole(program)
    exact = layer(x).detach()
    reference = sqnr(exact, RunTime(layer)(x).detach())
    assert sqnr(exact, program(x)) >= min(reference - 1, 38)


def test_a_depthwise_convolution_reports_its_reason() -> None:
    layer = _conv((8, 1, 3, 3), groups=8)()
    exported = torch.export.export(RunTime(layer).eval(), (torch.randn(2, 8, 9, 7),))
    report = delegate.to_backend(exported, "xnnpack").report
    verdicts = " ".join(str(v) for n in report.nodes for v in n.verdicts.values())
    assert "depthwise" in verdicts


@dataclass(frozen=True, slots=True)
class Unfit:
    """Weights of a linear layer that XNNPACK does not support with activations in integers.

    Args:
        reason: part of the reported reason.
        dtype: of the integers.
        factor: of the first row's scale.
        zero: the zero points.
    """

    reason: str
    dtype: torch.dtype = torch.int8
    factor: float = 1.0
    zero: float = 0


UNFIT: Mapping[str, Unfit] = {
    "int16": Unfit("values of int16", torch.int16),
    "int32": Unfit("values of int32", torch.int32),
    "a scale of 0": Unfit("scales outside", factor=0),
    "a tiny scale": Unfit("scales outside", factor=1e-20),
    "zero points": Unfit("zero points other than 0", zero=3),
    "zero points between": Unfit("zero points that are not whole numbers", zero=2.5),
}


class PerRow(nn.Module):
    """A linear layer of integers, with a scale and a zero point for each output."""

    def __init__(self, unfit: Unfit) -> None:
        super().__init__()
        self.dtype = unfit.dtype
        self.register_buffer("weight", torch.randint(-100, 100, (6, 8)).to(unfit.dtype))
        self.register_buffer("scale", torch.tensor([unfit.factor, *[1.0] * 5]) * 0.01)
        self.register_buffer("zero", torch.full((6,), unfit.zero))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        info = torch.iinfo(self.dtype)
        ends = (info.min, info.max, self.dtype)
        return nn.functional.linear(x, QD.dequantize_per_channel(self.weight, self.scale, self.zero, 0, *ends))


@pytest.mark.parametrize("name", UNFIT)
def test_unsupported_weights_are_decoded_and_reported(name: str) -> None:
    torch.manual_seed(0)
    unfit, x = UNFIT[name], torch.randn(3, 8)
    layer = PerRow(unfit).eval()
    for module in (RunTime(layer).eval(), layer):
        program = delegate.to_backend(torch.export.export(module, (x,)), "xnnpack")
        assert_same(program(x), module(x))
        verdicts = " ".join(str(v) for n in program.report.nodes for v in n.verdicts.values())
        assert module is layer or unfit.reason in verdicts


@pytest.mark.parametrize(("inputs", "kernel"), [(32, ()), (33, ()), (8, (3, 3)), (8, (2, 2)), (7, (1, 4))], ids=str)
def test_int4_per_channel(inputs: int, kernel: tuple[int, ...]) -> None:
    """An odd number of inputs, and a convolution, take the same numbers in 8 bits."""
    torch.manual_seed(0)
    layer = Weights(
        nn.functional.conv2d if kernel else nn.functional.linear,
        torch.randn(6, inputs, *kernel), 0, torch.randn(6), bits=4,
    ).eval()  # fmt: skip
    x = torch.randn(3, inputs, *(5 for _ in kernel))
    program = delegate.to_backend(torch.export.export(RunTime(layer).eval(), (x,)), "xnnpack")
    require_whole(program)
    assert sqnr(layer(x).detach(), program(x)) >= 32


def test_unsupported_blocks_are_decoded_and_reported() -> None:
    module, x = network(), torch.randn(3, 256)
    ao.quantize_(module, _intx(torch.int4, ao.PerGroup(16)))
    exported = torch.export.export(module, (x,))
    program = delegate.to_backend(exported, "xnnpack")
    assert sqnr(module(x).detach(), program(x)) >= 80
    assert any("blocks of 16" in note for note in floats_within(program))


def test_other_readers_of_a_quantized_input_get_correct_values() -> None:
    """Return the quantized value as a result, too: XNNPACK then cannot quantize it in the layer."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = _conv((6, 32), f=nn.functional.linear)()

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            scale, zero = QD.choose_qparams.tensor(x, -128, 127, 1e-7, torch.int8)
            coded = QD.quantize_per_tensor.tensor(x, scale, zero, -128, 127, torch.int8)
            seen = QD.dequantize_per_tensor.tensor(coded, scale, zero, -128, 127, torch.int8)
            return self.layer(seen), seen

    x = torch.randn(4, 32)
    module = Both().eval()
    program = delegate.to_backend(torch.export.export(module, (x,)), "xnnpack")
    left = ("choose_qparams", "quantize_per_tensor", "dequantize_per_tensor")
    assert_runs(program, "xnnpack", {f"quantized_decomposed.{name}.tensor": 1 for name in left})
    for got, expected in zip(program(x), module(x), strict=True):
        assert_same(got, expected)
