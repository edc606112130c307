#!/usr/bin/env bash
# OpenVINO's float32 Erf, Elu and Mish lose all digits of small results: erf(1e-8) and elu(-1e-8) are 0.
#
# Versions: openvino 2026.4.1, numpy 2.4.6, CPython 3.11, x86-64 Linux.
# Valid input: normal float32 numbers; each true result is a normal float32 number too.
# Expected: a relative error of a few units in the last place, as in C's erff and expm1f, NumPy and torch.
# Seen: the absolute error of about 1e-7 is as large as small results. ELU is computed as exp(x) - 1. Neither a warning
#   nor an error appears. Tanh and Log are right, so the formulas could be.
# Output seen:
#   Erf: 1e-08 gives 0 for 1.1284e-08    0.0001 gives 0.00011289 for 0.00011284    1.0 is right
#   Elu: -1e-08 gives 0 for -1e-08    -0.0001 gives -0.00010002 for -9.9995e-05    -1.0 is right
#   Mish: -20.0 gives -0 for -4.1223e-08    -10.0 gives -0.00045417 for -0.00045399    -1.0 is right
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet openvino==2026.4.1 numpy==2.4.6
cat > "$folder/small.py" <<'PY'
import math

import numpy as np
import openvino
from openvino import opset13 as ops

CASES = {
    "Erf": (ops.erf, math.erf, [1e-8, 1e-4, 1.0]),
    "Elu": (lambda x: ops.elu(x, 1.0), math.expm1, [-1e-8, -1e-4, -1.0]),
    "Mish": (ops.mish, lambda x: x * math.tanh(math.log1p(math.exp(x))), [-20.0, -10.0, -1.0]),
}
EXPECTED = [False, False, True]  # whether each result is right within 1e-5 of itself
core = openvino.Core()


def run(name):
    operator, exact, numbers = CASES[name]
    x = np.array(numbers, np.float32)
    parameter = ops.parameter(x.shape, np.float32)
    model = openvino.Model([operator(parameter)], [parameter])
    (result,) = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})([x]).values()
    true = np.array([exact(float(number)) for number in x])
    right = np.abs(result - true) < 1e-5 * np.abs(true)
    texts = [f"{n} is right" if ok else f"{n} gives {r:.5g} for {t:.5g}" for n, r, t, ok in zip(numbers, result, true, right)]
    print(f"{name}:", *texts, sep="    ")
    return right.tolist()


seen = {name: run(name) for name in CASES}
raise SystemExit(0 if seen == dict.fromkeys(CASES, EXPECTED) else "the behaviour has changed")
PY
"$folder/venv/bin/python" -W ignore "$folder/small.py"
