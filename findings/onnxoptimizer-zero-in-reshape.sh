#!/usr/bin/env bash
# onnxoptimizer removes the first of two Reshapes, so a 0 in the second copies a dimension of another tensor.
#
# Versions: onnxoptimizer 0.4.2, onnx 1.23.2, numpy 2.4.6, CPython 3.11, x86-64 Linux.
# Valid input: Reshape of [2, 3, 4] to [4, 6], then a Reshape to a shape with 0, which copies a dimension of its input;
#   onnxoptimizer.optimize with the default passes, of which eliminate_consecutive_idempotent_ops matters.
# Expected: the model with one Reshape gives the same shape.
# Seen: the second Reshape is kept as it is and gets the first input, so 0 copies 2 instead of 4, and the result has
#   another shape. Target shapes without 0 are right. Neither a warning nor an error appears.
# Output seen:
#   then [0, -1]: [2, 12] for [4, 6]    then [0, 2, -1]: [2, 2, 6] for [4, 2, 3]    then [4, -1]: [4, 6] for [4, 6]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet onnxoptimizer==0.4.2 onnx==1.23.2 numpy==2.4.6
cat > "$folder/reshape.py" <<'PY'
import numpy as np
import onnxoptimizer
from onnx import TensorProto, checker, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

EXPECTED = {  # second target shape -> shapes of the results after and before optimization
    (0, -1): ([2, 12], [4, 6]),
    (0, 2, -1): ([2, 2, 6], [4, 2, 3]),
    (4, -1): ([4, 6], [4, 6]),
}
x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def run(target):
    nodes = [helper.make_node("Reshape", ["x", "first"], ["middle"]),
             helper.make_node("Reshape", ["middle", "second"], ["y"])]
    sizes = [f"size{axis}" for axis in range(len(target))]
    graph = helper.make_graph(
        nodes, "reshapes",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, sizes)],
        [numpy_helper.from_array(np.array([4, 6]), "first"), numpy_helper.from_array(np.array(target), "second")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=8)
    checker.check_model(model, full_check=True)
    optimized = onnxoptimizer.optimize(model)
    return tuple(list(ReferenceEvaluator(each).run(None, {"x": x})[0].shape) for each in (optimized, model))


seen = {target: run(target) for target in EXPECTED}
for target, (after, before) in seen.items():
    print(f"then {list(target)}: {after} for {before}")
raise SystemExit(0 if seen == EXPECTED else "the behaviour has changed")
PY
"$folder/venv/bin/python" -W ignore "$folder/reshape.py"
