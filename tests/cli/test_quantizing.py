"""`delegate lower` of a model that the configuration has quantized first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import delegate
from tests.support import zoo
from tests.support.commands import call
from tests.support.quantized import sqnr

pytest.importorskip("torchao", reason="torchao quantizes the models of these tests")

MODELS = """
import torch
from torch import nn

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).eval(), (torch.ones(2, 64),)

def data():
    torch.manual_seed(1)
    for _ in range(3):
        yield torch.randn(2, 64)

def nothing():
    return []
"""
CONFIG = """
version: 1
backends: [xnnpack]
quantization:
  scheme: static_int8
  module_types: {ReLU: off}
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "quantized_models", raising=False)
    Path("quantized_models.py").write_text(MODELS)
    Path("c.yaml").write_text(CONFIG)
    Path("data").mkdir()
    for i in range(3):
        np.savez(f"data/{i}.npz", np.random.default_rng(i).standard_normal((2, 64)).astype(np.float32))
    with zoo.libraries():
        yield


# In dB, 4 to 7 less than is measured: ranges of few samples cut what is beyond them.
@pytest.mark.parametrize(("data", "least"), [("data", 10), ("data/0.npz", 6), ("quantized_models:data", 30)])
def test_the_whole_flow(data: str, least: int) -> None:
    stdout, _ = call("lower", "quantized_models:net", "-c", "c.yaml", "--calibration", data, "-o", "net.dlg")
    assert "1 partition on xnnpack, 100% of the operations" in stdout
    call("lower", "quantized_models:net", "-b", "xnnpack", "-o", "floats.dlg")
    x = np.random.default_rng(9).standard_normal((2, 64)).astype(np.float32)
    with delegate.load("net.dlg") as program, delegate.load("floats.dlg") as floats:
        expected, got = floats(x), program(x)
    assert least < sqnr(torch.from_numpy(expected), torch.from_numpy(got)) < least + 15


def test_the_same_by_to_backend() -> None:
    exported = torch.export.export(torch.nn.Linear(64, 8).eval(), (torch.ones(2, 64),))
    section = {"scheme": "static_int8", "calibration": "data"}
    report = delegate.to_backend(exported, config={"backends": ["xnnpack"], "quantization": section}).report
    assert any("quantize_per_tensor" in node.op for node in report.nodes)


WRONG = {
    "nothing to quantize": ((), "models that are quantized"),
    "no data": (("-c", "c.yaml", "--calibration", "quantized_models:nothing"), "no calibration data"),
    "no file": (("-c", "c.yaml", "--calibration", "nowhere"), "there is no file 'nowhere'"),
    "no function": (("-c", "c.yaml", "--calibration", "quantized_models:dat"), "did you mean 'data'"),
    "no module": (("-c", "c.yaml", "--calibration", "nowhere:data"), "nowhere"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong(name: str) -> None:
    flags, words = WRONG[name]
    given = flags or ("-b", "xnnpack", "--calibration", "data")
    _, stderr = call("lower", "quantized_models:net", *given, "-o", "net.dlg", code=1)
    assert words in stderr
    assert not Path("net.dlg").exists()
