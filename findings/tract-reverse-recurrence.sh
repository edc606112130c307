#!/usr/bin/env bash
# tract runs an ONNX LSTM, GRU or RNN of direction "reverse" forward.
#
# Versions: tract 0.23.9, onnx 1.23.2, numpy 2.4.6, CPython 3.11, x86-64 Linux.
# Valid input: one recurrent node with direction="reverse", static shapes, float32, no optional inputs.
# Expected: the same as a node of direction "forward" on the reversed sequence, with its result reversed.
# Seen: tract's result is bit-equal to direction "forward" on the sequence as it is, so the attribute is ignored. The
#   second half of direction "bidirectional", where the same operator runs both ways, is right. Neither a warning nor an
#   error appears.
# Output seen, for LSTM, GRU and RNN alike:
#   reverse equals forward: True, reverse right: False, half of bidirectional right: True
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet tract==0.23.9 onnx==1.23.2 numpy==2.4.6
cat > "$folder/reverse.py" <<'PY'
import sys

import numpy as np
import onnx
import tract
from onnx import TensorProto, checker, helper, numpy_helper

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
EXPECTED = (True, False, True)  # reverse equals forward, reverse is right, the second half of bidirectional is right
HIDDEN, INPUT, LENGTH = 3, 2, 4
rng = np.random.default_rng(0)
x = rng.standard_normal((LENGTH, 1, INPUT), dtype=np.float32)


def run(operator, direction, weights, x):
    directions = 2 if direction == "bidirectional" else 1
    tensors = [numpy_helper.from_array(np.concatenate([weight] * directions), name)
               for name, weight in zip("WR", weights)]
    node = helper.make_node(operator, ["X", "W", "R"], ["Y"], hidden_size=HIDDEN, direction=direction)
    graph = helper.make_graph(
        [node], "recurrence",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, [LENGTH, directions, 1, HIDDEN])], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    checker.check_model(model, full_check=True)
    onnx.save(model, sys.argv[1])
    (result,) = tract.onnx().load(sys.argv[1]).into_model().into_runnable().run([x])
    return result.to_numpy()[:, -1]


def compare(operator):
    weights = [rng.standard_normal((1, GATES[operator] * HIDDEN, size), dtype=np.float32) for size in (INPUT, HIDDEN)]
    expected = run(operator, "forward", weights, x[::-1].copy())[::-1]
    reverse = run(operator, "reverse", weights, x)
    both = run(operator, "bidirectional", weights, x)
    return (bool(np.array_equal(reverse, run(operator, "forward", weights, x))),
            bool(np.allclose(reverse, expected, atol=1e-5)), bool(np.allclose(both, expected, atol=1e-5)))


seen = {operator: compare(operator) for operator in GATES}
for operator, (forward, right, half) in seen.items():
    print(f"{operator}: reverse equals forward: {forward}, reverse right: {right}, half of bidirectional right: {half}")
raise SystemExit(0 if set(seen.values()) == {EXPECTED} else "the behaviour has changed")
PY
"$folder/venv/bin/python" -W ignore "$folder/reverse.py" "$folder/model.onnx"
