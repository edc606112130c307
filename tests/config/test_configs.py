"""Every file under configs/ is loaded and used."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from delegate.config import load_config
from delegate.testing import assert_same
from tests.support.sampling import only

DEVICES = {"preference", "everywhere", "dsp"}  # backends that may be absent here, and one that computes in float16
KEPT = {"fallback", "everywhere", "cuda"}
FILES = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))


class Net(nn.Module):
    """Has the modules that mobile.yaml pins."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.Sigmoid(), nn.Linear(16, 16))
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.nn.functional.gelu(self.features(x)))


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_file(file: Path) -> None:
    assert load_config(file).version == 1


@pytest.mark.parametrize("file", only([f for f in FILES if f.stem != "cuda"], FILES), ids=lambda f: f.stem)
def test_file_lowers_a_model(file: Path) -> None:
    import delegate

    if file.stem == "cuda" and shutil.which("nvcc") is None:
        pytest.skip("no nvcc is here to compile for a GPU")
    torch.manual_seed(0)
    model, x = Net().eval(), torch.randn(3, 8)
    with warnings.catch_warnings():
        if file.stem in DEVICES:  # they ask for a warning where one is absent
            warnings.simplefilter("ignore", RuntimeWarning)
        program = delegate.to_backend(torch.export.export(model, (x,)), config=file)
    assert_same(program(x), model(x), 2e-3 if file.stem in DEVICES else 1e-6)
    used = {n.backend for n in program.report.nodes}
    if file.stem == "portable":
        assert used == {"portable"}
    elif file.stem == "cuda":
        assert used == {"cuda"}
    elif file.stem not in DEVICES:
        assert "xnnpack" in used
    if file.stem == "mobile":
        assert {n.backend for n in program.report.nodes if "gelu" in n.op} == {"portable"}
        assert program.report.partitions[0].nodes
    assert len(program.program.fallbacks) == (len(program.report.partitions) if file.stem in KEPT else 0)
