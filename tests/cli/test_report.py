"""`delegate report`: a page of a program, of a model, or of two side by side."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

from delegate.program.file import load, save
from delegate.program.instructions import strip_debug_info
from tests.cli.programs import save_sum
from tests.support.commands import call
from tests.support.reports import data_of


def reports_of(path: Path) -> list[dict]:
    """Return the data of a page."""
    return data_of(path.read_text())["reports"]


def test_a_file_without_debug_info_is_a_clear_error(tmp_path):
    save(strip_debug_info(load(save_sum(tmp_path / "sum.dlg"))), tmp_path / "small.dlg")
    error = call("report", str(tmp_path / "small.dlg"), "-o", str(tmp_path / "x.html"), code=1)[1]
    assert f"the program has no debug info ({tmp_path / 'small.dlg'}): lower the model again, or use the file" in error
    assert "before `delegate strip`" in error
    assert not (tmp_path / "x.html").exists()


def test_the_command_needs_no_torch(tmp_path):
    save_sum(tmp_path / "sum.dlg")
    script = "import sys; sys.modules['torch'] = None; import delegate.cli.main as m; m.main()"
    command = [sys.executable, "-c", script, "report", "sum.dlg", "sum.dlg", "-o", "x.html"]
    subprocess.run(command, cwd=tmp_path, check=True, env={**os.environ, "PYTHONPATH": str(Path.cwd())})
    reports = reports_of(tmp_path / "x.html")
    assert [r["name"] for r in reports] == ["sum.dlg", "sum.dlg"]
    assert reports[0]["methods"][0]["memory"]["delegates"] == [["adder_0", "adder", 3, 0, 0]]


def test_a_model_a_lowered_one_and_measured_times(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = nn.Sequential(nn.Linear(8, 4), nn.ReLU()).eval()
    torch.export.save(torch.export.export(model, (torch.ones(2, 8),)), "net.pt2")
    call("lower", "net.pt2", "-b", "xnnpack", "-o", "net.dlg")
    out, _ = call("report", "net.pt2", "net.dlg", "-b", "xnnpack", "--repeat", "3", "-o", "net.html")
    planned, lowered = (report["methods"][0] for report in reports_of(tmp_path / "net.html"))
    assert out == f"saved net.html, {(tmp_path / 'net.html').stat().st_size:,} bytes\n"
    assert planned["nodes"][0][-2] == lowered["nodes"][0][-2] == ["input input", "constant 0.weight", "constant 0.bias"]
    assert lowered["nodes"][1][-2] == [lowered["nodes"][0][0]]
    assert lowered["nodes"][0][-3] == 32  # bytes of float32[2, 4]
    assert planned["memory"] is None
    assert [t["count"] for t in lowered["timings"]] == [3]
