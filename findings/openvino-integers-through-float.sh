#!/usr/bin/env bash
# OpenVINO computes sums, maxima and matrix products of int32 numbers through float32, so they lose their last bits.
#
# Versions: openvino 2026.4.1, numpy 2.4.6, CPython 3.11, x86-64 Linux.
# Valid input: ReduceSum, ReduceMax and MatMul of int32 tensors whose numbers and results are far from overflow.
# Expected: exact integers, as NumPy, ONNX Runtime and torch, and as OpenVINO's own Add and Multiply.
# Seen: the result is rounded to 24 bits; the largest of two numbers is a number that is not among them. Neither a
#   warning nor an error appears.
# Output seen:
#   ReduceSum: 33554440 for 33554437    ReduceMax: 33554436 for 33554435    MatMul: 33554440 for 33554437
#   Add: 33554437 for 33554437    Multiply: 67108870 for 67108870
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet openvino==2026.4.1 numpy==2.4.6
cat > "$folder/integers.py" <<'PY'
import numpy as np
import openvino
from openvino import opset13 as ops

A, B = 2**25 + 3, 2
CASES = {  # operator -> its node for [[A, B]], the exact result, and whether OpenVINO's is exact
    "ReduceSum": (lambda x: ops.reduce_sum(x, np.array([1])), A + B, False),
    "ReduceMax": (lambda x: ops.reduce_max(x, np.array([1])), A, False),
    "MatMul": (lambda x: ops.matmul(x, ops.constant(np.array([[1], [1]], np.int32)), False, False), A + B, False),
    "Add": (lambda x: ops.add(x, ops.constant(np.array([B], np.int32))), A + B, True),
    "Multiply": (lambda x: ops.multiply(x, ops.constant(np.array([B], np.int32))), A * B, True),
}
core = openvino.Core()


def run(name):
    build, exact, _ = CASES[name]
    x = ops.parameter([1, 2], np.int32)
    compiled = core.compile_model(openvino.Model([build(x)], [x]), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    (result,) = compiled([np.array([[A, B]], np.int32)]).values()
    print(f"{name}: {result.flat[0]} for {exact}")
    return bool(result.flat[0] == exact)


seen = {name: run(name) for name in CASES}
raise SystemExit(0 if seen == {name: exact for name, (_, _, exact) in CASES.items()} else "the behaviour has changed")
PY
"$folder/venv/bin/python" -W ignore "$folder/integers.py"
