"""Products of bytes are exact on CPUs whose products of uint8 and int8 saturate, too.

ONNX Runtime then converts weights to uint8, which is requested here on every CPU.
"""

from __future__ import annotations

import delegate_onnxruntime.providers.runtime
import pytest
import torch

import delegate
from tests.support.integer_layers import SATURATING, LayersAtRunTime, check_static_products, cpu_has_exact_products
from tests.support.lowering import assert_runs, assert_same
from tests.support.qdq import RunTime, RunTimeRows


@pytest.mark.parametrize("saturates", [False, True])
@pytest.mark.parametrize("conv", [False, True])
@pytest.mark.parametrize(("outputs", "axis"), SATURATING)
def test_static(outputs: int, axis: int | None, conv: bool, saturates: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delegate_onnxruntime.providers.runtime, "products_saturate", lambda: saturates)
    check_static_products(outputs, axis, conv, "onnxruntime")


@pytest.mark.parametrize("saturates", [False, True])
@pytest.mark.parametrize("quantize", [RunTime, RunTimeRows])
@pytest.mark.parametrize("outputs", [16, 1])
def test_quantized_at_run_time(
    outputs: int, quantize: type[RunTime], saturates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, inputs = LayersAtRunTime(outputs, quantize).eval(), tuple(torch.rand(2, 5, 64) + 1)
    monkeypatch.setattr(delegate_onnxruntime.providers.runtime, "products_saturate", lambda: saturates)
    with torch.no_grad():
        program = delegate.to_backend(torch.export.export(module, inputs), "onnxruntime")
        assert_runs(program, "onnxruntime")
        for result, expected in zip(program(*inputs), module(*inputs), strict=True):
            assert_same(result, expected, tolerance=1e-5)


def test_this_cpu() -> None:
    """The query of ONNX Runtime agrees with the CPU's instructions."""
    if (exact := cpu_has_exact_products()) is None:
        pytest.skip("not a CPU of x86-64 with AVX2")
    assert delegate_onnxruntime.providers.runtime.products_saturate() is not exact
