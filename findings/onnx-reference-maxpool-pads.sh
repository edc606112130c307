#!/usr/bin/env bash
# onnx's reference evaluator gives MaxPool with unequal pads a shape that contradicts onnx's shape inference.
#
# Versions: onnx 1.23.2, numpy 2.4.6, CPython 3.11, x86-64 Linux.
# Valid input: MaxPool with kernel [3, 3] on a picture of 6 by 6 and pads of the form [top, left, bottom, right].
# Expected: 6 + top + bottom - 2 rows and 6 + left + right - 2 columns, as shape inference says and the engines give.
# Seen: with unequal pads the result has other numbers of rows and columns, as if the list were
#   [top, bottom, left, right]. AveragePool with the same attributes is right. Neither a warning nor an error appears.
# Output seen:
#   MaxPool, pads [1, 1, 1, 1]: [6, 6] for [6, 6]    MaxPool, pads [0, 0, 2, 1]: [4, 7] for [6, 5]
#   AveragePool, pads [0, 0, 2, 1]: [6, 5] for [6, 5]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet onnx==1.23.2 numpy==2.4.6
cat > "$folder/pool.py" <<'PY'
import numpy as np
from onnx import TensorProto, checker, helper, shape_inference
from onnx.reference import ReferenceEvaluator

EXPECTED = {  # operator, pads -> rows and columns of the evaluator's result and of shape inference
    ("MaxPool", (1, 1, 1, 1)): ([6, 6], [6, 6]),
    ("MaxPool", (0, 0, 2, 1)): ([4, 7], [6, 5]),
    ("AveragePool", (0, 0, 2, 1)): ([6, 5], [6, 5]),
}
x = np.random.default_rng(0).standard_normal((1, 1, 6, 6), dtype=np.float32)


def run(operator, pads):
    node = helper.make_node(operator, ["x"], ["y"], kernel_shape=[3, 3], pads=pads)
    x_info = helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)
    y_info = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, "rows", "columns"])
    graph = helper.make_graph([node], "pool", [x_info], [y_info])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=8)
    checker.check_model(model, full_check=True)
    (result,) = ReferenceEvaluator(model).run(None, {"x": x})
    inferred = shape_inference.infer_shapes(model, strict_mode=True).graph.output[0].type.tensor_type.shape
    return list(result.shape[2:]), [dimension.dim_value for dimension in inferred.dim[2:]]


seen = {key: run(*key) for key in EXPECTED}
for (operator, pads), (shape, inferred) in seen.items():
    print(f"{operator}, pads {list(pads)}: {shape} for {inferred}")
raise SystemExit(0 if seen == EXPECTED else "the behaviour has changed")
PY
"$folder/venv/bin/python" -W ignore "$folder/pool.py"
