"""Indices out of range are errors, as in torch, where OpenVINO returns some numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, export

import delegate
from delegate.testing import assert_same
from tests.support.functions import Function

WEIGHT = torch.linspace(-1, 1, 40).reshape(10, 4)
X = torch.linspace(-1, 1, 24).reshape(6, 4)

# Function of a table and indices, indices in range, and indices out of range.
CASES: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], list[list[int]], list[list[int]]]] = {
    "embedding": (lambda x, i: nn.functional.embedding(i, WEIGHT).exp(), [[0, 9]], [[3, 10], [-1, 1], [0, 1 << 32]]),
    "an index": (lambda x, i: WEIGHT[i].exp(), [[0, 9], [-10, -1]], [[3, 10], [-11, 1], [1 << 32, 0]]),
    "an index of an input": (lambda x, i: x.relu()[i].exp(), [[0, 5], [-6, 1]], [[6, 1], [-7, 0]]),
    "the second of two": (lambda x, i: x.relu()[:, i].exp(), [[0, 3], [-4, 1]], [[4, 1], [-5, 0]]),
    "index_select": (lambda x, i: x.relu().index_select(1, i).exp(), [[0, 3]], [[4, 1], [-1, 0]]),
    "gather": (lambda x, i: x.relu().gather(0, i[:, None]).exp(), [[0, 5]], [[6, 1], [-1, 0]]),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", CASES)
def test_an_index(name: str, dynamic: bool, tmp_path: Path) -> None:
    function, good, bad = CASES[name]
    indices = torch.tensor(good[0])
    shapes = (({0: Dim("rows", min=2, max=64)}, {0: Dim("count", min=0, max=64)}),) if dynamic else None
    if dynamic and name == "embedding":
        shapes = ((None, {0: Dim("count", min=0, max=64)}),)
    program = delegate.to_backend(export(Function(function), (X, indices), dynamic_shapes=shapes), ["openvino"])
    assert any("exp" in n.op and n.backend == "openvino" for n in program.report.nodes)
    program.save(tmp_path / "model.dlg")
    for run in (program, delegate.load(tmp_path / "model.dlg")):
        for i in map(torch.tensor, good):
            assert_same(run(X, i), function(X, i), 1e-5)
        for i in map(torch.tensor, bad):
            with pytest.raises(delegate.DelegateError, match="an index is out of range"):
                run(X, i)
