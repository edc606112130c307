"""Operators between dequantize and quantize operators: which ones OpenVINO computes in integers, and their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from delegate_openvino.schemes import INTEGERS
from torch import nn

import delegate
from delegate.quantization import quantize
from tests.support.lowering import assert_runs, assert_same
from tests.support.qdq import Coded, Parameters, Weights, fitted
from tests.support.quantized import floats_within, settings_of, sqnr

IMAGES, ROWS = (2, 8, 9, 9), (3, 64)


@dataclass(frozen=True, slots=True)
class Case:
    """An operator between integers.

    Args:
        op: the edge operator.
        call: the function or module.
        shapes: The shapes of its inputs.
        floats: the kind of the layer that OpenVINO computes in floats; empty if it computes in integers.
    """

    op: str
    call: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...] = (IMAGES,)
    floats: str = ""


def _filters(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)) / 4


def _conv(shape: tuple[int, ...], axis: int | None = 0, bias: bool = True, **options: Any) -> Weights:
    def call(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None) -> torch.Tensor:
        return F.conv2d(x, w, b, **options)

    return Weights(call, _filters(*shape), axis, _filters(shape[0]) if bias else None, act=F.relu)


_LINEAR = Weights(F.linear, _filters(16, 64), 0, _filters(16))
CASES: Mapping[str, Case] = {
    "convolution": Case("aten.convolution.default", _conv((16, 8, 3, 3), padding=1)),
    "convolution, one scale": Case("aten.convolution.default", _conv((16, 8, 3, 3), None, False, stride=2)),
    "depthwise": Case("aten.convolution.default", _conv((8, 1, 3, 3), groups=8)),
    "groups": Case("aten.convolution.default", _conv((16, 4, 3, 3), groups=2, dilation=2)),
    "linear": Case("aten.linear.default", _LINEAR, (ROWS,)),
    "linear, images": Case("aten.linear.default", _LINEAR, ((2, 5, 64),)),
    "mm": Case("aten.mm.default", torch.mm, (ROWS, (64, 5)), floats="MatMul"),
    "bmm": Case("aten.bmm.default", torch.bmm, ((2, 3, 64), (2, 64, 5))),
    "matmul": Case("aten.matmul.default", torch.matmul, ((2, 4, 3, 64), (2, 4, 64, 5))),
    "add": Case("aten.add.Tensor", torch.add, (IMAGES, IMAGES)),
    "mul": Case("aten.mul.Tensor", torch.mul, (IMAGES, IMAGES)),
    "average pool": Case("aten.avg_pool2d.default", lambda x: F.avg_pool2d(x, 3)),
    "global pool": Case("aten._adaptive_avg_pool2d.default", lambda x: F.adaptive_avg_pool2d(x, 1)),
    "max pool": Case("aten.max_pool2d_with_indices.default", lambda x: F.max_pool2d(x, 3, 2, 1)),
}


def test_each_row_has_a_case_in_integers() -> None:
    assert {case.op for case in CASES.values() if not case.floats} >= INTEGERS


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_operators(name: str, dtype: torch.dtype) -> None:
    """Results are within one step of eager."""
    case, draw = CASES[name], torch.Generator().manual_seed(0)
    inputs = tuple(torch.randn(shape, generator=draw) for shape in case.shapes)
    with torch.no_grad():
        result = fitted([case.call(*inputs)], dtype)
        module = Coded(case.call, [fitted([x], dtype) for x in inputs], result).eval()
        program = delegate.to_backend(torch.export.export(module, inputs), "openvino")
        assert_runs(program, "openvino")
        got, expected = program(*inputs), module(*inputs)
    kinds = [note.split(": ")[1].split(" (")[0] for note in floats_within(program)]
    assert kinds == ([case.floats] if case.floats else [])
    assert_same(got, expected, result.scale * 1.01 / float(expected.abs().max()))


class Small(nn.Module):
    """A small network with a residual, pools and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.depthwise = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.last, self.head = nn.Conv2d(16, 16, 1), nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.first(x)), 2)
        x = x + F.relu6(self.last(F.relu6(self.depthwise(x))))
        logits: torch.Tensor = self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return logits


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_network_in_integers(dynamic: bool, tmp_path: Path) -> None:
    """A quantized network is one partition without floats, and its file has its integers."""
    torch.manual_seed(0)
    module, x = Small().eval(), torch.randn(2, 3, 32, 32)
    shapes = ({0: torch.export.Dim("batch", min=1, max=16)},) if dynamic else None
    exported = torch.export.export(module, (x,), dynamic_shapes=shapes)
    quantized = quantize(exported, settings_of("openvino", "static_int8"), [(torch.randn(2, 3, 32, 32),)] * 4)
    program = delegate.to_backend(quantized, "openvino")
    assert_runs(program, "openvino")
    assert len(program.report.partitions) == 1
    assert floats_within(program) == []
    program.save(tmp_path / "small.dlg")
    with torch.no_grad(), delegate.load(tmp_path / "small.dlg") as loaded:
        for images in (2, 5) if dynamic else (2,):
            x = torch.randn(images, 3, 32, 32)
            result = torch.from_numpy(loaded(x.numpy()).copy())
            assert sqnr(quantized.module()(x), result) >= 25
            assert_same(program(x), result, 0)


