"""No command and no backend contacts a network, or leaves files in the home of its user, outside of CI too."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import typer

from delegate.cli.app import app
from delegate.plugins import COMMANDS, discover
from tests.support.network_audit import Audited, audit, unsupported

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(unsupported()), reason=unsupported())]

MODEL = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = torch.nn.Conv2d(3, 4, 3), torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.head(torch.relu(self.conv(x)).mean((2, 3)))

def net():
    return Net().eval(), (torch.randn(1, 3, 8, 8),)
"""
LANGUAGE_MODEL = {
    "model_type": "llama", "vocab_size": 50, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 32,
}  # fmt: skip
LOWERED = "lower nets:net -b xnnpack --no-cache -o net.dlg"
BUNDLED = "lower nets:net -b xnnpack --measure --bundle net.bundle"
EXPORTED = "llm export llama.json -o llama.dlg --context 32 --chunk 8 --weights float32 --no-tokenizer"
# A command -> the commands to audit, each after its first ones.
LINES = {
    "backends": ["backends --refresh"],
    "lower": [
        "lower nets:net -o all.dlg",
        "lower nets:net --measure -b xnnpack -b openvino -b onnxruntime --lock net.lock -o measured.dlg",
    ],
    "explain": ["explain nets:net"],
    "run": [LOWERED, "run net.dlg --profile --inner --trace t.json"],
    "inspect": [LOWERED, "inspect net.dlg"],
    "report": ["report nets:net -o net.html"],
    "export-graph": [LOWERED, "export-graph net.dlg -o net.onnx"],
    "diff": [LOWERED, "diff net.dlg net.dlg"],
    "debug": ["debug nets:net"],
    "strip": [LOWERED, "strip net.dlg -o stripped.dlg"],
    "ops": ["ops aten.linear"],
    "calibrate": ["calibrate xnnpack -o machine.json"],
    "measure": [BUNDLED, "measure net.bundle"],
    "new-backend": ["new-backend acme --output acme"],
    "check-backend": ["check-backend onnxruntime --quick", "check-backend openvino --quick"],
    "demo": ["demo"],
    "llm": [EXPORTED, "llm run llama.dlg --numbers -p 5,17,3 --count 4"],
    "config": ["config schema"],
    "lock": ["lower nets:net --measure -b xnnpack --lock net.lock -o net.dlg", "lock check net.lock nets:net"],
    "cache": ["cache info"],
    "batch": [LOWERED, "batch net.dlg -i rows.npy -o rows"],
    "lower-many": ["lower-many jobs.yaml -o many"],
    "serve": [LOWERED, "serve net.dlg --port 0"],
}
SCRIPT = """
import sys, delegate, nets, torch
model, inputs = nets.net()
exported = torch.export.export(model, inputs)
name = sys.argv[1]
program = delegate.to_backend(exported, name)
program(*inputs)
program.save("net.dlg")
for isolate in (False, True):
    with delegate.load("net.dlg", trust_code=True, isolate=isolate) as loaded:
        loaded(inputs[0].numpy())
torch.compile(model, backend="delegate", options={"backends": [name]})(*inputs)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "nets.py").write_text(MODEL)
    (tmp_path / "llama.json").write_text(json.dumps(LANGUAGE_MODEL))
    (tmp_path / "jobs.yaml").write_text("{models: {net: nets:net}, configurations: {all: {}}}")
    np.save(tmp_path / "rows.npy", np.zeros((3, 3, 8, 8), np.float32))
    return tmp_path


def _audit(folder: Path, *command: str) -> Audited:
    path = os.pathsep.join((str(folder), os.environ.get("PYTHONPATH", "")))
    paths = {"PYTHONPATH": path, "DELEGATE_CACHE": str(folder / "cache")}
    result = audit([sys.executable, *command], folder, DELEGATE_BLOCK_PLUGINS="", **paths)
    assert (result.attempts, result.files) == ((), ()), command
    return result


def test_every_command_is_here():
    assert {*typer.main.get_command(app).commands, *discover(COMMANDS).claims} - {*LINES} == set()  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", LINES)
def test_no_command_contacts_a_network(name, folder):
    if name not in {*typer.main.get_command(app).commands, *discover(COMMANDS).claims}:  # type: ignore[attr-defined]
        pytest.skip(f"no package with the command {name} is installed")
    for line in LINES[name]:
        stop = ["-c", STOP] if name == "serve" and line.startswith("serve") else ["-m", "delegate"]
        result = _audit(folder, *stop, *line.split())
        assert result.code == 0, result.output


STOP = """
import os, signal, sys, threading
from delegate.cli.main import main
threading.Timer(5, os.kill, (os.getpid(), signal.SIGTERM)).start()
main()
"""


def test_no_backend_contacts_a_network(folder):
    listed = _audit(folder, "-m", "delegate", "backends", "--json")
    names = [b["name"] for b in json.loads(listed.output)["backends"] if b["state"] == "ok" and not b["stands_for"]]
    assert names
    for name in names:
        result = _audit(folder, "-c", SCRIPT, name)
        assert result.code == 0, result.output
