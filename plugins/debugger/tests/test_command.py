"""`delegate debug`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from delegate.cli.app import app

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
CONFIG = "backends: [xnnpack]\nquantization: {scheme: static_int8, calibration: x.npz}\n"


def call(*args: str, code: int = 0) -> str:
    """Run a command, and return what it prints, or its error."""
    done = CliRunner().invoke(app, args)
    assert done.exit_code == code, done.output
    return done.stderr if code else done.stdout


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("net", "other")):
        torch.manual_seed(seed)
        net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()).eval()
        torch.export.save(torch.export.export(net, (X,)), f"{name}.pt2")
    np.savez("x.npz", input=X.numpy())
    Path("int8.yaml").write_text(CONFIG)
    Path("file").touch()


def test_a_model() -> None:
    assert "no operator is wrong" in call("debug", "net.pt2", "-b", "xnnpack", "--inputs", "x.npz")
    assert call("debug", "net.pt2", "-b", "xnnpack", "--nan") == "no result has NaN or infinity\n"
    assert json.loads(call("debug", "net.pt2", "-b", "xnnpack", "--json"))["faults"] == []


@pytest.mark.parametrize("options", [("-b", "xnnpack"), ("-c", "int8.yaml")])
def test_a_saved_program(options: tuple[str, str]) -> None:
    call("lower", "net.pt2", *options, "-o", "net.dlg")
    printed = call("debug", "net.pt2", "--from", "net.dlg", *(options if options[0] == "-c" else ()))
    assert ("against the quantized reference" in printed) == (options[0] == "-c")
    if options[0] == "-b":
        assert "no operator is wrong" in printed
        error = call("debug", "other.pt2", "--from", "net.dlg", code=1)
        assert "weights 0.weight, 0.bias of method forward differ (net.dlg): give the model with the weights" in error


WRONG = {
    "debug": (2, "MODEL is missing"),
    "debug absent.pt2": (1, "absent.pt2"),
    "debug file": (1, "file"),
    "debug net.pt2 --inputs y=x.npy": (1, "no input 'y'"),
    "debug net.pt2 -o file/below": (1, "cannot be written"),
    "debug --from net.dlg": (1, "no module to compare them with (net.dlg): give the model too: `delegate debug MODEL"),
}


@pytest.mark.parametrize("line", WRONG)
def test_what_is_wrong_is_said(line: str) -> None:
    code, words = WRONG[line]
    assert words in " ".join(call(*line.split(), code=code).split())
