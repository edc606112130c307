"""The caller's floating-point environment around a backend: rounding, and flush to zero."""

from __future__ import annotations

import json
from pathlib import Path

import torch

import delegate
from tests.support.processes import run

ENVIRONMENTS = ("default", "flush to zero", "upward")

_CHILD = """
import json, platform
from ctypes import CDLL
first, folder, backends = sys.argv[1:]
C = CDLL("libm.so.6")

import numpy as np, torch
UPWARD = {"x86_64": 0x800, "aarch64": 0x400000}[platform.machine()]
SMALL, HALF = np.float32(1e-40), np.float32(0.5)

def enter(name):
    torch.set_flush_denormal(name == "flush to zero")
    C.fesetround(UPWARD if name == "upward" else 0)

def check(stage):
    found = "flush to zero" if SMALL * HALF == 0 else "upward" if C.fegetround() == UPWARD else "default"
    assert found == environment, f"{stage}: {environment} became {found}"

for environment in (first, "flush to zero", "upward", "default"):
    enter(environment)
    import delegate
    check("import")
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval()
    exported = torch.export.export(model, (torch.ones(3, 4),))
    config = {"backends": [{"name": n, "isolate": "none"} for n in json.loads(backends)]}
    compiled = delegate.to_backend(exported, config=config)
    check("compile")
    compiled(torch.ones(3, 4))
    check("call of the compiled program")
    with delegate.load(f"{folder}/program.dlg") as program:
        check("load")
        for rows in (3, 3, 5):
            program(np.ones((rows, 64), np.float32))
            check("call")
        with program.profile(inner=True):
            program(np.ones((3, 64), np.float32))
        check("profile")
    check("close")

# Results follow the environment of each call alone, not that of a load or of an earlier call.
x = np.full((300, 64), 2e-39, np.float32)
FLUSH = "flush to zero"
for at_load, at_first in (("default", FLUSH), (FLUSH, "default"), (FLUSH, FLUSH)):
    enter(at_load)
    with delegate.load(f"{folder}/program.dlg") as program:
        enter(at_first)
        program(x)
        program(x[:200])
        enter("default")
        zeros = [int((program(part) == 0).sum()) for part in (x, x[:200])]
        print(json.dumps(zeros))
"""


def check(backends: list[str], environment: str, folder: Path, *, keeps_subnormal: bool = True) -> None:
    """Assert that a backend keeps the caller's environment at every stage, and does not remember an earlier one.

    Args:
        backends: the only backend's name; an empty list for portable kernels.
        environment: one of `ENVIRONMENTS`, before the backend's library is imported.
        folder: an empty folder.
        keeps_subnormal: False if the library flushes them in any environment.
    """
    layer = torch.nn.Linear(64, 64, bias=False)
    torch.nn.init.eye_(layer.weight)
    shapes = ({0: torch.export.Dim("rows", max=512)},)
    exported = torch.export.export(layer.eval(), (torch.ones(3, 64),), dynamic_shapes=shapes)
    program = delegate.to_backend(exported, backends)
    assert {node.backend for node in program.report.nodes} == set(backends or ["portable"])
    program.save(folder / "program.dlg")
    done = run(_CHILD, environment, folder, json.dumps(backends))
    assert done.returncode == 0, done.stderr
    zeros = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert zeros == [[0, 0] if keeps_subnormal else [300 * 64, 200 * 64]] * 3
