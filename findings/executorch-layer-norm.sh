#!/usr/bin/env bash
# ExecuTorch's portable LayerNorm is off by a factor of hundreds, or NaN, where the mean is large against the spread.
#
# Versions: executorch 1.5.1, torchao 0.18.0, torch 2.13.0, numpy 2.4.6, CPython 3.11, x86-64 Linux.
# Valid input: nn.LayerNorm(8) on float32 rows that are 0 to 7 plus an offset; all of the numbers are exact in float32.
# Expected: -1.5275 to 1.5275 for each offset, as torch.
# Seen: with an offset of 10000 the variance of 5.25 becomes 0, so only eps is left; a random row gives NaN, as if the
#   variance were the mean of the squares minus the square of the mean in float32. Neither a warning nor an error
#   appears.
# Output seen, the last element of the row, or of a random row:
#   offset 0: 1.5275    offset 100: 1.5275    offset 10000: 1106.7972    random rows around 4096 have NaN: True
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 torchao==0.18.0 numpy==2.4.6 flatbuffers==25.12.19 \
    ruamel.yaml==0.19.1 tabulate==0.10.0 PyYAML==6.0.4 packaging==26.4
"$folder/venv/bin/pip" install --quiet --no-deps executorch==1.5.1
cat > "$folder/norm.py" <<'PY'
import torch
from executorch.exir import to_edge_transform_and_lower
from executorch.runtime import Runtime

EXPECTED = {0: True, 100: True, 10000: False}  # offset -> whether the result is within 1 % of torch's
runtime = Runtime.get()


def run(model, x):
    program = to_edge_transform_and_lower(torch.export.export(model.eval(), (x,))).to_executorch()
    return runtime.load_program(program.buffer).load_method("forward").execute([x])[0]


def judge(offset):
    x = offset + torch.arange(8.0).reshape(1, 8)
    norm = torch.nn.LayerNorm(8)
    result = run(norm, x)
    print(f"offset {offset}: {result[0, -1]:.4f} for {norm(x)[0, -1]:.4f}")
    return torch.allclose(result, norm(x), rtol=0.01)


seen = {offset: judge(offset) for offset in EXPECTED}
rows = 4096 + torch.randn(256, 32, generator=torch.Generator().manual_seed(0))
norm = torch.nn.LayerNorm(32)
nan = bool(run(norm, rows).isnan().any())
print("random rows around 4096 have NaN:", nan)
assert not norm(rows).isnan().any()
raise SystemExit(0 if seen == EXPECTED and nan else "the behaviour has changed")
PY
"$folder/venv/bin/python" -W ignore "$folder/norm.py"
