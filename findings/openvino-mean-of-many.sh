#!/usr/bin/env bash
# OpenVINO's mean over all elements of a large float32 tensor of ones is 0.5 or less.
#
# Versions: openvino 2026.4.1, numpy 2.4.6, CPython 3.11, x86-64 Linux.
# Valid input: ReduceMean over the only axis of a float32 tensor with 2**23 to 2**26 ones, in float32 precision.
# Expected: 1, as for the same numbers with a leading dimension of 1, and in NumPy and torch.
# Seen: the sum of a vector stops at 2**24 = 16777216, as adding 1 to that number changes nothing in float32. The
#   same numbers as a row of a matrix are added in another order, and the mean is right. Neither a warning nor an error
#   appears.
# Output seen:
#   shape [8388608]: 1.0    shape [33554432]: 0.5    shape [67108864]: 0.25
#   shape [1, 33554432]: 1.0    shape [1, 67108864]: 1.0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet openvino==2026.4.1 numpy==2.4.6
cat > "$folder/mean.py" <<'PY'
import numpy as np
import openvino
from openvino import opset13 as ops

EXPECTED = {(2**23,): 1.0, (2**25,): 0.5, (2**26,): 0.25, (1, 2**25): 1.0, (1, 2**26): 1.0}  # shape -> mean of ones
core = openvino.Core()


def run(shape):
    x = ops.parameter(shape, np.float32)
    model = openvino.Model([ops.reduce_mean(x, np.array([len(shape) - 1]))], [x])
    properties = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    (result,) = core.compile_model(model, "CPU", properties)([np.ones(shape, np.float32)]).values()
    return result.item()


seen = {shape: run(shape) for shape in EXPECTED}
for shape, mean in seen.items():
    print(f"shape {list(shape)}: {mean}")
raise SystemExit(0 if seen == EXPECTED else "the behaviour has changed")
PY
"$folder/venv/bin/python" -W ignore "$folder/mean.py"
