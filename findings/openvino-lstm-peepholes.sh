#!/usr/bin/env bash
# OpenVINO ignores the peephole weights of an ONNX LSTM.
#
# Versions: openvino 2026.4.1, onnxruntime 1.31.1, onnx 1.23.2, numpy 2.4.6, CPython 3.11, x86-64 Linux.
# Valid input: an LSTM node with the optional input P (weights from the cell to the gates), float32, static shapes.
# Expected: the result with P differs from the one without, as in ONNX Runtime and in onnx's reference evaluator.
# Seen: OpenVINO accepts the node and gives the result without P. ONNX Runtime and the reference agree with and without.
#   Neither a warning nor an error appears.
# Output seen:
#   onnxruntime, without peepholes: right    onnxruntime, with peepholes: right
#   openvino, without peepholes: right    openvino, with peepholes: as without peepholes
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet openvino==2026.4.1 onnxruntime==1.31.1 onnx==1.23.2 numpy==2.4.6
cat > "$folder/peepholes.py" <<'PY'
import numpy as np
import onnxruntime
import openvino
from onnx import TensorProto, checker, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

EXPECTED = {  # engine, with peepholes -> the result
    ("onnxruntime", False): "right",
    ("onnxruntime", True): "right",
    ("openvino", False): "right",
    ("openvino", True): "as without peepholes",
}
HIDDEN, INPUT, LENGTH = 3, 2, 4
SHAPES = {"W": (1, 4 * HIDDEN, INPUT), "R": (1, 4 * HIDDEN, HIDDEN), "P": (1, 3 * HIDDEN)}
core = openvino.Core()
rng = np.random.default_rng(0)
weights = {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in SHAPES.items()}
x = rng.standard_normal((LENGTH, 1, INPUT), dtype=np.float32)


def build(peepholes):
    inputs = ["X", "W", "R", "", "", "", "", "P"] if peepholes else ["X", "W", "R"]
    graph = helper.make_graph(
        [helper.make_node("LSTM", inputs, ["Y"], hidden_size=HIDDEN)], "lstm",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, [LENGTH, 1, 1, HIDDEN])],
        [numpy_helper.from_array(weights[name], name) for name in inputs if name in weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    checker.check_model(model, full_check=True)
    return model


def run(engine, model):
    data = model.SerializeToString()
    if engine == "onnxruntime":
        return onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, {"X": x})[0]
    properties = {"INFERENCE_PRECISION_HINT": "f32"}
    return next(iter(core.compile_model(core.read_model(data), "CPU", properties)([x]).values()))


references = {peepholes: ReferenceEvaluator(build(peepholes)).run(None, {"X": x})[0] for peepholes in (False, True)}


def judge(engine, peepholes):
    result = run(engine, build(peepholes))
    if np.allclose(result, references[peepholes], atol=1e-5):
        return "right"
    return "as without peepholes" if np.allclose(result, references[False], atol=1e-5) else "other"


assert np.abs(references[True] - references[False]).max() > 0.05
seen = {key: judge(*key) for key in EXPECTED}
for (engine, peepholes), result in seen.items():
    print(f"{engine}, {'with' if peepholes else 'without'} peepholes: {result}")
raise SystemExit(0 if seen == EXPECTED else "the behaviour has changed")
PY
"$folder/venv/bin/python" -W ignore "$folder/peepholes.py"
