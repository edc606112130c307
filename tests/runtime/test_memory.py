"""Many runs, many shapes and many contexts leave the memory of the process flat."""

from __future__ import annotations

import gc
import multiprocessing
import os
import resource
import tracemalloc
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

import delegate
from delegate.errors import InputError
from delegate.testing import assert_same
from tests.runtime import stranger
from tests.support.lowering import assert_runs, compiled

pytestmark = pytest.mark.usefixtures("with_stranger")


class Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("total", torch.zeros(8))

    def forward(self, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.total.add_(self.layer(a).tanh().sum(0))
        return self.total * 2, a[:, 1:].relu()


def resident() -> int:
    """Bytes of physical memory that this process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
@pytest.mark.parametrize("backend", ["", "xnnpack"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_a_hundred_thousand_runs_leave_memory_flat(backend, dynamic):
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:  # other tests leave memory in pieces
        assert fresh.submit(growth, backend, dynamic).result() < 2 << 20


def growth(backend: str, dynamic: bool) -> int:
    """Return by how many bytes this process grows in the last 80,000 of 100,000 runs."""
    shapes = ({0: Dim("rows", min=1, max=32)},) if dynamic else None
    program = compiled(Step(), (torch.ones(4, 8),), backends=[backend] if backend else [], dynamic_shapes=shapes).loaded
    inputs = [np.ones((rows if dynamic else 4, 8), np.float32) for rows in range(1, 25)]

    def runs(count: int) -> None:
        for i in range(count):
            program(inputs[i // 500 % len(inputs)])  # more shapes than are kept
            if i % 1000 == 0:
                context = program.context()
                context(inputs[0])
                context.restore(context.snapshot())

    runs(20_000)
    gc.collect()
    before = resident()
    runs(80_000)
    gc.collect()
    return resident() - before


def test_sizes_of_tensors_are_checked_before_anything_is_copied():
    module = torch.nn.Linear(8, 8).eval()
    program = delegate.to_backend(torch.export.export(module, (torch.randn(2, 8),)), "xnnpack")
    assert_runs(program, "xnnpack")
    program(torch.zeros(2, 8))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match="has the shape"):
        program(torch.zeros(1, 8).expand(2**24, 8))  # 32 bytes, and 512 MB as a copy
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**17
    x = torch.randn(8, 2).t()
    assert_same(program(x), module(x).detach(), 1e-6)


def test_sizes_are_checked_before_anything_is_copied():
    rows = np.broadcast_to(np.zeros((1, 3), np.float32), (2**24, 3))  # 12 bytes, and 200 MB as a copy
    with delegate.load(stranger.program(dynamic=True)) as program:
        tracemalloc.start()
        try:
            with pytest.raises(InputError, match="rows must be 1 to 8"):
                program(rows, rows)
            assert tracemalloc.get_traced_memory()[1] < 2**20
        finally:
            tracemalloc.stop()
