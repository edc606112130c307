#!/usr/bin/env bash
# A gate of one element for each row, right after attention, gives garbage on OpenVINO's CPU plugin.
#
# Versions: openvino 2026.4.1, numpy 2.4.6, CPython 3.11, x86-64 Linux.
# Valid input: softmax(q k^T) v, multiplied by a tensor [batch, 1, length, 1]; static shapes, float32.
# Expected: the result with and without SNIPPETS_MODE=DISABLE is the same up to rounding.
# Seen: with the default mode the multiplication is fused into the attention kernel, and the result is wrong if the head
#   size is several blocks of columns and there are more than 32 rows. A block has 24 columns with AVX2 and 64 with
#   AVX-512, so one model is right on one CPU and wrong on another. Neither a warning nor an error appears.
# Output seen, with oneDNN limited to AVX2:
#   head size  32: right    head size  64: right    head size  48: wrong    head size  96: wrong    head size 192: wrong
#   with SNIPPETS_MODE=DISABLE: right
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet openvino==2026.4.1 numpy==2.4.6
cat > "$folder/gate.py" <<'PY'
import numpy as np
import openvino
from openvino import opset13 as ops

EXPECTED = {32: True, 64: True, 48: False, 96: False, 192: False}  # head size -> whether the result is right
core = openvino.Core()


def run(head, mode):
    shape = [2, 4, 40, head]
    q, k, v = (ops.parameter(shape, np.float32) for _ in range(3))
    gate = ops.parameter([2, 1, 40, 1], np.float32)
    attended = ops.matmul(ops.softmax(ops.matmul(q, k, False, True), -1), v, False, False)
    model = openvino.Model([ops.multiply(attended, gate)], [q, k, v, gate])
    properties = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1, "SNIPPETS_MODE": mode}
    values = [np.random.default_rng(seed).standard_normal(p.shape, dtype=np.float32)
              for seed, p in enumerate(model.get_parameters())]
    (result,) = core.compile_model(model, "CPU", properties)(values).values()
    q, k, v, gate = (value.astype(np.float64) for value in values)
    scores = np.exp(q @ k.swapaxes(-1, -2) - (q @ k.swapaxes(-1, -2)).max(-1, keepdims=True))
    expected = scores / scores.sum(-1, keepdims=True) @ v * gate
    return bool(np.abs(result - expected).max() < 1e-3)


seen = {head: run(head, "ENABLE") for head in EXPECTED}
for head, right in seen.items():
    print(f"head size {head:3}: {'right' if right else 'wrong'}")
without = all(run(head, "DISABLE") for head in EXPECTED)
print("with SNIPPETS_MODE=DISABLE:", "right" if without else "wrong")
raise SystemExit(0 if seen == EXPECTED and without else "the behaviour has changed")
PY
ONEDNN_MAX_CPU_ISA=AVX2 "$folder/venv/bin/python" -W ignore "$folder/gate.py"
