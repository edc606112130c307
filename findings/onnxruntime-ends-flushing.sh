#!/usr/bin/env bash
# The first session of ONNX Runtime ends torch's flushing of denormal numbers in the thread that creates it.
#
# Versions: onnxruntime 1.31.1, onnx 1.23.2, torch 2.13.0, numpy 2.4.6, CPython 3.11, x86-64 Linux.
# Valid input: torch.set_flush_denormal(True), then an InferenceSession with default options; no call of the session.
# Expected: the floating-point state of the caller is as before, which holds for each later session.
# Seen: after the first session of the process torch and NumPy compute with denormal numbers again, although nobody
#   called set_flush_denormal(False). Later sessions leave the state alone. Neither a warning nor an error appears.
# Output seen, for 1e-39 / 2:
#   flushing on: torch 0, numpy 0    first session: torch 5e-40, numpy 5e-40
#   flushing on again: torch 0, numpy 0    second session: torch 0, numpy 0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet onnxruntime==1.31.1 onnx==1.23.2 torch==2.13.0 numpy==2.4.6
cat > "$folder/flush.py" <<'PY'
import numpy as np
import onnxruntime
import torch
from onnx import TensorProto, helper

EXPECTED = {  # step -> whether torch and NumPy flush
    "flushing on": (True, True),
    "first session": (False, False),
    "flushing on again": (True, True),
    "second session": (True, True),
}
x_info, y_info = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", [x_info], [y_info])
data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()
tensor, array = torch.full((4,), 1e-39), np.full(4, 1e-39, np.float32)
sessions = []


def step(name):
    if "flushing" in name:
        assert torch.set_flush_denormal(True)
    else:
        sessions.append(onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]))
    halves = [(tensor * 0.5)[0].item(), (array * np.float32(0.5))[0].item()]
    print(f"{name}: torch {halves[0]:.1g}, numpy {halves[1]:.1g}")
    return halves[0] == 0, halves[1] == 0


seen = {name: step(name) for name in EXPECTED}
raise SystemExit(0 if seen == EXPECTED else "the behaviour has changed")
PY
"$folder/venv/bin/python" -W ignore "$folder/flush.py"
