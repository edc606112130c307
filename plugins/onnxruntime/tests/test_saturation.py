"""Products of bytes are exact on CPUs whose products of uint8 and int8 saturate, too.

ONNX Runtime then converts weights to uint8. The conversion is requested here on every CPU.
"""

from __future__ import annotations

import delegate_onnxruntime.runtime
import pytest
import torch
from torch import nn

import delegate
from tests.support import zoo
from tests.support.lowering import assert_runs, assert_same
from tests.support.qdq import Parameters, RunTime, RunTimeRows, Weights

with zoo.libraries():
    import torchao.quantization  # noqa: F401 - registers the operators

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


@pytest.mark.parametrize("saturates", [False, True])
@pytest.mark.parametrize("conv", [False, True])
@pytest.mark.parametrize(("outputs", "axis"), [(16, 0), (16, None), (4, 0), (1, 0)])
def test_static(outputs: int, axis: int | None, conv: bool, saturates: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    module, inputs = Layers(outputs, axis, conv).eval(), tuple(torch.rand(2, 5, 64) + 1)
    if conv:
        inputs = tuple(x[..., None, None] for x in inputs)
    monkeypatch.setattr(delegate_onnxruntime.runtime, "products_saturate", lambda: saturates)
    with torch.no_grad():
        program = delegate.to_backend(torch.export.export(module, inputs), "onnxruntime")
        assert_runs(program, "onnxruntime")
        for result, expected in zip(program(*inputs), module(*inputs), strict=True):
            assert_same(result, expected, tolerance=RESULT.scale * 1.01 / float(expected.abs().max()))


@pytest.mark.parametrize("saturates", [False, True])
@pytest.mark.parametrize("quantize", [RunTime, RunTimeRows])
@pytest.mark.parametrize("outputs", [16, 1])
def test_quantized_at_run_time(
    outputs: int, quantize: type[RunTime], saturates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = Layers(outputs, 0, conv=False)
            self.first, self.second = quantize(layers.first), quantize(layers.second)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return self.first(x), self.second(x), self.first(y)

    module, inputs = Shared().eval(), tuple(torch.rand(2, 5, 64) + 1)
    monkeypatch.setattr(delegate_onnxruntime.runtime, "products_saturate", lambda: saturates)
    with torch.no_grad():
        program = delegate.to_backend(torch.export.export(module, inputs), "onnxruntime")
        assert_runs(program, "onnxruntime")
        for result, expected in zip(program(*inputs), module(*inputs), strict=True):
            assert_same(result, expected, tolerance=1e-5)


def test_this_cpu() -> None:
    """The query of ONNX Runtime agrees with the CPU's instructions."""
    with open("/proc/cpuinfo", encoding="utf-8") as info:
        flags = next((set(line.split()) for line in info if line.startswith("flags")), set[str]())
    if "avx2" not in flags:
        pytest.skip("not a CPU of x86-64 with AVX2")
    exact = bool(flags & {"avx512_vnni", "avx_vnni"})
    assert delegate_onnxruntime.runtime.products_saturate() is not exact
