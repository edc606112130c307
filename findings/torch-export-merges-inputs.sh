#!/usr/bin/env bash
# torch.export merges two inputs into the last one if the example passes the same tensor for both.
#
# Versions: torch 2.13.0, CPython 3.11, x86-64 Linux.
# Valid input: f(x, y) = 2 x + y, exported with the example (t, t), as self-attention is usually called.
# Expected: the program computes 2 x + y, as it does for an example of two tensors, or a guard rejects distinct inputs.
# Seen: the program still has two inputs but computes from the last alone, in both modes of export, and has no guard on
#   the identity. Neither a warning nor an error appears.
# Output seen, for x = 1 and y = 10, where 2 x + y is 12:
#   two tensors, strict False: 12.0    two tensors, strict True: 12.0
#   same tensor, strict False: 30.0    same tensor, strict True: 30.0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
cat > "$folder/inputs.py" <<'PY'
import torch

EXPECTED = {  # example, strict -> the result
    ("two tensors", False): 12.0,
    ("two tensors", True): 12.0,
    ("same tensor", False): 30.0,
    ("same tensor", True): 30.0,
}
t = torch.ones(3)
EXAMPLES = {"two tensors": (t, t.clone()), "same tensor": (t, t)}


class Sum(torch.nn.Module):
    def forward(self, x, y):
        return x * 2 + y


def run(example, strict):
    exported = torch.export.export(Sum(), EXAMPLES[example], strict=strict)
    return exported.module()(torch.full((3,), 1.0), torch.full((3,), 10.0))[0].item()


seen = {key: run(*key) for key in EXPECTED}
for (example, strict), result in seen.items():
    print(f"{example}, strict {strict}: {result}")
raise SystemExit(0 if seen == EXPECTED else "the behaviour has changed")
PY
"$folder/venv/bin/python" -W ignore "$folder/inputs.py"
