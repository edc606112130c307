#!/usr/bin/env bash
# torch's ONNX exporter drops the divisor_override of an average pool.
#
# Versions: torch 2.13.0, onnxscript 0.7.2, onnxruntime 1.31.1, onnx 1.23.2, numpy 2.4.6, CPython 3.11, x86-64 Linux.
# Valid input: nn.AvgPool2d(2, divisor_override=...) on a picture of ones, default exporter (dynamo=True) and opset.
# Expected: 4 / divisor_override, as torch, or an error that ONNX's AveragePool has no such attribute.
# Seen: the file has a plain AveragePool and gives 1. Only an override that equals the size of the window is right.
#   Neither a warning nor an error appears.
# Output seen:
#   divisor_override None: 1.0 for 1.0    divisor_override 4: 1.0 for 1.0    divisor_override 1: 1.0 for 4.0
#   divisor_override 8: 1.0 for 0.5
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 onnxscript==0.7.2 onnxruntime==1.31.1 onnx==1.23.2 numpy==2.4.6
cat > "$folder/pool.py" <<'PY'
import onnxruntime
import torch

EXPECTED = {None: (1.0, 1.0), 4: (1.0, 1.0), 1: (1.0, 4.0), 8: (1.0, 0.5)}  # override -> results, torch's
x = torch.ones(1, 1, 4, 4)


def run(override):
    model = torch.nn.AvgPool2d(2, divisor_override=override)
    data = torch.onnx.export(model, (x,), dynamo=True, verbose=False).model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    return result.flat[0].item(), model(x).flatten()[0].item()


seen = {override: run(override) for override in EXPECTED}
for override, (result, expected) in seen.items():
    print(f"divisor_override {override}: {result} for {expected}")
raise SystemExit(0 if seen == EXPECTED else "the behaviour has changed")
PY
"$folder/venv/bin/python" -W ignore "$folder/pool.py"
