"""Exports to ONNX, which need no device: tables are read once, and dtypes fit each other and what torch planned."""

from __future__ import annotations

import io
import re

import pytest
import torch
import torch.nn.functional as F
from delegate_onnxruntime.onnx.aot.model import to_onnx
from delegate_onnxruntime.onnx.aot.translations import table_of
from delegate_onnxruntime.onnx.aot.translations.row import scalar
from delegate_onnxruntime.webgpu.operators import OPERATORS
from torch._subclasses import FakeTensorMode

from delegate.backend.region import SIZE_DECIDED
from delegate.backend.selected import condition_of
from tests.support.functions import Function

onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install 'delegate-onnxruntime[aot]'")
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


FLOAT16, BOOL = 10, 9
CASES = {
    "a number beside a new value": (F.logsigmoid, [FLOAT16]),
    "the exporter computes it in float32": (torch.abs, [FLOAT16]),
    "the same, used further": (lambda x: (x.abs() * x, x.abs()), [FLOAT16, FLOAT16]),
    "booleans": (lambda x: x.abs() > 1, [BOOL]),
}


@pytest.mark.parametrize("case", CASES)
def test_dtypes_of_float16_fit(case):
    function, dtypes = CASES[case]
    program = torch.export.export(Function(function), (torch.randn(3, 4).half(),))
    model = to_onnx(program, table_of(OPERATORS)).model
    assert [t.dtype for t in model.outputs] == dtypes
    onnx.shape_inference.infer_shapes(onnx.load_from_string(model.graph), check_type=True, strict_mode=True)


def test_a_number_needs_a_dtype():
    import onnx_ir

    with pytest.raises(AssertionError, match="dtype of a value that has none"):
        scalar(1.0, onnx_ir.val("x"))
