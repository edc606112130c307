"""Products of bytes are exact on CPUs whose products of uint8 and int8 saturate, too.

Its low-precision transformations are off then, which is requested here on every CPU.
"""

from __future__ import annotations

import delegate_openvino.settings
import pytest
import torch

import delegate
from tests.support.integer_layers import SATURATING, LayersAtRunTime, check_static_products, cpu_has_exact_products
from tests.support.lowering import assert_runs
from tests.support.qdq import RunTime, RunTimeRows
from tests.support.quantized import sqnr


@pytest.mark.parametrize("saturates", [False, True])
@pytest.mark.parametrize("conv", [False, True])
@pytest.mark.parametrize(("outputs", "axis"), SATURATING)
def test_static(outputs: int, axis: int | None, conv: bool, saturates: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delegate_openvino.settings, "products_saturate", lambda: saturates)
    check_static_products(outputs, axis, conv, "openvino")


@pytest.mark.parametrize("saturates", [False, True])
@pytest.mark.parametrize("quantize", [RunTime, RunTimeRows])
@pytest.mark.parametrize("outputs", [16, 1])
def test_quantized_at_run_time(
    outputs: int, quantize: type[RunTime], saturates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, inputs = LayersAtRunTime(outputs, quantize).eval(), tuple(torch.rand(2, 5, 64) + 1)
    monkeypatch.setattr(delegate_openvino.settings, "products_saturate", lambda: saturates)
    with torch.no_grad():
        program = delegate.to_backend(torch.export.export(module, inputs), "openvino")
        assert_runs(program, "openvino")
        for result, expected in zip(program(*inputs), module(*inputs), strict=True):
            assert sqnr(expected, result) >= 38


def test_this_cpu() -> None:
    """The query of OpenVINO agrees with the CPU's instructions."""
    if (exact := cpu_has_exact_products()) is None:
        pytest.skip("not a CPU of x86-64 with AVX2")
    assert delegate_openvino.settings.products_saturate() is not exact
