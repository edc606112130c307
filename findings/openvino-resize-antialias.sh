#!/usr/bin/env bash
# OpenVINO ignores antialias=1 of an ONNX Resize.
#
# Versions: openvino 2026.4.1, onnxruntime 1.31.1, onnx 1.23.2, numpy 2.4.6, CPython 3.11, x86-64 Linux.
# Valid input: Resize of opset 18 or later with antialias=1, which shrinks an image of 8 by 8 to 2 by 2; float32.
# Expected: the filter is widened, so that every pixel of the input counts, as in ONNX Runtime and onnx's reference.
# Seen: OpenVINO accepts the node and gives exactly the result for antialias=0. A picture of thin lines, whose mean is
#   0.25, disappears altogether. Neither a warning nor an error appears.
# Output seen, for the shrunk picture:
#   onnxruntime, linear: mean 0.27 for 0.27    onnxruntime, cubic: mean 0.25 for 0.25
#   openvino, linear: mean 0.00 for 0.27    openvino, cubic: mean -0.09 for 0.25
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet openvino==2026.4.1 onnxruntime==1.31.1 onnx==1.23.2 numpy==2.4.6
cat > "$folder/antialias.py" <<'PY'
import numpy as np
import onnxruntime
import openvino
from onnx import TensorProto, checker, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

EXPECTED = {  # engine, mode -> whether the result is right
    ("onnxruntime", "linear"): True,
    ("onnxruntime", "cubic"): True,
    ("openvino", "linear"): False,
    ("openvino", "cubic"): False,
}
core = openvino.Core()
x = np.zeros((1, 1, 8, 8), np.float32)
x[..., ::4] = 1  # the pixels in columns 0 and 4


def build(mode, antialias):
    node = helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], mode=mode, antialias=antialias)
    graph = helper.make_graph(
        [node], "resize",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, 2, 2])],
        [numpy_helper.from_array(np.array([1, 1, 2, 2]), "sizes")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    checker.check_model(model, full_check=True)
    return model


def run(engine, mode):
    data = build(mode, 1).SerializeToString()
    if engine == "onnxruntime":
        (result,) = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    else:
        properties = {"INFERENCE_PRECISION_HINT": "f32"}
        (result,) = core.compile_model(core.read_model(data), "CPU", properties)([x]).values()
        (plain,) = ReferenceEvaluator(build(mode, 0)).run(None, {"x": x})
        assert np.allclose(result, plain, atol=1e-5)
    (expected,) = ReferenceEvaluator(build(mode, 1)).run(None, {"x": x})
    print(f"{engine}, {mode}: mean {result.mean():.2f} for {expected.mean():.2f}")
    return bool(np.allclose(result, expected, atol=1e-5))


seen = {key: run(*key) for key in EXPECTED}
raise SystemExit(0 if seen == EXPECTED else "the behaviour has changed")
PY
"$folder/venv/bin/python" -W ignore "$folder/antialias.py"
