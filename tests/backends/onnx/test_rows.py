"""Every row of the translations on the real libraries: QNN's emulator of the HTP, and WebGPU on whatever GPU is here.

All cases of a backend go through the compiler as one program, so that a session is made once.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

import delegate
from delegate.backends.gpu.engines import ENGINES
from delegate.backends.onnx.translations import TRANSLATIONS
from delegate.registry import default_registry
from tests.backends.onnx.cases import CASES
from tests.lowering import relative_error

# Operator -> why a backend does not take its case.
PORTABLE = {
    "dsp": dict.fromkeys(
        [f"aten.{n}.default" for n in ("acos", "acosh", "asinh", "asin", "atanh", "cosh", "sinh", "tan", "erf")],
        "QNN has no such operator for the HTP, or is far off",
    ),
    "gpu": {
        "aten.round.default": "the plugin leaves Round to the CPU",
        "aten.logical_or.default": "the plugin leaves Or to the CPU",
        "aten._log_softmax.default": "the plugin leaves LogSoftmax to the CPU",
        "quantized_decomposed.quantize_per_tensor.default": "quantized programs are for other backends",
        "quantized_decomposed.dequantize_per_tensor.default": "quantized programs are for other backends",
        "quantized_decomposed.dequantize_per_channel.default": "quantized programs are for other backends",
    },
}
# float16 on the HTP: what jumps at whole numbers may jump elsewhere.
TOLERANCE = {"dsp": 5e-3, "gpu": 5e-4}
JUMPS = {"aten.ceil.default", "aten.floor.default", "aten.round.default"}


class All(nn.Module):
    """Every case, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        functions = [function for function, _ in CASES.values()]
        self.functions = functions
        self.parts = nn.ModuleList(f for f in functions if isinstance(f, nn.Module))

    def forward(self, *inputs: torch.Tensor) -> list[tuple[torch.Tensor, ...]]:
        given = iter(inputs)
        results = []
        for function, (_, example) in zip(self.functions, CASES.values(), strict=True):
            made = function(*(next(given) for _ in example))
            results.append(tuple(made) if isinstance(made, tuple | list) else (made,))
        return results


def require(backend: str) -> None:
    """Skip, with the reason, where a backend cannot be used; of `gpu`, the engine webgpu."""
    if backend == "gpu" and not ENGINES["webgpu"].probe().ok:
        pytest.skip(f"webgpu: {ENGINES['webgpu'].probe().reason}")
    state = default_registry().state(backend)
    if state.availability is None or not state.availability.ok:
        pytest.skip(f"{state.detail}: {state.remedy}")


@pytest.mark.parametrize("backend", ["dsp", "gpu"])
def test_every_row_runs_on_the_library_and_is_right(backend):
    require(backend)
    module, inputs = All().eval(), tuple(x for _, example in CASES.values() for x in example)
    with torch.no_grad():
        program = delegate.to_backend(torch.export.export(module, inputs), backend)
        expected, actual = module(*inputs), program(*inputs)
    stays = {n.op for n in program.report.nodes if n.backend == "portable"}
    assert stays == set(PORTABLE[backend])
    errors = {}
    for op, wanted, got in zip(CASES, expected, actual, strict=True):
        errors[op] = max(relative_error(g, w) for g, w in zip(got, wanted, strict=True))
    wrong = {op: e for op, e in errors.items() if e > TOLERANCE[backend] and op not in JUMPS}
    assert not wrong


def test_every_row_has_a_case():
    assert set(TRANSLATIONS) - set(CASES) == WITHOUT_CASE


WITHOUT_CASE = {
    "aten.add.Scalar", "aten.sub.Scalar", "aten.mul.Scalar", "aten.div.Scalar",  # exported as .Tensor with a number
    "aten.native_layer_norm.default", "aten._adaptive_avg_pool2d.default",  # what the kept operators decompose to
}  # fmt: skip
