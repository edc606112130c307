"""Memory over many runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

import delegate
from tests.support import processes

RUNS = """
import sys
from pathlib import Path

import numpy as np
from delegate.runtime.loaded import load

program = load(sys.argv[1])
inputs = [np.ones((n, 16), np.float32) for n in (3, 4)]

def run(times):
    for _ in range(times // 2):
        for x in inputs:
            program(x)
    return int(Path("/proc/self/statm").read_text().split()[1])  # resident pages

print(-run(2000) + run(100_000))
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read as on Linux")
@pytest.mark.slow
def test_many_runs_leave_memory_flat(tmp_path):
    """Inputs of two shapes, results of 200 bytes: 100,000 of either that were kept would take 20 MB."""

    class Small(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(16, 16)

        def forward(self, x):
            return F.silu(self.layer(x)).transpose(0, 1) + 1

    exported = torch.export.export(Small(), (torch.ones(3, 16),), dynamic_shapes=({0: Dim("n", min=2, max=8)},))
    delegate.to_backend(exported, []).save(tmp_path / "model.dlg")
    done = processes.run(RUNS, tmp_path / "model.dlg", absent=processes.AHEAD_OF_TIME)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) * os.sysconf("SC_PAGE_SIZE") < 2**20
