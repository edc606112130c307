"""Debugging of a saved program: its placement and its artifacts, in place of a new lowering."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from delegate_devtools import debug
from torch import nn

import delegate
from delegate.errors import ConfigError, InputError, ProgramError
from delegate.program import file
from delegate.program.instructions import strip_debug_info
from tests.support.planting import aten, in_place_of, planted

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """A layer, and partitions in two branches that have nodes of one name."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x).relu()
        z: torch.Tensor = torch.cond(y.sum() > 0, lambda y: torch.tanh(y) * 2, lambda y: torch.tanh(y) - 1, (y,))
        return torch.nn.functional.gelu(z) + torch.sigmoid(x)


def export_model(net: nn.Module | None = None) -> torch.export.ExportedProgram:
    with torch.no_grad():
        return torch.export.export((net or Net()).eval(), (X,))


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    """A program whose gelu stays portable, and whose artifact of sigmoid is another function's."""
    config = {"backends": ["xnnpack"], "partitioning": {"node_pins": {"gelu": "portable"}}}
    with planted("xnnpack", "sigmoid", in_place_of(aten.tanh.default)):
        program = delegate.to_backend(export_model(), config=config, cache=False)
    program.save(tmp_path / "net.dlg")
    return tmp_path / "net.dlg"


@pytest.mark.parametrize("is_wrong_again", [True, False])
def test_the_artifacts_of_the_file_are_debugged(model_file: Path, is_wrong_again: bool) -> None:
    again = planted("xnnpack", "sigmoid", in_place_of(aten.tanh.default)) if is_wrong_again else nullcontext()
    with again:
        diagnosis = debug(export_model(), program_file=model_file, cache=False)
    (fault,) = diagnosis.faults
    if is_wrong_again:
        assert [node.name for node in fault.nodes] == ["sigmoid"]
    assert "sigmoid" in {node.name for node in fault.nodes}
    assert ("only the artifact of the file is wrong" in str(diagnosis)) == (not is_wrong_again)
    assert any(row.place.startswith("aten.gelu.default") for row in diagnosis.errors)  # as placed in the file


def test_a_file_that_cannot_be_debugged(model_file: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the file is not of this model: partition .* has other nodes"):
        debug(export_model(nn.Sequential(nn.Linear(8, 8), nn.Tanh())), program_file=model_file)
    other = Net()
    nn.init.ones_(other.linear.bias)
    with pytest.raises(InputError, match=r"not of this model: weight linear.bias of method forward differs"):
        debug(export_model(other), program_file=model_file)
    with pytest.raises(ConfigError, match="placement of its own"):
        debug(export_model(), program_file=model_file, placement=delegate.ByPreference())
    file.save(strip_debug_info(file.load(model_file)), tmp_path / "small.dlg")
    with pytest.raises(ProgramError, match=r"no debug info \(.*small.dlg\)"):
        debug(export_model(), program_file=tmp_path / "small.dlg")
