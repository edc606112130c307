#!/usr/bin/env bash
# TVM's importer of torch programs computes with integers where a fraction meets an integer tensor: 7 * 1.5 is 7.
#
# Versions: apache-tvm 0.27.0.post1, apache-tvm-ffi 0.1.14.post1, torch 2.13.0, numpy 2.4.6, CPython 3.11, x86-64 Linux.
# Valid input: an int32 tensor combined with a Python number, or true division, exported by torch.export; target llvm.
# Expected: float32 results by torch's type promotion, or an error.
# Seen: the number is rounded towards zero to an integer, the result is int32, and true division is C's division. The
#   float32 dtype that torch.export recorded for the result is not compared. Neither a warning nor an error appears.
# Output seen, for 7:
#   x * 1.5: int32 7 for 10.5    x + 0.5: int32 7 for 7.5    x / 2: int32 3 for 3.5    x == 7.5: bool True for False
#   x.float() * 1.5: float32 10.5 for 10.5
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet apache-tvm==0.27.0.post1 apache-tvm-ffi==0.1.14.post1 torch==2.13.0 numpy==2.4.6
cat > "$folder/promotion.py" <<'PY'
import torch
import tvm
from tvm import relax
from tvm.relax.frontend.torch import from_exported_program

CASES = {  # name -> the function, and the dtype and value that TVM gives for 7
    "x * 1.5": (lambda x: x * 1.5, ("int32", 7)),
    "x + 0.5": (lambda x: x + 0.5, ("int32", 7)),
    "x / 2": (lambda x: x / 2, ("int32", 3)),
    "x == 7.5": (lambda x: x == 7.5, ("bool", True)),
    "x.float() * 1.5": (lambda x: x.float() * 1.5, ("float32", 10.5)),
}
x = torch.full((4,), 7, dtype=torch.int32)


class Model(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def run(function):
    module = from_exported_program(torch.export.export(Model(function), (x,)))
    machine = relax.VirtualMachine(tvm.compile(module, target="llvm"), tvm.cpu())
    (result,) = machine["main"](tvm.runtime.tensor(x.numpy()))
    return str(result.numpy().dtype), result.numpy()[0].item()


seen = {name: run(function) for name, (function, _) in CASES.items()}
for name, (dtype, value) in seen.items():
    print(f"{name}: {dtype} {value} for {CASES[name][0](x)[0].item()}")
raise SystemExit(0 if seen == {n: e for n, (_, e) in CASES.items()} else "the behaviour has changed")
PY
"$folder/venv/bin/python" -W ignore "$folder/promotion.py"
