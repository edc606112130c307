#!/usr/bin/env bash
# tract's ONNX Celu is wrong for each alpha other than 1: negative numbers lack the factor alpha.
#
# Versions: tract 0.23.9, onnx 1.23.2, numpy 2.4.6, CPython 3.11, x86-64 Linux.
# Valid input: Celu of float32 numbers with alpha 0.5, 1 and 2.
# Expected: max(0, x) + min(0, alpha (exp(x / alpha) - 1)), as the ONNX specification and onnx's reference evaluator.
# Seen: negative numbers give exp(x / alpha) - 1. Elu, which has the same attribute, is right. Neither a warning nor an
#   error appears.
# Output seen, for -1:
#   Celu, alpha 0.5: -0.8647 for -0.4323    Celu, alpha 1: -0.6321 for -0.6321    Celu, alpha 2: -0.3935 for -0.7869
#   Elu, alpha 2: -1.2642 for -1.2642
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet tract==0.23.9 onnx==1.23.2 numpy==2.4.6
cat > "$folder/celu.py" <<'PY'
import sys

import numpy as np
import onnx
import tract
from onnx import TensorProto, checker, helper
from onnx.reference import ReferenceEvaluator

EXPECTED = {("Celu", 0.5): False, ("Celu", 1): True, ("Celu", 2): False, ("Elu", 2): True}  # whether tract is right
x = np.array([-1, -3, 0, 2], np.float32)


def run(operator, alpha):
    x_info, y_info = (helper.make_tensor_value_info(name, TensorProto.FLOAT, x.shape) for name in "xy")
    node = helper.make_node(operator, ["x"], ["y"], alpha=float(alpha))
    model = helper.make_model(helper.make_graph([node], "celu", [x_info], [y_info]),
                              opset_imports=[helper.make_opsetid("", 20)], ir_version=8)
    checker.check_model(model, full_check=True)
    onnx.save(model, sys.argv[1])
    (result,) = tract.onnx().load(sys.argv[1]).into_model().into_runnable().run([x])
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    print(f"{operator}, alpha {alpha}: {result.to_numpy()[0]:.4f} for {expected[0]:.4f}")
    return bool(np.allclose(result.to_numpy(), expected, atol=1e-5))


seen = {key: run(*key) for key in EXPECTED}
raise SystemExit(0 if seen == EXPECTED else "the behaviour has changed")
PY
"$folder/venv/bin/python" -W ignore "$folder/celu.py" "$folder/model.onnx"
