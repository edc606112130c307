"""Machine code in files of backends on ONNX Runtime: QNN's context binaries open only if the caller trusts the file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from delegate_onnxruntime.dsp.runtime import DspRuntime
from delegate_onnxruntime.onnx.runtime.blob import OnnxModel
from delegate_onnxruntime.onnx.runtime.provider import CPU, Provider
from delegate_onnxruntime.onnx.runtime.session import open_session, session_options
from torch import nn
from typer.testing import CliRunner

import delegate
from delegate.cli.app import app
from delegate.errors import BackendFailed
from delegate.program.file import serialize
from delegate.program.model import Program
from tests.support.availability import require
from tests.support.lowering import assert_runs, assert_same

X = torch.linspace(-2, 2, 12).view(2, 6)
REFUSED = r"machine code.*partition dsp_0 of dsp in method forward.*trust_code=True \(--trust-code\)"
HOST = Provider(CPU, built_in=True)


def lower_model(*, keep: bool = False) -> delegate.CompiledProgram:
    config = {"backends": ["dsp"], "partitioning": {"min_partition_size": 0}, "fallback": {"keep": keep}}
    program = delegate.to_backend(torch.export.export(nn.ReLU(), (X,)), config=config)
    assert_runs(program, "dsp")
    return program


@pytest.fixture(scope="module")
def compiled() -> delegate.CompiledProgram:
    require("dsp")
    return lower_model()


def change_program(
    program: Program, specs: Mapping[str, Any], blob: bytes | None = None, backend: str = "dsp"
) -> Program:
    """Return the program with other compile specs, another blob and another backend."""
    (spec,) = program.delegates
    segments = tuple(s if blob is None or i != spec.segment else blob for i, s in enumerate(program.segments))
    spec = spec._replace(backend=backend, compile_specs={**spec.compile_specs, **specs})
    return program._replace(delegates=(spec,), segments=segments)


@pytest.mark.parametrize("isolate", [False, True])
def test_a_context_binary_opens_only_with_trust(compiled: delegate.CompiledProgram, isolate: bool) -> None:
    assert_same(compiled(X), X.relu(), 1e-3)  # lowered in this process: it takes no trust
    data = serialize(compiled.program)
    with pytest.raises(BackendFailed, match=REFUSED):
        delegate.load(data, isolate=isolate)
    with delegate.load(data, isolate=isolate, trust_code=True) as program:
        assert_same(program(X.numpy()), X.relu(), 1e-3)


@pytest.mark.parametrize(
    "specs",
    [{}, {"code": False}, {"graph": 10}, {"runs_code": False}, {"versions": {}}, {"target": ["", 73, 43]}],
    ids=str,
)
def test_no_compile_spec_waives_the_trust(compiled: delegate.CompiledProgram, specs: Mapping[str, Any]) -> None:
    assert DspRuntime().runs_code(specs)
    with pytest.raises(BackendFailed, match=REFUSED):
        delegate.load(serialize(change_program(compiled.program, specs)))


def test_a_partition_with_a_fallback_runs_on_it(tmp_path: Path) -> None:
    require("dsp")
    lower_model(keep=True).save(tmp_path / "kept.dlg")
    with pytest.warns(RuntimeWarning, match="machine code"), delegate.load(tmp_path / "kept.dlg") as program:
        assert torch.equal(torch.from_numpy(program(X.numpy())), X.relu())


def test_the_command_line(compiled: delegate.CompiledProgram, tmp_path: Path) -> None:
    compiled.save(tmp_path / "model.dlg")
    refused = CliRunner().invoke(app, ["run", str(tmp_path / "model.dlg")])
    assert refused.exit_code == 1
    assert "--trust-code" in refused.output
    assert CliRunner().invoke(app, ["run", str(tmp_path / "model.dlg"), "--trust-code"]).exit_code == 0


@pytest.mark.parametrize("trust", [False, True])
def test_no_other_backend_opens_a_context_binary(compiled: delegate.CompiledProgram, trust: bool) -> None:
    require("webgpu")
    with pytest.raises(BackendFailed, match="its graph holds machine code, which this backend never writes"):
        delegate.load(serialize(change_program(compiled.program, {}, backend="webgpu")), trust_code=trust)


def test_code_in_a_branch_of_a_graph_is_found() -> None:
    """A node within a graph of control flow, between others that are right."""
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    result = helper.make_tensor_value_info("r", 1, [2])
    code = helper.make_node("EPContext", ["x"], ["r"], domain="com.microsoft", embed_mode=0, ep_cache_context="a.bin")
    right = helper.make_graph([helper.make_node("Relu", ["x"], ["r"])], "a", [], [result])
    wrong = helper.make_graph([code], "b", [], [result])
    node = helper.make_node("If", ["c"], ["y"], then_branch=right, else_branch=wrong)
    inputs = [helper.make_tensor_value_info("c", 9, []), helper.make_tensor_value_info("x", 1, [2])]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", 1, [2])])
    model = OnnxModel(helper.make_model(graph, ir_version=9).SerializeToString())
    with pytest.raises(BackendFailed, match="its graph holds machine code"):
        open_session(model, session_options(HOST, {}), HOST)
