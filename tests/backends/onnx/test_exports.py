"""Exports to ONNX: the exporter's tables are read for the first region alone."""

from __future__ import annotations

import pytest
import torch

from delegate.backends.gpu.webgpu.aot.operators import OPERATORS
from delegate.backends.onnx.aot.model import to_onnx
from delegate.backends.onnx.aot.translations import table_of
from tests.support.functions import Function

pytest.importorskip("onnx", reason="onnx is not installed: pip install 'delegate[onnx]'")
pytest.importorskip("onnxscript", reason="onnxscript is not installed: pip install 'delegate[onnx]'")


def test_torchs_operators_are_read_once(monkeypatch):
    def operators(function) -> list[str]:
        program = torch.export.export(Function(function), (torch.randn(3, 4),))
        return [*to_onnx(program, table_of(OPERATORS)).operators.values()]

    operators(torch.relu)
    monkeypatch.setattr(torch.export, "default_decompositions", lambda: pytest.fail("read again"))
    assert operators(torch.abs) == ["Abs"]
    assert "Mul" in operators(torch.special.entr)  # which the exporter decomposes
