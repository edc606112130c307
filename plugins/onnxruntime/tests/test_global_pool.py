"""Sessions in a process whose other code has set ONNX Runtime's global thread pool."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import delegate
from delegate.testing import assert_same
from tests.support.processes import run

_CHILD = """
import json
when, path = sys.argv[1:]
import delegate, numpy as np, onnxruntime

def set_pool():
    onnxruntime.set_global_thread_pool_sizes(2, 1)

x = np.ones((2, 4), np.float32)
results = []
if when == "before":
    set_pool()
with delegate.load(path) as program:
    results.append(program(x).tolist())
    if when == "after":
        set_pool()
    results.append(program(x).tolist())
    with program.profile(inner=True):
        results.append(program(x).tolist())
with delegate.load(path, options={"onnxruntime": {"threads": 2}}) as program:
    results.append(program(x).tolist())
import torch
exported = torch.export.export(torch.nn.ReLU(), (torch.ones(2, 4),))
compiled = delegate.to_backend(exported, config={"backends": [{"name": "onnxruntime", "isolate": "none"}]})
assert {node.backend for node in compiled.report.nodes} == {"onnxruntime"}
assert compiled(torch.ones(2, 4)).tolist() == [[1.0] * 4] * 2
print(json.dumps(results))
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_sessions_use_the_global_pool(when: str, tmp_path: Path) -> None:
    model, x = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval(), torch.ones(2, 4)
    program = delegate.to_backend(torch.export.export(model, (x,)), "onnxruntime")
    assert {node.backend for node in program.report.nodes} == {"onnxruntime"}
    program.save(tmp_path / "program.dlg")
    done = run(_CHILD, when, tmp_path / "program.dlg")
    assert done.returncode == 0, done.stderr
    for result in json.loads(done.stdout.splitlines()[-1]):
        assert_same(torch.tensor(result), model(x), 1e-6)
