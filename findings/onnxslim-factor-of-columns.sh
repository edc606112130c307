#!/usr/bin/env bash
# onnxslim multiplies a convolution's channels by a factor that belongs to the columns.
#
# Versions: onnxslim 0.1.98, onnx 1.23.2, numpy 2.4.6, CPython 3.11, x86-64 Linux.
# Valid input: Conv with three channels and three columns of output, then Mul by an initializer of shape [3] or
#   [3, 1, 1]. Broadcasting aligns the first with the columns and the second with the channels.
# Expected: the slimmed model computes the same as the model.
# Seen: both are multiplied into the weights as one factor for each channel, so the result for the first is wrong.
#   Neither a warning nor an error appears.
# Output seen:
#   factor [3], 3 columns: wrong    factor [3, 1, 1], 3 columns: right
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet onnxslim==0.1.98 onnx==1.23.2 numpy==2.4.6
cat > "$folder/factor.py" <<'PY'
import numpy as np
import onnx
import onnxslim
from onnx import TensorProto, checker, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

EXPECTED = {(3,): False, (3, 1, 1): True}  # shape of the factor -> whether the slimmed model computes the same
rng = np.random.default_rng(0)
x = rng.standard_normal((1, 2, 5, 5), dtype=np.float32)
weights = {"w": rng.standard_normal((3, 2, 3, 3), dtype=np.float32), "b": rng.standard_normal(3, dtype=np.float32)}
factor = np.array([1, 10, 100], np.float32)


def run(shape):
    tensors = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w", "b"], ["c"]), helper.make_node("Mul", ["c", "factor"], ["y"])], "conv",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3, 3, 3])],
        [*tensors, numpy_helper.from_array(factor.reshape(shape), "factor")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=8)
    checker.check_model(model, full_check=True)
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    slim = onnxslim.slim(onnx.ModelProto.FromString(model.SerializeToString()))
    (result,) = ReferenceEvaluator(slim).run(None, {"x": x})
    return bool(np.allclose(result, expected, rtol=1e-3, atol=1e-3))


seen = {shape: run(shape) for shape in EXPECTED}
for shape, right in seen.items():
    print(f"factor {list(shape)}, 3 columns: {'right' if right else 'wrong'}")
raise SystemExit(0 if seen == EXPECTED else "the behaviour has changed")
PY
"$folder/venv/bin/python" -W ignore "$folder/factor.py"
