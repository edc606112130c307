#!/usr/bin/env bash
# torch's ONNX exporter turns a query row that attends to nothing from zeros into the mean of all values.
#
# Versions: torch 2.13.0, onnxscript 0.7.2, onnxruntime 1.31.1, onnx 1.23.2, numpy 2.4.6, CPython 3.11, x86-64 Linux.
# Valid input: scaled_dot_product_attention with a boolean mask in which one row is False, as for padding; float32.
# Expected: zeros in that row, as torch gives, in all opsets.
# Seen: up to opset 22 (20 is the default) the mask is written as -3.4e38 and not as minus infinity. The graph tests the
#   softmax for NaN in order to put zeros, but it never gets a NaN: a masked row is uniform. Opset 23 has an Attention
#   node, which is right. Neither a warning nor an error appears.
# Output seen:
#   opset 18: the masked row has mean    opset 20: the masked row has mean    opset 23: the masked row has zeros
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 onnxscript==0.7.2 onnxruntime==1.31.1 onnx==1.23.2 numpy==2.4.6
cat > "$folder/mask.py" <<'PY'
import onnxruntime
import torch

EXPECTED = {18: "mean", 20: "mean", 23: "zeros"}  # opset -> what the masked row has


class Attention(torch.nn.Module):
    def forward(self, q, k, v, mask):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


generator = torch.Generator().manual_seed(0)
q, k, v = (torch.randn(1, 2, 4, 8, generator=generator) for _ in range(3))
mask = torch.ones(4, 4, dtype=torch.bool)
mask[1] = False
eager = Attention()(q, k, v, mask)


def run(opset):
    program = torch.onnx.export(Attention(), (q, k, v, mask), dynamo=True, opset_version=opset, verbose=False)
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    values = [value.numpy() for value in (q, k, v, mask)]
    result = torch.tensor(session.run(None, dict(zip(names, values)))[0])
    assert torch.allclose(result[:, :, [0, 2, 3]], eager[:, :, [0, 2, 3]], atol=1e-5)
    contents = {"zeros": torch.zeros(1, 2, 8), "mean": v.mean(2)}
    return next((name for name, row in contents.items() if torch.allclose(result[:, :, 1], row, atol=1e-5)), "other")


assert not eager[:, :, 1].any()
seen = {opset: run(opset) for opset in EXPECTED}
for opset, contents in seen.items():
    print(f"opset {opset}: the masked row has {contents}")
raise SystemExit(0 if seen == EXPECTED else "the behaviour has changed")
PY
"$folder/venv/bin/python" -W ignore "$folder/mask.py"
