#!/usr/bin/env bash
# torch.export drops a torch._check without a word if its condition has a square root, a ceiling or a float power.
#
# Versions: torch 2.13.0, CPython 3.11, x86-64 Linux.
# Valid input: a model that checks an element of a tensor and multiplies by it; the example satisfies the check.
# Expected: the exported program raises for an element that breaks the check, as it does for other conditions.
# Seen: for the three conditions below no assertion is in the graph, and the program answers. Neither a warning nor an
#   error appears. The condition that is cubed stays.
# Output seen:
#   k**3 < 90: raises    sqrt(k) < 5: answers    ceil(k / 3) < 5: answers    2.0**k < 90: answers
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
cat > "$folder/checks.py" <<'PY'
import math

import torch

CONDITIONS = {  # condition -> its function, and whether the exported program raises where it is false
    "k**3 < 90": (lambda k: k**3 < 90, True),
    "sqrt(k) < 5": (lambda k: torch._sym_sqrt(k) < 5, False),
    "ceil(k / 3) < 5": (lambda k: math.ceil(k / 3) < 5, False),
    "2.0**k < 90": (lambda k: 2.0**k < 90, False),
}


class Checked(torch.nn.Module):
    def __init__(self, condition):
        super().__init__()
        self.condition = condition

    def forward(self, x, n):
        k = n.item()
        torch._check(self.condition(k))
        return x * k


def raises(condition):
    exported = torch.export.export(Checked(condition), (torch.ones(3), torch.tensor(4)))
    try:
        exported.module()(torch.ones(3), torch.tensor(40))
    except RuntimeError:
        return True
    return False


seen = {words: raises(condition) for words, (condition, _) in CONDITIONS.items()}
for words, raised in seen.items():
    print(f"{words}: {'raises' if raised else 'answers'}")
raise SystemExit(0 if seen == {w: e for w, (_, e) in CONDITIONS.items()} else "the behaviour has changed")
PY
"$folder/venv/bin/python" -W ignore "$folder/checks.py"
