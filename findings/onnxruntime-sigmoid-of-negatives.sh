#!/usr/bin/env bash
# ONNX Runtime's float32 Sigmoid on the CPU is exactly 0 from about -18 down, where the true value is 1.5e-8.
#
# Versions: onnxruntime 1.31.1, onnx 1.23.2, numpy 2.4.6, CPython 3.11, x86-64 Linux.
# Valid input: Sigmoid of small negative float32 numbers; sigmoid(-30) is 9.4e-14, far above the smallest float32.
# Expected: a relative error of a few units in the last place, as for the formula 1 / (1 + exp(-x)) in float32.
# Seen: the absolute error of a few 1e-8 is as large as the result from about -15 down, and from -18 down the result is
#   0, so its logarithm, a usual loss, is minus infinity. Neither a warning nor an error appears.
# Output seen:
#   sigmoid(-2): right    sigmoid(-8): right    sigmoid(-20): wrong    sigmoid(-30): wrong    sigmoid(-60): wrong
#   log(sigmoid(-20)): -inf for -20
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet onnxruntime==1.31.1 onnx==1.23.2 numpy==2.4.6
cat > "$folder/sigmoid.py" <<'PY'
import numpy as np
import onnxruntime
from onnx import TensorProto, checker, helper

EXPECTED = {-2: True, -8: True, -20: False, -30: False, -60: False}  # x -> whether sigmoid(x) is right within 1 %
x = np.array(list(EXPECTED), np.float32)
nodes = [helper.make_node("Sigmoid", ["x"], ["s"]), helper.make_node("Log", ["s"], ["log"])]
values = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, x.shape) for name in ("x", "s", "log")}
graph = helper.make_graph(nodes, "sigmoid", [values["x"]], [values["s"], values["log"]])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
checker.check_model(model, full_check=True)
session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
sigmoid, log = session.run(None, {"x": x})
true = 1 / (1 + np.exp(-x.astype(np.float64)))
seen = dict(zip(EXPECTED, (np.abs(sigmoid - true) < 0.01 * true).tolist()))
for number, right in seen.items():
    print(f"sigmoid({number}): {'right' if right else 'wrong'}")
print(f"log(sigmoid(-20)): {log[2]} for -20")
raise SystemExit(0 if seen == EXPECTED else "the behaviour has changed")
PY
"$folder/venv/bin/python" -W ignore "$folder/sigmoid.py"
