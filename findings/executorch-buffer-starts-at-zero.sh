#!/usr/bin/env bash
# ExecuTorch drops the initial value of a buffer that the model mutates: it starts at zero.
#
# Versions: executorch 1.5.1, torchao 0.18.0, torch 2.13.0, numpy 2.4.6, CPython 3.11, x86-64 Linux.
# Valid input: a registered buffer [5.0] to which forward adds its input; lowered and run with all defaults.
# Expected: 6 and 7 for two calls with 1, as torch, or an error that the value is not stored.
# Seen: the results are 1 and 2. A buffer that is only read keeps its value. Neither a warning nor an error appears.
# Output seen:
#   float32, mutated: [1.0, 2.0] for [6.0, 7.0]    int64, mutated: [1, 2] for [6, 7]
#   float32, only read: [6.0, 6.0] for [6.0, 6.0]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 torchao==0.18.0 numpy==2.4.6 flatbuffers==25.12.19 \
    ruamel.yaml==0.19.1 tabulate==0.10.0 PyYAML==6.0.4 packaging==26.4
"$folder/venv/bin/pip" install --quiet --no-deps executorch==1.5.1
cat > "$folder/buffer.py" <<'PY'
import torch
from executorch.exir import to_edge_transform_and_lower
from executorch.runtime import Runtime

EXPECTED = {  # dtype, whether forward mutates the buffer -> the results of two calls
    ("float32", True): [1.0, 2.0],
    ("int64", True): [1, 2],
    ("float32", False): [6.0, 6.0],
}
runtime = Runtime.get()


class Counter(torch.nn.Module):
    def __init__(self, dtype, mutates):
        super().__init__()
        self.register_buffer("count", torch.tensor([5], dtype=dtype))
        self.mutates = mutates

    def forward(self, x):
        if not self.mutates:
            return self.count + x
        self.count.add_(x)
        return self.count.clone()


def run(name, mutates):
    dtype = getattr(torch, name)
    one = torch.ones(1, dtype=dtype)
    program = to_edge_transform_and_lower(torch.export.export(Counter(dtype, mutates), (one,))).to_executorch()
    method = runtime.load_program(program.buffer).load_method("forward")
    eager = Counter(dtype, mutates)
    results, expected = ([call(one).item() for _ in range(2)] for call in (lambda x: method.execute([x])[0], eager))
    print(f"{name}, {'mutated' if mutates else 'only read'}: {results} for {expected}")
    return results


seen = {key: run(*key) for key in EXPECTED}
raise SystemExit(0 if seen == EXPECTED else "the behaviour has changed")
PY
"$folder/venv/bin/python" -W ignore "$folder/buffer.py"
