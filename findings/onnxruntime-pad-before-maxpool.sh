#!/usr/bin/env bash
# ONNX Runtime fuses a Pad with zeros into the MaxPool behind it, whose padding is minus infinity.
#
# Versions: onnxruntime 1.31.1, onnx 1.23.2, numpy 2.4.6, CPython 3.11, x86-64 Linux.
# Valid input: Pad in mode "constant" with the default value 0, then MaxPool without padding, on negative numbers.
# Expected: windows that touch the border have the maximum 0, as with optimizations disabled and in onnx's reference.
# Seen: with the default optimizations the zeros are gone, and border windows have the largest negative number. Data
#   without negative numbers, as after Relu, hides it. Neither a warning nor an error appears.
# Output seen, for -1, -2, -3 padded by one zero on each side and windows of two:
#   ORT_DISABLE_ALL: [0.0, -1.0, -2.0, 0.0]    ORT_ENABLE_BASIC: [-1.0, -1.0, -2.0, -3.0]
#   ORT_ENABLE_ALL: [-1.0, -1.0, -2.0, -3.0]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet onnxruntime==1.31.1 onnx==1.23.2 numpy==2.4.6
cat > "$folder/pad.py" <<'PY'
import numpy as np
import onnxruntime
from onnx import TensorProto, checker, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

EXPECTED = {  # level of optimization -> the result
    "ORT_DISABLE_ALL": [0.0, -1.0, -2.0, 0.0],
    "ORT_ENABLE_BASIC": [-1.0, -1.0, -2.0, -3.0],
    "ORT_ENABLE_ALL": [-1.0, -1.0, -2.0, -3.0],
}
x = np.array([[[-1, -2, -3]]], np.float32)
pad = helper.make_node("Pad", ["x", "pads"], ["padded"])
pool = helper.make_node("MaxPool", ["padded"], ["y"], kernel_shape=[2])
graph = helper.make_graph(
    [pad, pool], "pool",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, 4])],
    [numpy_helper.from_array(np.array([0, 0, 1, 0, 0, 1]), "pads")])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
checker.check_model(model, full_check=True)


def run(level):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0].ravel().tolist()


assert ReferenceEvaluator(model).run(None, {"x": x})[0].ravel().tolist() == EXPECTED["ORT_DISABLE_ALL"]
seen = {level: run(level) for level in EXPECTED}
for level, result in seen.items():
    print(f"{level}: {result}")
raise SystemExit(0 if seen == EXPECTED else "the behaviour has changed")
PY
"$folder/venv/bin/python" -W ignore "$folder/pad.py"
