#!/usr/bin/env bash
# ONNX Runtime's static quantization loses the factors alpha and beta of a Gemm.
#
# Versions: onnxruntime 1.31.1, onnx 1.23.2, numpy 2.4.6, CPython 3.11, x86-64 Linux.
# Valid input: alpha x W + beta b with constant W and b, quantize_static with weights of 7 bits, which no CPU
#   saturates, in both formats of the result.
# Expected: errors of a few steps of the output, here below 2 % of its range, or an error that a factor is unsupported.
# Seen: beta is replaced by 1 without scaling b, in both formats. In the format QOperator alpha gives wrong sums too.
#   The errors are a third of the range and more. The tool's hints are the same for right and wrong results.
# Output seen:
#   QDQ: alpha 1, beta 1: right    alpha 2, beta 1: right    alpha 1, beta 0.5: wrong
#   QOperator: alpha 1, beta 1: right    alpha 2, beta 1: wrong    alpha 1, beta 0.5: wrong
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet onnxruntime==1.31.1 onnx==1.23.2 numpy==2.4.6
cat > "$folder/gemm.py" <<'PY'
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, checker, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

EXPECTED = {  # format, alpha, beta -> whether the result is right within 2 % of its range
    ("QDQ", 1, 1): True,
    ("QDQ", 2, 1): True,
    ("QDQ", 1, 0.5): False,
    ("QOperator", 1, 1): True,
    ("QOperator", 2, 1): False,
    ("QOperator", 1, 0.5): False,
}
rng = np.random.default_rng(0)
x, weight = (rng.standard_normal(shape, dtype=np.float32) for shape in ((8, 4), (4, 3)))
bias = np.array([1, 5, 2], np.float32)
source, target = f"{sys.argv[1]}/float.onnx", f"{sys.argv[1]}/int8.onnx"


class Reader(CalibrationDataReader):
    def __init__(self):
        self.batches = iter([{"x": x}])

    def get_next(self):
        return next(self.batches, None)


def run(form, alpha, beta):
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"], alpha=float(alpha), beta=float(beta))], "gemm",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [8, 3])],
        [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(bias, "b")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    checker.check_model(model, full_check=True)
    onnx.save(model, source)
    quantize_static(
        source, target, Reader(), quant_format=QuantFormat[form], weight_type=QuantType.QInt8, reduce_range=True)
    (result,) = onnxruntime.InferenceSession(target, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    expected = alpha * (x @ weight) + beta * bias
    return bool(np.abs(result - expected).max() < 0.02 * np.ptp(expected))


seen = {key: run(*key) for key in EXPECTED}
for (form, alpha, beta), right in seen.items():
    print(f"{form}: alpha {alpha}, beta {beta}: {'right' if right else 'wrong'}")
raise SystemExit(0 if seen == EXPECTED else "the behaviour has changed")
PY
"$folder/venv/bin/python" -W ignore "$folder/gemm.py" "$folder"
