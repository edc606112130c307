#!/usr/bin/env bash
# ONNX Runtime averages windows many times slower than it convolves them with constant weights.
#
# Versions: onnxruntime 1.31.1, onnx 1.23.2, numpy 2.4.6, CPython 3.11, x86-64 Linux.
# Valid input: AveragePool of float32[1, 3, 96, 96] with 11x11 windows and stride 1, and a depthwise Conv of the same
#   windows with weights of 1/121, which computes the same. Both have default options and two threads.
# Expected: the pool does less work than the convolution, so it is not slower.
# Seen: the pool takes 21 times as long, and 8 times with windows of 3x3. Its time grows with the elements of the window.
# Output seen:
#   3x3: AveragePool 0.31 ms, Conv 0.04 ms
#   11x11: AveragePool 6.88 ms, Conv 0.32 ms
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet onnxruntime==1.31.1 onnx==1.23.2 numpy==2.4.6
cat > "$folder/windows.py" <<'PY'
import time

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

SIZE, CHANNELS = 96, 3
LEAST = 3  # times that the pool takes as long with windows of 11


def session(node, result, constants=()):
    infos = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [1, CHANNELS, SIZE, SIZE]), ("y", [1, CHANNELS, result, result]))
    ]
    graph = helper.make_graph([node], "windows", infos[:1], infos[1:], constants)
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def least_seconds(run):
    run()
    times = []
    for _ in range(30):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


x = np.random.default_rng(0).standard_normal((1, CHANNELS, SIZE, SIZE), np.float32)
ratios = {}
for side in (3, 11):
    pool = session(helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=[side, side]), SIZE - side + 1)
    weights = numpy_helper.from_array(np.full((CHANNELS, 1, side, side), 1 / side**2, np.float32), "w")
    conv = session(helper.make_node("Conv", ["x", "w"], ["y"], group=CHANNELS), SIZE - side + 1, [weights])
    results = [one.run(None, {"x": x})[0] for one in (pool, conv)]
    assert np.abs(results[0] - results[1]).max() < 1e-5
    pooled, convolved = (least_seconds(lambda one=one: one.run(None, {"x": x})) for one in (pool, conv))
    ratios[side] = pooled / convolved
    print(f"{side}x{side}: AveragePool {pooled * 1e3:.2f} ms, Conv {convolved * 1e3:.2f} ms")
raise SystemExit(0 if ratios[11] > LEAST else "the behaviour has changed")
PY
"$folder/venv/bin/python" -W ignore "$folder/windows.py"
