"""`delegate lower`, and `explain` of a model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import delegate
from delegate.testing import assert_same
from tests.support.commands import call

MODELS = """
import torch
from torch import nn

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 4), nn.ReLU()), (torch.ones(2, 8),)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with the same model as a function and as a file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "lower_models", raising=False)
    (tmp_path / "lower_models.py").write_text(MODELS)
    torch.export.save(torch.export.export(reference(), (torch.ones(2, 8),)), tmp_path / "net.pt2")
    return tmp_path


def reference() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 4), nn.ReLU()).eval()


@pytest.mark.parametrize("model", ["lower_models:net", "net.pt2"])
@pytest.mark.parametrize("flags", [("-b", "xnnpack"), ("-c", "c.yaml"), ()], ids=["name", "config", "neither"])
def test_lower(folder: Path, model: str, flags: tuple[str, ...]) -> None:
    Path("c.yaml").write_text("version: 1\nbackends: [xnnpack]\n")
    stdout, _ = call("lower", model, *flags, "-o", "net.dlg")
    if flags:  # without, the estimates may prefer kernels for so small a model
        assert "1 partition on xnnpack, 100% of the operations" in stdout
    assert f"saved net.dlg, {Path('net.dlg').stat().st_size:,} bytes" in stdout


def test_profile(folder: Path) -> None:
    call("lower", "net.pt2", "-b", "xnnpack", "-o", "net.dlg")
    (timing,) = json.loads(call("run", "net.dlg", "--profile", "--inner", "--json")[0])["profile"]
    assert [o["what"] for o in timing["operators"]] == ["Fully Connected (NC, F32) GEMM"]
    assert "Fully Connected" in call("run", "net.dlg", "--profile", "--inner")[0]
    x = torch.randn(2, 8)
    with delegate.load("net.dlg") as program:
        assert_same(program(x.numpy()), reference()(x))


@pytest.mark.usefixtures("folder")
def test_json() -> None:
    lowered = json.loads(call("lower", "net.pt2", "-b", "xnnpack", "-o", "net.dlg", "--json")[0])
    assert [p["backend"] for p in lowered["partitions"]] == ["xnnpack"]
    planned = json.loads(call("explain", "net.pt2", "-b", "xnnpack", "--json")[0])
    assert [n["backend"] for n in planned["nodes"]] == [n["backend"] for n in lowered["nodes"]]
    assert "xnnpack_0" in call("explain", "net.dlg")[0]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("model", ["lower_models:net", "net.pt2"])
def test_verify(model: str) -> None:
    x = np.random.default_rng(0).standard_normal((2, 8)).astype(np.float32)
    np.savez("x.npz", x)
    np.save("x.npy", x)
    for file in ("x.npz", "x.npy", "input=x.npy"):
        stdout = call("lower", model, "-b", "xnnpack", "-o", "net.dlg", "--verify", file)[0]
        assert "forward against the float reference: " in stdout
        assert "\n  xnnpack_0: " in stdout
        assert "top-1 100%" in stdout
        assert "verified" not in stdout
        assert "evidence" not in stdout
    data = json.loads(call("lower", model, "-b", "xnnpack", "-o", "net.dlg", "--verify", "x.npz", "--json")[0])
    assert data["partitions"][0]["accuracy"] == data["accuracy"][0]["figures"]
    assert "  xnnpack_0: " in call("explain", "net.dlg")[0]
    Path("c.yaml").write_text("backends: [xnnpack]\nverify: {sqnr_db: 400}\n")
    Path("bounds.yaml").write_text("backends: [xnnpack]\nverify: {sqnr_db: 40}\n")
    for options, words in ((("-b", "xnnpack"), "not verified: "), (("-c", "bounds.yaml"), "forward: weak evidence, ")):
        assert f"\n{words}" in call("lower", model, *options, "-o", "net.dlg")[0]
        assert f"\n{words}" in call("explain", "net.dlg")[0]
    assert "\nnot verified: " in call("explain", model, "-b", "xnnpack")[0]
    Path("net.dlg").unlink()
    stderr = call("lower", model, "-c", "c.yaml", "-o", "net.dlg", "--verify", "x.npz", code=1)[1]
    assert ", but 400 dB or more is required" in stderr
    assert not Path("net.dlg").exists()


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("net.pt2", "-b", "xnnpak"), "error: no backend is named 'xnnpak': did you mean 'xnnpack'?"),
        (("net.pt2", "-c", "absent.yaml"), "error: there is no configuration file 'absent.yaml'"),
        (("net.pt2", "-b", "xnnpack", "-c", "both.yaml"), "error: backends are named twice"),
        (("absent.pt2",), "error: 'absent.pt2' does not exist"),
        (("lower_models:nett",), "module lower_models has no function 'nett'"),
        (("broken.pt2",), "error: torch cannot read broken.pt2"),
        (("net.pt2", "--verify", "absent.npz"), "error: there is no file 'absent.npz'"),
        (("net.pt2", "--verify", "y=net.pt2"), "error: method forward has no input 'y'"),
    ],
)
def test_errors(args: tuple[str, ...], message: str) -> None:
    Path("both.yaml").write_text("backends: [xnnpack]")
    content = bytearray(Path("net.pt2").read_bytes())
    content[len(content) // 4 : len(content) // 2] = bytes(len(content) // 2 - len(content) // 4)
    Path("broken.pt2").write_bytes(content)
    stdout, stderr = call("lower", *args, *([] if "-o" in args else ["-o", "net.dlg"]), code=1)
    assert stdout == ""
    assert message in stderr
    assert stderr.count("\n") == 1
    assert not Path("net.dlg").exists()


@pytest.mark.parametrize(("policy", "noted"), [("preference", False), ("estimated", True)])
def test_a_lock_keeps_the_configured_policy(folder: Path, policy: str, noted: bool):
    (folder / "policy.yaml").write_text(f"backends: [xnnpack]\nplacement: {{policy: {policy}}}\n")
    call("lower", "net.pt2", "-c", "policy.yaml", "-o", "a.dlg", "--lock", "a.lock")
    assert (folder / "a.lock").exists()
    assert ("placed by estimates" in call("explain", "a.dlg")[0]) is noted


def test_lock(folder: Path):
    """Written, kept, checked and compared; a lock of another model is one line on stderr."""
    call("lower", "net.pt2", "-b", "xnnpack", "-o", "a.dlg", "--lock", "a.lock")
    call("lower", "net.pt2", "-b", "xnnpack", "-o", "b.dlg", "--locked", "a.lock", "--lock", "b.lock")
    assert (folder / "a.lock").read_text() == (folder / "b.lock").read_text()
    assert call("lock", "diff", "a.lock", "b.lock") == ("", "")
    assert call("lock", "check", "a.lock", "lower_models:net", "-b", "xnnpack")[0] == "a.lock can be applied\n"
    (folder / "lower_models.py").write_text(MODELS.replace("nn.ReLU", "nn.Sigmoid"))
    del __import__("sys").modules["lower_models"]
    said = call("lock", "check", "a.lock", "lower_models:net", "-b", "xnnpack", code=1)[1]
    assert "the lock is of another model: method 'forward' differs" in said
    (folder / "b.lock").write_text((folder / "a.lock").read_text().replace("backend: xnnpack", "backend: acme"))
    assert "forward: 0:aten.linear.default#0: xnnpack -> acme" in call("lock", "diff", "a.lock", "b.lock")[0]
