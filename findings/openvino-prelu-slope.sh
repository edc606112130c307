#!/usr/bin/env bash
# OpenVINO applies an ONNX PRelu's slope along the channels instead of the columns if there are as many of both.
#
# Versions: openvino 2026.4.1, onnxruntime 1.31.1, onnx 1.23.2, numpy 2.4.6, CPython 3.11, x86-64 Linux.
# Valid input: PRelu with a slope of shape [C] and data of shape [1, C, 2, W]. The ONNX specification aligns the slope
#   with the last dimension (unidirectional broadcasting), so C must be W.
# Expected: x < 0 gives slope[column] * x, as NumPy's and ONNX Runtime's broadcasting do.
# Seen: OpenVINO reads any slope of rank 1 as one number for each channel, and gives slope[channel] * x. With the slope
#   as [1, 1, 1, W] the result is right. Neither a warning nor an error appears.
# Output seen:
#   onnxruntime, slope [3]: right    onnxruntime, slope [1, 1, 1, 3]: right
#   openvino, slope [3]: wrong    openvino, slope [1, 1, 1, 3]: right
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet openvino==2026.4.1 onnxruntime==1.31.1 onnx==1.23.2 numpy==2.4.6
cat > "$folder/prelu.py" <<'PY'
import numpy as np
import onnxruntime
import openvino
from onnx import TensorProto, checker, helper, numpy_helper

EXPECTED = {  # engine, shape of the slope -> whether the result is right
    ("onnxruntime", (3,)): True,
    ("onnxruntime", (1, 1, 1, 3)): True,
    ("openvino", (3,)): False,
    ("openvino", (1, 1, 1, 3)): True,
}
core = openvino.Core()
x = -np.arange(1, 19, dtype=np.float32).reshape(1, 3, 2, 3)
slope = np.array([1, 10, 100], np.float32)


def run(engine, shape):
    tensor = numpy_helper.from_array(slope.reshape(shape), "slope")
    x_info, y_info = (helper.make_tensor_value_info(name, TensorProto.FLOAT, x.shape) for name in "xy")
    graph = helper.make_graph([helper.make_node("PRelu", ["x", "slope"], ["y"])], "prelu", [x_info], [y_info], [tensor])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    checker.check_model(model, full_check=True)
    data = model.SerializeToString()
    if engine == "onnxruntime":
        (result,) = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    else:
        (result,) = core.compile_model(core.read_model(data), "CPU")([x]).values()
    return bool(np.allclose(result, slope * x))


seen = {key: run(*key) for key in EXPECTED}
for (engine, shape), right in seen.items():
    print(f"{engine}, slope {list(shape)}: {'right' if right else 'wrong'}")
raise SystemExit(0 if seen == EXPECTED else "the behaviour has changed")
PY
"$folder/venv/bin/python" -W ignore "$folder/prelu.py"
