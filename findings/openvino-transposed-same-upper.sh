#!/usr/bin/env bash
# OpenVINO shifts an ONNX ConvTranspose with SAME_UPPER and an output shape by one element: it pads as SAME_LOWER.
#
# Versions: openvino 2026.4.1, onnxruntime 1.31.1, onnx 1.23.2, numpy 2.4.6, CPython 3.11, x86-64 Linux.
# Valid input: ConvTranspose with kernel 3, stride 2 and output_shape [6] for three elements, so one element is cut off.
# Expected: SAME_UPPER cuts at the end, SAME_LOWER at the beginning, as ONNX Runtime and onnx's reference evaluator do.
# Seen: OpenVINO cuts at the beginning for both. Neither a warning nor an error appears.
# Output seen, with the weights 1, 10, 100 and the input 1, 2, 3:
#   onnxruntime, SAME_UPPER: [1, 10, 102, 20, 203, 30]    onnxruntime, SAME_LOWER: [10, 102, 20, 203, 30, 300]
#   openvino, SAME_UPPER: [10, 102, 20, 203, 30, 300]    openvino, SAME_LOWER: [10, 102, 20, 203, 30, 300]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet openvino==2026.4.1 onnxruntime==1.31.1 onnx==1.23.2 numpy==2.4.6
cat > "$folder/transposed.py" <<'PY'
import numpy as np
import onnxruntime
import openvino
from onnx import TensorProto, checker, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

FIRST, LAST = [1, 10, 102, 20, 203, 30], [10, 102, 20, 203, 30, 300]  # the first and the last six of seven elements
EXPECTED = {  # engine, auto_pad -> the result
    ("reference", "SAME_UPPER"): FIRST,
    ("reference", "SAME_LOWER"): LAST,
    ("onnxruntime", "SAME_UPPER"): FIRST,
    ("onnxruntime", "SAME_LOWER"): LAST,
    ("openvino", "SAME_UPPER"): LAST,
    ("openvino", "SAME_LOWER"): LAST,
}
core = openvino.Core()
x = np.array([[[1, 2, 3]]], np.float32)
weight = numpy_helper.from_array(np.array([[[1, 10, 100]]], np.float32), "w")


def run(engine, auto_pad):
    node = helper.make_node(
        "ConvTranspose", ["x", "w"], ["y"], kernel_shape=[3], strides=[2], output_shape=[6], auto_pad=auto_pad)
    graph = helper.make_graph(
        [node], "transposed",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, 6])], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    checker.check_model(model, full_check=True)
    data = model.SerializeToString()
    if engine == "reference":
        (result,) = ReferenceEvaluator(model).run(None, {"x": x})
    elif engine == "onnxruntime":
        (result,) = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    else:
        properties = {"INFERENCE_PRECISION_HINT": "f32"}
        (result,) = core.compile_model(core.read_model(data), "CPU", properties)([x]).values()
    return np.rint(result).astype(int).ravel().tolist()


seen = {key: run(*key) for key in EXPECTED}
for (engine, auto_pad), result in seen.items():
    print(f"{engine}, {auto_pad}: {result}")
raise SystemExit(0 if seen == EXPECTED else "the behaviour has changed")
PY
"$folder/venv/bin/python" -W ignore "$folder/transposed.py"
