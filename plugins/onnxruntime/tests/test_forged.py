"""Forged blobs: a graph of ONNX may name files and hold machine code, but no file is read, and no code runs."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import delegate
from delegate.errors import BackendFailed
from delegate.program.file import serialize
from delegate.program.model import Program
from delegate.testing import assert_same

X = torch.linspace(-1, 1, 8).reshape(2, 4)


def secret() -> Any:
    """A tensor whose numbers lie in a file."""
    tensor = onnx.TensorProto(name="w", data_type=1, dims=[2, 4], data_location=onnx.TensorProto.EXTERNAL)
    for key, value in (("location", "secret.bin"), ("offset", "0"), ("length", "32")):
        tensor.external_data.add(key=key, value=value)
    return tensor


def weight() -> tuple[list[Any], list[Any]]:
    return [], [secret()]


def constant() -> tuple[list[Any], list[Any]]:
    return [onnx.helper.make_node("Constant", [], ["w"], value=secret())], []


def forge(made: tuple[list[Any], list[Any]]) -> Program:
    """A program whose result is what it read."""
    program = delegate.to_backend(torch.export.export(nn.ReLU(), (X,)), "onnxruntime").program
    nodes, weights = made
    nodes.append(onnx.helper.make_node("Where", ["c", "w", "x"], ["y"]))
    nodes.insert(0, onnx.helper.make_node("Cast", ["x"], ["c"], to=onnx.TensorProto.BOOL))
    x, y = (onnx.helper.make_tensor_value_info(name, 1, [2, 4]) for name in "xy")
    graph = onnx.helper.make_graph(nodes, "g", [x], [y], weights)
    blob = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    data: bytes = blob.SerializeToString()
    (spec,) = program.delegates
    specs = {"graph": len(data), "weights": [], "inputs": [["x", 1]], "outputs": [["y", 1]]}
    spec = spec._replace(compile_specs={**spec.compile_specs, **specs})
    segments = tuple(data if i == spec.segment else s for i, s in enumerate(program.segments))
    return program._replace(delegates=(spec,), segments=segments)


@pytest.mark.parametrize("made", [weight, constant], ids=lambda made: made.__name__)
def test_no_file_is_read(
    made: Callable[[], tuple[list[Any], list[Any]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.arange(8, dtype=np.float32).tofile(tmp_path / "secret.bin")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BackendFailed, match=re.escape(os.devnull)):
        delegate.load(serialize(forge(made())))


def make_compiled_node() -> tuple[list[Any], list[Any]]:
    """A node that holds what QNN compiled, in the place of the weight."""
    node = onnx.helper.make_node("EPContext", ["x"], ["w"], domain="com.microsoft", embed_mode=1, source="QNN")
    return [node], []


@pytest.mark.parametrize("provider", ["CPUExecutionProvider", "QNNExecutionProvider"])
@pytest.mark.parametrize("trust", [False, True])
def test_no_machine_code_is_opened(provider: str, trust: bool) -> None:
    program = forge(make_compiled_node())
    (spec,) = program.delegates
    spec = spec._replace(compile_specs={**spec.compile_specs, "provider": provider, "provider_options": {}})
    if provider != "CPUExecutionProvider":
        pytest.importorskip("onnxruntime_qnn")
    with pytest.raises(BackendFailed, match="its graph holds machine code, which this backend never writes"):
        delegate.load(serialize(program._replace(delegates=(spec,))), trust_code=trust)


class Named(nn.Module):
    """A model with a constant whose bytes are the name of the operator that holds machine code."""

    def __init__(self) -> None:
        super().__init__()
        self.EPContext = nn.Parameter(torch.frombuffer(bytearray(b"EPContextEPConte"), dtype=torch.float32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.EPContext


def test_a_model_that_has_the_name_is_refused_before_it_is_saved() -> None:
    """A program that was lowered can be loaded."""
    program = delegate.to_backend(torch.export.export(Named(), (X,)), "onnxruntime")
    (node,) = program.report.nodes
    assert node.backend == "portable"
    assert "EPContext" in node.verdicts["onnxruntime"].message
    with delegate.load(serialize(program.program)) as loaded:
        assert_same(loaded(X.numpy()), Named()(X).detach(), 1e-6)
