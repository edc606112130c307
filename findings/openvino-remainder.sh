#!/usr/bin/env bash
# OpenVINO's float32 FloorMod and Mod are wrong for large dividends and NaN for an infinite divisor.
#
# Versions: openvino 2026.4.1, numpy 2.4.6, CPython 3.11, x86-64 Linux.
# Valid input: operands that are exact in float32; the quotient 1e8 / 3 is far below the largest float32.
# Expected: the exact remainder, as np.mod, np.fmod, C's fmodf and torch; 5 for 5 and infinity.
# Seen: the result is computed from the rounded quotient, as a - b * floor(a / b). The rounding error of the quotient
#   times the divisor is larger than the remainder, and infinity times 0 is NaN. Neither a warning nor an error appears.
# Output seen:
#   FloorMod: 1e+08 by 3: 0.0 for 1.0    5 by inf: nan for 5.0    7 by -3: -2.0 for -2.0
#   Mod: 1e+08 by 3: 0.0 for 1.0    5 by inf: nan for 5.0    7 by -3: 1.0 for 1.0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet openvino==2026.4.1 numpy==2.4.6
cat > "$folder/remainder.py" <<'PY'
import numpy as np
import openvino
from openvino import opset13 as ops

OPERATORS = {"FloorMod": (ops.floor_mod, np.mod), "Mod": (ops.mod, np.fmod)}
CASES = [(1e8, 3), (5, np.inf), (7, -3)]
EXPECTED = [False, False, True]  # whether each result is right
core = openvino.Core()
values = list(np.array(CASES, np.float32).T.copy())


def run(name):
    operator, exact = OPERATORS[name]
    parameters = [ops.parameter(value.shape, np.float32) for value in values]
    model = openvino.Model([operator(*parameters)], parameters)
    (result,) = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(values).values()
    expected = exact(*values)
    texts = [f"{a:g} by {b:g}: {seen} for {true}" for (a, b), seen, true in zip(CASES, result, expected)]
    print(f"{name}:", *texts, sep="    ")
    return (result == expected).tolist()


seen = {name: run(name) for name in OPERATORS}
raise SystemExit(0 if seen == dict.fromkeys(OPERATORS, EXPECTED) else "the behaviour has changed")
PY
"$folder/venv/bin/python" -W ignore "$folder/remainder.py"