class Joined(nn.Module):
    """Two convolutions, a concatenation that a convolution reads, and a second concatenation of its result.

    Args:
        join: the first concatenation.
        channels: The channels that its result has.
    """

    def __init__(self, join: Callable[..., torch.Tensor], channels: int) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Conv2d(3, 8, 1), nn.Conv2d(3, 8, 1), nn.Conv2d(channels, 8, 1)
        self.join = join

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.first(x)
        z = self.last(self.join(y, self.second(x)))
        return z, torch.cat([z, y], 1)


JOINS: Mapping[str, tuple[Callable[..., torch.Tensor], int]] = {
    "channels": (lambda a, b: torch.cat([a, b], 1), 16),
    "rows": (lambda a, b: torch.cat([a, b], 2)[:, :, :8], 8),
    "activations": (lambda a, b: torch.cat([a.relu(), b.relu()], 1), 16),
    "other scales": (lambda a, b: torch.cat([a * 7, b * 0.3], 1), 16),
    "parts": (lambda a, b: torch.cat([a[:, :2], b, a[:, 2:]], 1), 16),
    "pools": (lambda a, b: torch.cat([F.max_pool2d(a, 3, 1, 1), b], 1), 16),
}


@pytest.mark.parametrize("name", JOINS)
def test_concatenations_in_integers(name: str) -> None:
    """Negative integers of a concatenation would count as 0 in the convolution after it: 4 dB."""
    torch.manual_seed(0)
    module, batches = Joined(*JOINS[name]).eval(), [(torch.randn(1, 3, 8, 8),) for _ in range(3)]
    program = quantize(torch.export.export(module, batches[0]), settings_of("xnnpack", "static_int8"), batches)
    lowered = delegate.to_backend(program, "openvino")
    assert_runs(lowered, "openvino")
    assert floats_within(lowered) == []
    for result, expected in zip(lowered(*batches[0]), program.module()(*batches[0]), strict=True):
        assert sqnr(expected.detach(), result) >= 30


@pytest.mark.parametrize(
    ("low", "high", "dtype"),
    [(-128, 127, torch.int8), (-8, 7, torch.int8), (0, 255, torch.uint8), (-127, 127, torch.int8)],
)
@pytest.mark.parametrize("zero_point", [0, 5, 300])
def test_conversions_alone(low: int, high: int, dtype: torch.dtype, zero_point: int) -> None:
    """Numbers of every step, beyond the ends, and infinities are quantized and decoded as in eager."""
    quantized, ends = torch.ops.quantized_decomposed, (low, high, dtype)

    class Through(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            integers = quantized.quantize_per_tensor.default(x, 0.25, zero_point, *ends)
            return integers, quantized.dequantize_per_tensor.default(integers, 0.25, zero_point, *ends)

    x = torch.cat([torch.arange(-800, 800) / 4 + 0.1, torch.tensor([float("inf"), -float("inf"), -0.0])])
    program = delegate.to_backend(torch.export.export(Through(), (x,)), "openvino")
    assert_runs(program, "openvino")
    assert_same(program(x), Through()(x), 0)


@pytest.mark.parametrize("scale", [1e-45, 1e38], ids=str)
def test_scales_beyond_floats_are_refused(scale: float) -> None:
    module, x = Coded(torch.relu, [Parameters(scale, 0)], None).eval(), torch.randn(4)
    program = delegate.to_backend(torch.export.export(module, (x,)), "openvino")
    reasons = " ".join(str(n.verdicts["openvino"]) for n in program.report.nodes)
    assert "beyond the numbers of float32" in reasons
