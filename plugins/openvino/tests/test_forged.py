"""Forged blobs and specs: OpenVINO trusts what it is told of memory, and reads and writes where it is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import delegate
from delegate.errors import BackendFailed
from delegate.program.dtypes import DType
from delegate.program.file import serialize
from delegate.program.model import Program
from tests.support.lowering import assert_runs

X = torch.linspace(-1, 1, 8).reshape(2, 4)


def lower_model(dtype: torch.dtype = torch.float32, **options: Any) -> Program:
    exported = torch.export.export(nn.ReLU(), (X.to(dtype),))
    config = {"version": 1, "backends": [{"name": "openvino", "options": options}]}
    program = delegate.to_backend(exported, config=config)
    assert_runs(program, "openvino")
    return program.program


def with_specs(program: Program, blob: bytes | None = None, **changed: Any) -> Program:
    (spec,) = program.delegates
    spec = spec._replace(compile_specs={**spec.compile_specs, **changed})
    segments = tuple(blob if blob is not None and i == spec.segment else s for i, s in enumerate(program.segments))
    return program._replace(delegates=(spec,), segments=segments)


def with_dtype(program: Program, dtype: DType, home: str = "") -> Program:
    """The program with values of another dtype."""
    (method,) = program.methods
    values = [v._replace(dtype=dtype) if v.storage.kind.name.startswith(home) else v for v in method.values]
    return program._replace(methods=(method._replace(values=tuple(values)),))


def onnx_model() -> bytes:
    onnx = pytest.importorskip("onnx")
    weight = onnx.TensorProto(name="w", data_type=1, dims=[2, 4], data_location=onnx.TensorProto.EXTERNAL)
    for key, value in (("location", "secret.bin"), ("offset", "0"), ("length", "32")):
        weight.external_data.add(key=key, value=value)
    x, y = (onnx.helper.make_tensor_value_info(name, 1, [2, 4]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Add", ["x", "w"], ["y"])], "g", [x], [y], [weight])
    made: bytes = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]).SerializeToString()
    return made


def in_onnx(program: Program) -> Program:
    made = onnx_model()
    return with_specs(program, made, graph=len(made))


# A tensor of 8 bytes was written and read as one of 16.
FORGED: dict[str, Callable[[], Program]] = {
    "bytes for bfloat16": lambda: with_dtype(lower_model(torch.bfloat16), DType.uint8),
    "bytes for a result": lambda: with_dtype(lower_model(torch.bfloat16), DType.uint8, "OUTPUT"),
    "bytes and other specs": lambda: with_specs(
        with_dtype(lower_model(torch.bfloat16), DType.uint8), dtypes=["u8"], results=["u8"]
    ),
    "bits of another type": lambda: with_specs(lower_model(torch.bfloat16), results=["f16"]),
    "floats for bfloat16": lambda: with_specs(lower_model(), dtypes=["bf16"]),
    "too few": lambda: with_specs(lower_model(), dtypes=[]),
    "a model that names a file": lambda: in_onnx(lower_model()),
    "no model": lambda: with_specs(lower_model(), b"", graph=0),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.arange(8, dtype=np.float32).tofile(tmp_path / "secret.bin")
    monkeypatch.chdir(tmp_path)
    data = serialize(FORGED[name]())
    with pytest.raises(BackendFailed, match=r"the (in|out)puts of the model differ|not a model in OpenVINO's IR"):
        delegate.load(data)


@pytest.mark.parametrize("group", [-1, 5, "32", None, 32.0, [], 2**70])
def test_a_forged_group(group: object) -> None:
    """The number of activations that share a range is checked before OpenVINO reads it."""
    with pytest.raises(BackendFailed, match="openvino"):
        delegate.load(serialize(with_specs(lower_model(), group=group)))


def test_a_folder_that_a_file_names_is_not_used(tmp_path: Path) -> None:
    data = serialize(lower_model(cache=str(tmp_path / "cache")))
    with pytest.raises(BackendFailed, match="trust_code=True"):
        delegate.load(data)
    assert not any(tmp_path.iterdir())
    program = delegate.load(data, trust_code=True)
    np.testing.assert_array_equal(program(X.numpy()), X.relu().numpy())
    assert any(tmp_path.iterdir())
