"""Whole models on the emulated DSP and on whatever GPU is here, which run every node: the error to eager in float32."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import delegate
from tests.support import zoo
from tests.support.availability import require
from tests.support.lowering import relative_error
from tests.support.whole_models import QUICK, check

# Largest errors. In torch too, float16 makes 1.1e-2 to 1.9e-2 of mobilenet_v2.
TOLERANCE = {"dsp": 1e-2, "webgpu": 1e-3}
# Of the inputs of models in the default run: software GPUs and emulators take long for the usual sizes.
SIZES = {"resnet18": 96, "bert_mini": 32}
COARSE = {("dsp", "mobilenet_v2"): 2e-2}
CONFIG = Path(__file__).parents[4] / "configs/dsp.yaml"
ROWS = [
    pytest.param(backend, name, marks=[] if name in QUICK else pytest.mark.slow)
    for backend in TOLERANCE
    for name in ("mobilenet_v2", "mobilenet_v3_small", "resnet18", "vit_tiny", "bert_mini")
]


@pytest.mark.parametrize(("backend", "name"), ROWS)
def test_model(backend, name, tmp_path):
    require(backend)
    check(name, backend, tmp_path, COARSE.get((backend, name), TOLERANCE[backend]), size=SIZES.get(name))


@pytest.mark.slow
def test_the_first_layers_in_float32():
    """The error of mobilenet_v2 on the DSP is that of its first layers, enlarged by the others; they are found."""
    require("dsp")
    module, inputs = zoo.make("mobilenet_v2")
    program = delegate.to_backend(zoo.export("mobilenet_v2"), config=CONFIG, verify=inputs)
    *moved, last = program.report.partitions  # how many layers move depends on the emulator's version and the CPU
    assert last.backend == "dsp"
    assert last.work > 0.7
    assert all(p.backend == "xnnpack" for p in moved)
    with torch.no_grad():
        assert relative_error(program(*inputs), module(*inputs)) <= 1e-2
