#!/usr/bin/env bash
# OpenVINO converts NaN to boolean false.
#
# Versions: openvino 2026.4.1, onnxruntime 1.31.1, onnx 1.23.2, numpy 2.4.6, CPython 3.11, x86-64 Linux.
# Valid input: an ONNX Cast from float32 to bool; the specification says that zero is false and all else is true.
# Expected: true for NaN, as ONNX Runtime, NumPy, torch and C.
# Seen: OpenVINO gives false. Infinity, small numbers and zero are right. Neither a warning nor an error appears.
# Output seen:
#   onnxruntime: nan: True    1e-40: True    1.2e-38: True    inf: True    0: False
#   openvino: nan: False    1e-40: True    1.2e-38: True    inf: True    0: False
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet openvino==2026.4.1 onnxruntime==1.31.1 onnx==1.23.2 numpy==2.4.6
cat > "$folder/cast.py" <<'PY'
import numpy as np
import onnxruntime
import openvino
from onnx import TensorProto, checker, helper

EXPECTED = {  # engine -> the boolean for each number
    "onnxruntime": [True, True, True, True, False],
    "openvino": [False, True, True, True, False],
}
x = np.array([np.nan, 1e-40, 1.2e-38, np.inf, 0], np.float32)
core = openvino.Core()
graph = helper.make_graph(
    [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.BOOL)], "cast",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
    [helper.make_tensor_value_info("y", TensorProto.BOOL, x.shape)])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
checker.check_model(model, full_check=True)
data = model.SerializeToString()


def run(engine):
    if engine == "onnxruntime":
        (result,) = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    else:
        (result,) = core.compile_model(core.read_model(data), "CPU")([x]).values()
    print(f"{engine}:", *(f"{number:.2g}: {bool(truth)}" for number, truth in zip(x, result)), sep="    ")
    return result.astype(bool).tolist()


seen = {engine: run(engine) for engine in EXPECTED}
raise SystemExit(0 if seen == EXPECTED else "the behaviour has changed")
PY
"$folder/venv/bin/python" -W ignore "$folder/cast.py"
