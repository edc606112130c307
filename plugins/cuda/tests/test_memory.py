"""Tensors between partitions of the backend cuda stay in TVM's memory: on the host's CPU here, where no GPU is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from delegate.runtime.loaded import LoadedProgram
from tests.support.lowering import compiled, relative_error

pytest.importorskip("tvm_ffi", reason="TVM is not installed: pip install delegate-cuda")


class Residual(nn.Module):
    """`kept` passes by a node that is pinned to kernels, which may take it too."""

    def __init__(self, shared: bool) -> None:
        super().__init__()
        self.shared = shared
        self.first, self.pinned, self.last = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = self.first(x)
        return self.last(self.pinned(kept if self.shared else torch.relu(kept)) + kept)


PINNED = {"aten.linear.default": 1}


class TwoReaders(nn.Module):
    """Two partitions, with a node between them that is pinned to kernels, take the input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.pinned, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.pinned(self.first(x)) + x)


def test_an_input_of_two_partitions_is_copied_in_once():
    torch.manual_seed(0)
    module, rows = TwoReaders().eval(), torch.export.Dim("rows", max=8)
    backend = {"name": "cuda", "options": {"arch": "llvm"}}
    config = {"backends": [backend], "partitioning": {"pins": {"pinned*": "portable"}}}
    program = compiled(module, (torch.ones(5, 6),), config=config, dynamic_shapes=({0: rows},), portable=PINNED)
    size = 5 * 6 * 4
    assert [p.copied_in for p in program.report.partitions] == [size, size]
    with LoadedProgram(program.program, trust_code=True) as loaded:
        for n in (5, 8, 2):
            x = torch.randn(n, 6)
            assert relative_error(loaded(x.numpy()), module(x)) < 1e-5


@pytest.mark.parametrize("shared", [False, True])
def test_a_residual_stays_with_tvm(shared):
    torch.manual_seed(0)
    module, rows = Residual(shared).eval(), torch.export.Dim("rows", max=8)
    options = {"arch": "llvm"}
    config = {
        "backends": [{"name": "cuda", "options": options}],
        "partitioning": {"pins": {"pinned*": "portable"}},
        "fallback": {"keep": True, "policy": "allow"},
    }
    program = compiled(module, (torch.ones(5, 6),), config=config, dynamic_shapes=({0: rows},), portable=PINNED)
    first, last = program.report.partitions
    size = 5 * 16 * 4
    assert (first.copied_in, first.copied_out, last.copied_in) == (5 * 6 * 4, size, size)
    assert first.stays == last.stays != ()
    assert program.program.methods[0].arenas[1] == 8 * 16 * 4
    with LoadedProgram(program.program, trust_code=True) as loaded:
        for n in (5, 8, 2):
            x = torch.randn(n, 6)
            assert relative_error(loaded(x.numpy()), module(x)) < 1e-5
        assert loaded.fallback_events == ()
        loaded._shared.delegates[1]._delegate.execute = loaded._shared.delegates[1]._own = None
        loaded._shared.delegates[1]._execute = None  # the second partition is gone: it reads what the first gave
        assert relative_error(loaded(np.ones((5, 6), np.float32)), module(torch.ones(5, 6))) < 1e-5
        assert [e.partition for e in loaded.fallback_events] == [last.name]
