#!/usr/bin/env bash
# torch's ONNX exporter writes logaddexp as log(exp(a) + exp(b)), which overflows for 89 and underflows for -104.
#
# Versions: torch 2.13.0, onnxscript 0.7.2, onnxruntime 1.31.1, onnx 1.23.2, numpy 2.4.6, CPython 3.11, x86-64 Linux.
# Valid input: torch.logaddexp(x, x) of float32 numbers, whose only purpose is to avoid overflow; default exporter.
# Expected: x + log(2), as torch; logsumexp over the same two numbers is exported to ReduceLogSumExp and right.
# Seen: infinity for large numbers and minus infinity for small ones. Neither a warning nor an error appears.
# Output seen:
#   logaddexp, 1: 1.6931 for 1.6931    logaddexp, 100: inf for 100.6931    logaddexp, -200: -inf for -199.3069
#   logsumexp, 100: 100.6931 for 100.6931    logsumexp, -200: -199.3069 for -199.3069
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 onnxscript==0.7.2 onnxruntime==1.31.1 onnx==1.23.2 numpy==2.4.6
cat > "$folder/logaddexp.py" <<'PY'
import onnxruntime
import torch

EXPECTED = {  # function, number -> whether the file's result is the one of torch
    ("logaddexp", 1): True,
    ("logaddexp", 100): False,
    ("logaddexp", -200): False,
    ("logsumexp", 100): True,
    ("logsumexp", -200): True,
}


class Model(torch.nn.Module):
    def __init__(self, name):
        super().__init__()
        self.name = name

    def forward(self, a, b):
        return torch.logaddexp(a, b) if self.name == "logaddexp" else torch.logsumexp(torch.stack([a, b]), 0)


def run(name, number):
    model, values = Model(name), tuple(torch.full((1,), float(number)) for _ in range(2))
    example = (torch.zeros(1), torch.ones(1))
    data = torch.onnx.export(model, example, dynamo=True, verbose=False).model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    (result,) = session.run(None, {key: value.numpy() for key, value in zip(names, values)})
    print(f"{name}, {number}: {result.item():.4f} for {model(*values).item():.4f}")
    return abs(result.item() - model(*values).item()) < 1e-3


seen = {key: run(*key) for key in EXPECTED}
raise SystemExit(0 if seen == EXPECTED else "the behaviour has changed")
PY
"$folder/venv/bin/python" -W ignore "$folder/logaddexp.py"
