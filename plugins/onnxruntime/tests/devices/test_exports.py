"""Exports to ONNX: the exporter's tables are read for the first region alone."""

from __future__ import annotations

import io
import re

import pytest
import torch
from delegate_onnxruntime.onnx.aot.model import to_onnx
from delegate_onnxruntime.onnx.aot.translations import table_of
from delegate_onnxruntime.webgpu.operators import OPERATORS
from torch._subclasses import FakeTensorMode

from delegate.backend.region import SIZE_DECIDED
from delegate.backend.selected import condition_of
from tests.support.functions import Function

pytest.importorskip("onnx", reason="onnx is not installed: pip install 'delegate-onnxruntime[aot]'")
pytest.importorskip("onnxscript", reason="onnxscript is not installed: pip install 'delegate-onnxruntime[aot]'")


def test_torchs_operators_are_read_once(monkeypatch):
    def operators(function) -> list[str]:
        program = torch.export.export(Function(function), (torch.randn(3, 4),))
        return [*to_onnx(program, table_of(OPERATORS)).operators.values()]

    operators(torch.relu)
    monkeypatch.setattr(torch.export, "default_decompositions", lambda: pytest.fail("read again"))
    assert operators(torch.abs) == ["Abs"]
    assert "Mul" in operators(torch.special.entr)  # which the exporter decomposes


def test_a_decision_by_a_size_is_reported_as_such():
    """A convolution of torch compares the batch size to choose a library; the exporter wraps the error in its own."""
    shapes = ({0: torch.export.Dim("batch", min=1, max=64)},)
    exported = torch.export.export(torch.nn.Conv2d(3, 4, 1), (torch.randn(2, 3, 8, 8),), dynamic_shapes=shapes)
    file = io.BytesIO()
    torch.export.save(exported, file)  # a copy has made no comparison yet
    copied = torch.export.load(file)
    known = next(n.meta["val"].shape[0].node.shape_env for n in copied.graph.nodes if n.op == "call_function")
    FakeTensorMode.cache_clear()
    with known.error_on_new_guards(), pytest.raises(SIZE_DECIDED) as caught:
        to_onnx(copied, table_of(OPERATORS))
    assert re.fullmatch(
        r"webgpu decides by the sizes of the export: s\d+ >= 16 == False", condition_of("webgpu", caught.value)
    )
