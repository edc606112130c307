"""A GPU that is lost while programs use it, and comes back: a layer of Vulkan takes it away (`lost_device.c`)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from delegate_onnxruntime.webgpu import device
from torch import nn

from tests.support.availability import require
from tests.support.device_models import PINNED, Residual
from tests.support.lowering import compiled, relative_error

# Runs two programs of one file while the GPU is there, twice without it, and when it is there again. A line of JSON per
# run: the result, or the error's class and message.
_CHILD = """
import json, os, pathlib, sys, warnings
import numpy as np
import delegate, delegate.errors
warnings.simplefilter("ignore")
path, switch = sys.argv[1], pathlib.Path(os.environ["LOST_DEVICE"])
x = np.load(sys.argv[2])
programs = [delegate.load(path), delegate.load(path)]
for phase in sys.argv[3:]:
    switch.touch() if "lost" in phase else switch.unlink(missing_ok=True)
    for number, program in enumerate(programs):
        try:
            made = program(x).tolist()
        except delegate.errors.DelegateError as error:
            made = f"{type(error).__name__}: {error}"
        events = [str(e) for e in program.fallback_events]
        print(json.dumps({"phase": phase, "made": made, "events": events}), flush=True)
for program in programs:
    program.close()
"""

PHASES = ("there", "lost", "still lost", "back", "back")

MODULES = pytest.mark.parametrize(
    "module",
    [pytest.param(nn.Conv2d(3, 4, 3), marks=pytest.mark.slow), Residual(shared=True)],
    ids=["one partition", "two, and a tensor that stays on the device"],
)


@pytest.fixture(scope="session")
def layer(tmp_path_factory) -> Path:
    """The folder of the layer."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs Linux and a C compiler named cc, for a layer of Vulkan")
    folder = tmp_path_factory.mktemp("layer")
    source = Path(__file__).with_name("lost_device.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "liblost_device.so", source], check=True)
    about = {"name": "VK_LAYER_TEST_lost_device", "type": "GLOBAL", "library_path": "./liblost_device.so"}
    about |= {"api_version": "1.3.0", "implementation_version": "1", "description": "takes the device away"}
    (folder / "lost_device.json").write_text(json.dumps({"file_format_version": "1.1.0", "layer": about}))
    return folder


def lost_and_back(module: nn.Module, layer: Path, folder: Path, keep: bool) -> list[dict[str, Any]]:
    """What two programs of a module say, with the error of each result to eager in place of the result."""
    require("webgpu")
    if device.adapter(device.provider()) is None:
        pytest.skip("the GPU here is not Vulkan's")
    config: dict[str, Any] = {"backends": ["webgpu"], "partitioning": {"pins": {"pinned*": "portable"}}}
    config["fallback"] = {"keep": True, "policy": "allow"} if keep else {}
    x = torch.randn(1, 3, 16, 16)
    portable = PINNED if isinstance(module, Residual) else None
    compiled(module, (x,), config=config, portable=portable).save(folder / "net.dlg")
    np.save(folder / "x.npy", x.numpy())
    environment = os.environ | {
        "VK_LAYER_PATH": str(layer),
        "VK_INSTANCE_LAYERS": "VK_LAYER_TEST_lost_device",
        "LOST_DEVICE": str(folder / "lost"),
    }
    command = [sys.executable, "-c", _CHILD, str(folder / "net.dlg"), str(folder / "x.npy"), *PHASES]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=240)
    assert ran.returncode == 0, ran.stderr[-2000:]
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    assert [line["phase"] for line in lines] == [phase for phase in PHASES for _ in range(2)]
    expected = module(x).detach().numpy()
    for line in lines:
        if not isinstance(line["made"], str):
            line["made"] = relative_error(np.array(line["made"], np.float32), expected)
    return lines


@pytest.mark.slow
@MODULES
def test_without_fallback_an_error_and_right_again_when_it_is_back(module, layer, tmp_path):
    torch.manual_seed(0)
    for line in lost_and_back(module.eval(), layer, tmp_path, keep=False):
        if "lost" in line["phase"]:
            assert line["made"].startswith(("BackendFailed", "DeviceLost"))
            assert "partition webgpu_" in line["made"]
        else:
            assert line["made"] < 1e-5


@MODULES
def test_with_fallback_always_right(module, layer, tmp_path):
    torch.manual_seed(0)
    partitions = 1 if isinstance(module, nn.Conv2d) else 2
    for line in lost_and_back(module.eval(), layer, tmp_path, keep=True):
        assert line["made"] < 1e-5
        assert len(line["events"]) == (0 if line["phase"] == "there" else partitions)
