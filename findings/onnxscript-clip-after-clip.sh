#!/usr/bin/env bash
# onnxscript's optimizer merges two Clips with disjoint ranges into one that gives the first's bound.
#
# Versions: onnxscript 0.7.2, onnx 1.23.2, numpy 2.4.6, CPython 3.11, x86-64 Linux.
# Valid input: Clip to [-1, 0] and then Clip to another range, with constant bounds; onnxscript.optimizer.optimize.
# Expected: the same results as before; after the second Clip no number is below its minimum.
# Seen: the merged range is the larger minimum and the smaller maximum. If the second range lies above the first, its
#   minimum is larger than its maximum, and Clip then gives the maximum: 0 although the second Clip has minimum 0.5.
#   Overlapping ranges and a second range below the first are right. Neither a warning nor an error appears.
# Output seen, for -2, -0.5 and 3:
#   then [0.5, 2]: [0.0, 0.0, 0.0] for [0.5, 0.5, 0.5]    then [-0.5, 2]: [-0.5, -0.5, 0.0] for [-0.5, -0.5, 0.0]
#   then [-3, -2]: [-2.0, -2.0, -2.0] for [-2.0, -2.0, -2.0]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet onnxscript==0.7.2 onnx==1.23.2 numpy==2.4.6
cat > "$folder/clip.py" <<'PY'
import numpy as np
import onnxscript.optimizer
from onnx import TensorProto, checker, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

EXPECTED = {(0.5, 2): False, (-0.5, 2): True, (-3, -2): True}  # second range -> whether the optimized model is right
x = np.array([-2, -0.5, 3], np.float32)


def run(bounds):
    values = dict(zip(("low1", "high1", "low2", "high2"), (-1, 0, *bounds)))
    nodes = [helper.make_node("Clip", ["x", "low1", "high1"], ["c"]),
             helper.make_node("Clip", ["c", "low2", "high2"], ["y"])]
    graph = helper.make_graph(
        nodes, "clip",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, x.shape)],
        [numpy_helper.from_array(np.float32(value), name) for name, value in values.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=8)
    checker.check_model(model, full_check=True)
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    (result,) = ReferenceEvaluator(onnxscript.optimizer.optimize(model)).run(None, {"x": x})
    print(f"then {list(bounds)}: {result.tolist()} for {expected.tolist()}")
    return result.tolist() == expected.tolist()


seen = {bounds: run(bounds) for bounds in EXPECTED}
raise SystemExit(0 if seen == EXPECTED else "the behaviour has changed")
PY
"$folder/venv/bin/python" -W ignore "$folder/clip.py"
