#!/usr/bin/env bash
# ExecuTorch's portable remainder of integers has the sign of the dividend: -7 % 3 is -1 instead of 2.
#
# Versions: executorch 1.5.1, torchao 0.18.0, torch 2.13.0, numpy 2.4.6, CPython 3.11, x86-64 Linux.
# Valid input: a % b of integer tensors, and of an integer tensor and a number, with operands of different signs.
# Expected: the sign of the divisor, as torch and Python, so that a == a // b * b + a % b.
# Seen: integers get the remainder of C. Floats are right, and so is the floor division of integers, so the identity
#   does not hold. Neither a warning nor an error appears.
# Output seen:
#   int32 -7 % 3: -1 for 2    int64 -7 % 3: -1 for 2    int64 7 % -3: 1 for -2    float32 -7 % 3: 2.0 for 2.0
#   int64 -7 // 3: -3 for -3
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 torchao==0.18.0 numpy==2.4.6 flatbuffers==25.12.19 \
    ruamel.yaml==0.19.1 tabulate==0.10.0 PyYAML==6.0.4 packaging==26.4
"$folder/venv/bin/pip" install --quiet --no-deps executorch==1.5.1
cat > "$folder/remainder.py" <<'PY'
import torch
from executorch.exir import to_edge_transform_and_lower
from executorch.runtime import Runtime

EXPECTED = {  # dtype, operator, operands -> ExecuTorch's result
    ("int32", "%", -7, 3): -1,
    ("int64", "%", -7, 3): -1,
    ("int64", "%", 7, -3): 1,
    ("float32", "%", -7, 3): 2.0,
    ("int64", "//", -7, 3): -3,
}
OPERATORS = {"%": torch.remainder, "//": torch.floor_divide}
runtime = Runtime.get()


class Model(torch.nn.Module):
    def __init__(self, operator, divisor):
        super().__init__()
        self.operator, self.divisor = operator, divisor

    def forward(self, a, b):
        return self.operator(a, b), self.operator(a, self.divisor)


def run(dtype, operator, dividend, divisor):
    model = Model(OPERATORS[operator], divisor)
    example = tuple(torch.full((2,), number, dtype=getattr(torch, dtype)) for number in (dividend, divisor))
    program = to_edge_transform_and_lower(torch.export.export(model, example)).to_executorch()
    tensor, number = runtime.load_program(program.buffer).load_method("forward").execute(example)
    assert torch.equal(tensor, number)
    print(f"{dtype} {dividend} {operator} {divisor}: {tensor[0].item()} for {model(*example)[0][0].item()}")
    return tensor[0].item()


seen = {key: run(*key) for key in EXPECTED}
raise SystemExit(0 if seen == EXPECTED else "the behaviour has changed")
PY
"$folder/venv/bin/python" -W ignore "$folder/remainder.py"
