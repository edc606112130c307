"""Models in float16, whose dtypes fit each other and what torch planned: no GPU that has it is needed to see it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from delegate_onnxruntime.onnx.aot.model import to_onnx
from delegate_onnxruntime.onnx.aot.translations import table_of
from delegate_onnxruntime.onnx.aot.translations.row import scalar
from delegate_onnxruntime.webgpu.operators import OPERATORS

from tests.support.functions import Function

onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install 'delegate-onnxruntime[aot]'")
pytest.importorskip("onnxscript", reason="onnxscript is not installed: pip install 'delegate-onnxruntime[aot]'")

FLOAT16, BOOL = 10, 9
CASES = {
    "a number beside a new value": (F.logsigmoid, [FLOAT16]),
    "the exporter computes it in float32": (torch.abs, [FLOAT16]),
    "the same, used further": (lambda x: (x.abs() * x, x.abs()), [FLOAT16, FLOAT16]),
    "booleans": (lambda x: x.abs() > 1, [BOOL]),
}


@pytest.mark.parametrize("case", CASES)
def test_dtypes_fit(case):
    function, dtypes = CASES[case]
    program = torch.export.export(Function(function), (torch.randn(3, 4).half(),))
    model = to_onnx(program, table_of(OPERATORS)).model
    assert [t.dtype for t in model.outputs] == dtypes
    onnx.shape_inference.infer_shapes(onnx.load_from_string(model.graph), check_type=True, strict_mode=True)


def test_a_number_needs_a_dtype():
    import onnx_ir

    with pytest.raises(AssertionError, match="dtype of a value that has none"):
        scalar(1.0, onnx_ir.val("x"))
