#!/usr/bin/env bash
# TVM's importer of torch programs leaves out the scale of SELU: positive numbers stay as they are.
#
# Versions: apache-tvm 0.27.0.post1, apache-tvm-ffi 0.1.14.post1, torch 2.13.0, numpy 2.4.6, CPython 3.11, x86-64 Linux.
# Valid input: torch.nn.functional.selu of a float32 tensor, exported by torch.export; target llvm.
# Expected: 1.0507 x for positive x, and 1.7581 (exp(x) - 1) for negative x, as torch and the definition.
# Seen: each result lacks the factor 1.0507. ELU and CELU are right. Neither a warning nor an error appears.
# Output seen, for -1 and 2:
#   selu: -1.0577, 2.0000 for -1.1113, 2.1014    elu: -0.6321, 2.0000 for -0.6321, 2.0000
#   celu: -0.7869, 2.0000 for -0.7869, 2.0000
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet apache-tvm==0.27.0.post1 apache-tvm-ffi==0.1.14.post1 torch==2.13.0 numpy==2.4.6
cat > "$folder/selu.py" <<'PY'
import numpy as np
import torch
import tvm
from tvm import relax
from tvm.relax.frontend.torch import from_exported_program

CASES = {  # name -> the module, and whether TVM's result is the one of torch
    "selu": (torch.nn.SELU(), False),
    "elu": (torch.nn.ELU(), True),
    "celu": (torch.nn.CELU(2.0), True),
}
x = torch.tensor([-1.0, 2.0])


def run(name):
    module = CASES[name][0].eval()
    imported = from_exported_program(torch.export.export(module, (x,)))
    machine = relax.VirtualMachine(tvm.compile(imported, target="llvm"), tvm.cpu())
    (result,) = machine["main"](tvm.runtime.tensor(x.numpy()))
    texts = [", ".join(f"{number:.4f}" for number in values) for values in (result.numpy(), module(x).numpy())]
    print(f"{name}: {texts[0]} for {texts[1]}")
    return bool(np.allclose(result.numpy(), module(x).numpy(), atol=1e-4))


seen = {name: run(name) for name in CASES}
raise SystemExit(0 if seen == {name: right for name, (_, right) in CASES.items()} else "the behaviour has changed")
PY
"$folder/venv/bin/python" -W ignore "$folder/selu.py"
