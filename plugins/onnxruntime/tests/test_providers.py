"""Providers: several in one program, such as come in wheels, and such as are not here."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import delegate_onnxruntime.providers.info
import pytest
import torch
import yaml
from delegate_onnxruntime.onnx.aot.translations import table_of
from delegate_onnxruntime.onnx.runtime.provider import CPU
from delegate_onnxruntime.providers.aot.operators import operators_of
from torch import nn

import delegate
from delegate.config import load_config
from delegate.errors import BackendFailed, BackendUnavailable
from delegate.testing import assert_same

MODEL = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Sigmoid()).eval()
X = torch.randn(1, 3, 8, 8)
README = Path(__file__).parents[1] / "README.md"
# QNN's emulator, whose options name a library.
HTP = {"htp_arch": 73, "soc_model": 43, "enable_htp_fp16_precision": True, "offload_graph_io_quantization": 0}
if find_spec("onnxruntime_qnn"):
    HTP["backend_path"] = str(import_module("onnxruntime_qnn").get_qnn_htp_path())
DSP = {"name": "onnxruntime:dsp", "options": {"provider": "QNNExecutionProvider", "provider_options": HTP}}


class Then(nn.Module):
    """A linear layer, then a function."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.linear, self.function = nn.Linear(8, 8), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.linear(x))


def lower_model(*backends: object, **settings: object) -> delegate.CompiledProgram:
    return delegate.to_backend(torch.export.export(MODEL, (X,)), config={"backends": list(backends), **settings})


def test_kernels_say_what_is_taken() -> None:
    operators = operators_of(CPU)
    assert operators["Add"] > {torch.float32, torch.int32, torch.int64, torch.int8}
    assert operators["Conv"] == {torch.float32}
    assert operators["Where"] == operators["Where"] - {torch.bool}  # its first operand is no number
    assert torch.float32 in operators["HardSwish"]  # no kernel: ONNX defines it by others
    assert len(table_of(operators)) > 200
    everything = operators_of("a provider without kernels")
    assert all(operators[name] <= everything[name] for name in operators)


def test_instances_with_threads_of_their_own(tmp_path: Path) -> None:
    program = lower_model(
        {"name": "onnxruntime:one", "options": {"threads": 1}},
        {"name": "onnxruntime:two", "options": {"threads": 2}},
        partitioning={"pins": {"0": "onnxruntime:one", "2": "onnxruntime:two"}},
    )
    program.save(tmp_path / "model.dlg")
    with delegate.load(tmp_path / "model.dlg", options={"onnxruntime:two": {"threads": 1}}) as loaded:
        options = {(s.backend, s.compile_specs["threads"]) for s in loaded.program.delegates}
        assert options == {("onnxruntime:one", 1), ("onnxruntime:two", 1)}
        assert_same(loaded(X.numpy()), MODEL(X))


def test_a_provider_of_a_wheel_beside_the_cpu(tmp_path: Path) -> None:
    """QNN's emulator runs one convolution in float16."""
    pytest.importorskip("onnxruntime_qnn")
    program = lower_model(
        DSP,
        "onnxruntime:cpu",
        partitioning={"pins": {"0": "onnxruntime:dsp", "2": "onnxruntime:cpu"}},
    )
    assert {p.backend for p in program.report.partitions} == {"onnxruntime:dsp", "onnxruntime:cpu"}
    assert_same(program(X), MODEL(X), 3.5e-3)  # 9.5e-4 is measured: the provider computes in float16
    program.save(tmp_path / "model.dlg")
    with pytest.raises(BackendFailed, match="trust_code=True"):
        delegate.load(tmp_path / "model.dlg")
    with delegate.load(tmp_path / "model.dlg", trust_code=True) as loaded:
        assert_same(loaded(X.numpy()), MODEL(X), 3.5e-3)  # 9.5e-4 is measured: the provider computes in float16


@pytest.mark.skipif("VK_DRIVER_FILES" not in os.environ, reason="no software GPU is here")
def test_what_a_provider_has_no_kernel_for_is_composed_of_others() -> None:
    webgpu = {"name": "onnxruntime:gpu", "options": {"provider": "WebGpuExecutionProvider"}}
    module, x = Then(torch.round).eval(), torch.randn(2, 8)
    program = delegate.to_backend(torch.export.export(module, (x,)), config={"backends": [webgpu, "onnxruntime"]})
    assert "Round" not in operators_of("WebGpuExecutionProvider")
    assert {n.backend for n in program.report.nodes} == {"onnxruntime:gpu"}
    assert_same(program(x), module(x))


def test_what_a_provider_leaves_to_the_cpu_is_planned_elsewhere() -> None:
    """QNN compiles whole graphs, and has no product over a dimension."""
    pytest.importorskip("onnxruntime_qnn")
    module, x = Then(partial(torch.prod, dim=1)).eval(), torch.randn(2, 8)
    program = delegate.to_backend(torch.export.export(module, (x,)), config={"backends": [DSP, "onnxruntime"]})
    assert [n.backend for n in program.report.nodes] == ["onnxruntime:dsp", "onnxruntime"]
    assert "does not support this ReduceProd" in program.report.nodes[-1].verdicts["onnxruntime:dsp"].message
    assert_same(program(x), module(x), 7e-3)  # 2e-3 is measured


def test_a_provider_that_is_not_here() -> None:
    with pytest.raises(BackendUnavailable, match=r"no provider 'CUDAExecutionProvider' here: .*CPUExecutionProvider.*"):
        lower_model({"name": "onnxruntime", "options": {"provider": "CUDAExecutionProvider"}})
    absent = {"name": "onnxruntime:gpu", "options": {"provider": "CUDAExecutionProvider"}}
    program = lower_model(absent, "onnxruntime:cpu", policy={"unavailable": "skip"})
    assert {p.backend for p in program.report.partitions} == {"onnxruntime:cpu"}
    assert any("CUDAExecutionProvider" in note for note in program.report.notes)


def test_wheels_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution called after ONNX Runtime whose package names providers and gives a library."""
    for name, source in (
        ("onnxruntime_ep_toy", "def get_ep_names(): return ['Toy']\ndef get_library_path(): return 'toy.so'\n"),
        ("onnxruntime_ep_bad", "1 / 0\n"),
        ("onnxruntime_other", ""),
    ):
        (tmp_path / f"{name}.py").write_text(source)
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    providers = delegate_onnxruntime.providers.info
    providers.plugin_wheels.cache_clear()
    try:
        wheel, library = providers.plugin_wheels()["Toy"]
        assert (wheel, library()) == ("onnxruntime-ep-toy", "toy.so")
        with pytest.raises(BackendUnavailable, match="Toy cannot be loaded"):
            providers.find("Toy")
    finally:
        providers.plugin_wheels.cache_clear()


def test_the_configurations_of_the_readme_run() -> None:
    examples = re.findall(r"```yaml\n(.*?)```", README.read_text(), re.DOTALL)
    assert examples
    for example in examples:
        config = yaml.safe_load(example)
        assert load_config(config)
        program = delegate.to_backend(torch.export.export(MODEL, (X,)), config=config)
        assert program.report.partitions
        assert all(p.backend.startswith("onnxruntime") for p in program.report.partitions)
        assert_same(program(X), MODEL(X))
