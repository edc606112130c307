"""Whole models on the emulated DSP and on whatever GPU is here: partitions, and the error to eager in float32."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.utils._pytree as pytree

import delegate
from tests import zoo
from tests.backends.onnx.test_rows import require
from tests.lowering import relative_error

# Model -> partitions, largest relative error. In torch too, float16 makes 1.1e-2 to 1.9e-2 of mobilenet_v2.
DSP = {
    "mobilenet_v2": (1, 2e-2),
    "mobilenet_v3_small": (1, 1e-2),
    "resnet18": (1, 1e-2),
    "vit_tiny": (1, 1e-2),
    "bert_mini": (1, 1e-2),
}
GPU = {
    "mobilenet_v2": (1, 1e-3),
    "mobilenet_v3_small": (1, 1e-3),
    "resnet18": (1, 1e-3),
    "vit_tiny": (1, 1e-3),
    "bert_mini": (1, 1e-3),
}
CONFIG = Path(__file__).parents[3] / "configs/dsp.yaml"
QUICK = ("mobilenet_v3_small", "bert_mini")
ROWS = [
    pytest.param(backend, name, *row, marks=[] if name in QUICK else pytest.mark.slow)
    for backend, models in (("dsp", DSP), ("webgpu", GPU))
    for name, row in models.items()
]


@pytest.mark.parametrize(("backend", "name", "partitions", "tolerance"), ROWS)
def test_model(backend, name, partitions, tolerance, tmp_path):
    require(backend)
    module, inputs = zoo.make(name)
    program = delegate.to_backend(zoo.export(name), backend)
    assert len(program.report.partitions) == partitions
    program.save(tmp_path / "model.dlg")
    with delegate.load(tmp_path / "model.dlg", trust_code=backend == "dsp") as loaded, torch.no_grad():
        actual = loaded.method("forward").run([x.numpy() for x in inputs])
        expected = pytree.tree_leaves(module(*inputs))
    assert max(relative_error(a, e) for a, e in zip(actual, expected, strict=True)) <= tolerance


@pytest.mark.slow
def test_the_first_layers_in_float32():
    """The error of mobilenet_v2 on the DSP is that of its first layers, enlarged by the others; they are found."""
    require("dsp")
    module, inputs = zoo.make("mobilenet_v2")
    program = delegate.to_backend(zoo.export("mobilenet_v2"), config=CONFIG, verify=inputs)
    assert [p.backend for p in program.report.partitions] == ["xnnpack", "dsp"]
    assert program.report.partitions[1].work > 0.7
    with torch.no_grad():
        assert relative_error(program(*inputs), module(*inputs)) <= 1e-2
