#!/usr/bin/env bash
# TVM's importer of torch programs ignores alpha of add, sub and rsub.
#
# Versions: apache-tvm 0.27.0.post1, apache-tvm-ffi 0.1.14.post1, torch 2.13.0, numpy 2.4.6, CPython 3.11, x86-64 Linux.
# Valid input: torch.add(x, y, alpha=3) and its relatives on float32 tensors, exported by torch.export; target llvm.
# Expected: x + 3 y, as torch; the factors of addcmul and addmm are respected.
# Seen: the imported function computes x + y, x - y and y - x, also for in-place operators and for a number in the place
#   of y. Neither a warning nor an error appears.
# Output seen, for x = 1 and y = 10:
#   add: 11.0 for 31.0    add_: 11.0 for 31.0    add of a number: 11.0 for 31.0    sub: -9.0 for -29.0
#   rsub: 9.0 for 7.0    addcmul: 31.0 for 31.0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet apache-tvm==0.27.0.post1 apache-tvm-ffi==0.1.14.post1 torch==2.13.0 numpy==2.4.6
cat > "$folder/alpha.py" <<'PY'
import torch
import tvm
from tvm import relax
from tvm.relax.frontend.torch import from_exported_program

CASES = {  # name -> the function, and TVM's result for x = 1 and y = 10
    "add": (lambda x, y: torch.add(x, y, alpha=3), 11.0),
    "add_": (lambda x, y: x.clone().add_(y, alpha=3), 11.0),
    "add of a number": (lambda x, y: torch.add(x, 10, alpha=3), 11.0),
    "sub": (lambda x, y: torch.sub(x, y, alpha=3), -9.0),
    "rsub": (lambda x, y: torch.rsub(x, y, alpha=3), 9.0),
    "addcmul": (lambda x, y: torch.addcmul(x, x, y, value=3), 31.0),
}
x, y = torch.full((4,), 1.0), torch.full((4,), 10.0)


class Model(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x, y):
        return self.function(x, y)


def run(function):
    module = from_exported_program(torch.export.export(Model(function), (x, y)))
    machine = relax.VirtualMachine(tvm.compile(module, target="llvm"), tvm.cpu())
    (result,) = machine["main"](tvm.runtime.tensor(x.numpy()), tvm.runtime.tensor(y.numpy()))
    return result.numpy()[0].item()


seen = {name: run(function) for name, (function, _) in CASES.items()}
for name, result in seen.items():
    print(f"{name}: {result} for {CASES[name][0](x, y)[0].item()}")
raise SystemExit(0 if seen == {n: e for n, (_, e) in CASES.items()} else "the behaviour has changed")
PY
"$folder/venv/bin/python" -W ignore "$folder/alpha.py"
