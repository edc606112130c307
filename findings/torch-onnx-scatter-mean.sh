#!/usr/bin/env bash
# torch's ONNX exporter writes scatter_reduce with "mean" as a scatter without any reduction.
#
# Versions: torch 2.13.0, onnxscript 0.7.2, onnxruntime 1.31.1, onnx 1.23.2, numpy 2.4.6, CPython 3.11, x86-64 Linux.
# Valid input: torch.zeros(3).scatter_reduce(0, [0, 0, 1, 2, 2], x, reduce), default exporter (dynamo=True) and opset.
# Expected: the mean of the elements of each index, or an error that ONNX's ScatterElements has no mean.
# Seen: the node ScatterElements has reduction "none", so the last element of each index wins. The other reductions are
#   right. Neither a warning nor an error appears.
# Output seen, for x = [2, 4, 3, 5, 7]:
#   sum: right    prod: right    amax: right    amin: right
#   mean, include_self True: [4, 3, 7] for [2, 1.5, 4]    mean, include_self False: [4, 3, 7] for [3, 3, 6]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 onnxscript==0.7.2 onnxruntime==1.31.1 onnx==1.23.2 numpy==2.4.6
cat > "$folder/scatter.py" <<'PY'
import numpy as np
import onnxruntime
import torch

EXPECTED = {  # reduction, include_self -> whether ONNX Runtime's result is the one of torch
    ("sum", True): True, ("prod", True): True, ("amax", True): True, ("amin", True): True,
    ("sum", False): True, ("mean", True): False, ("mean", False): False,
}
index = torch.tensor([0, 0, 1, 2, 2])
x = torch.tensor([2.0, 4.0, 3.0, 5.0, 7.0])


class Scatter(torch.nn.Module):
    def __init__(self, reduction, include_self):
        super().__init__()
        self.reduction, self.include_self = reduction, include_self

    def forward(self, x):
        return torch.zeros(3).scatter_reduce(0, index, x, self.reduction, include_self=self.include_self)


def run(*options):
    model = Scatter(*options)
    data = torch.onnx.export(model, (x,), dynamo=True, verbose=False).model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    right = np.allclose(result, model(x).numpy())
    print(*options, "right" if right else f"{result.tolist()} for {model(x).tolist()}")
    return right


seen = {key: run(*key) for key in EXPECTED}
raise SystemExit(0 if seen == EXPECTED else "the behaviour has changed")
PY
"$folder/venv/bin/python" -W ignore "$folder/scatter.py"
