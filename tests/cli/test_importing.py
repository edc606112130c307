"""`--import`: classes of a model's inputs that have to be registered first."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BOXES = """
import torch, torch.utils._pytree as pytree

class Box:
    def __init__(self, value):
        self.value = value

def register():
    pytree.register_pytree_node(
        Box, lambda b: ([b.value], None), lambda c, _: Box(c[0]), serialized_type_name="boxes.Box",
        flatten_with_keys_fn=lambda b: ([(pytree.GetAttrKey("value"), b.value)], None),
    )

class Net(torch.nn.Module):
    def forward(self, box):
        return Box(torch.relu(box.value))

def save():
    exported = torch.export.export(Net(), (Box(torch.ones(2)),))
    torch.export.save(exported, "box.pt2")
"""
# In a process of its own: what is registered with torch stays so.
COMMANDS = """
import json, sys
from typer.testing import CliRunner
from delegate.cli.app import app

done = [CliRunner().invoke(app, args) for args in json.loads(sys.argv[1])]
print(json.dumps([[d.exit_code, d.stdout, d.stderr] for d in done]))
"""


def python(folder: Path, code: str, *args: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))}
    command = [sys.executable, "-P", "-c", code, *args]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_classes_of_inputs(tmp_path: Path) -> None:
    (tmp_path / "boxes.py").write_text(BOXES)
    python(tmp_path, "import sys; sys.path.insert(0, ''); import boxes; boxes.register(); boxes.save()")
    calls = [
        ["explain", "box.pt2", "-b", "portable"],
        ["explain", "box.pt2", "-b", "portable", "--import", "no_boxes"],
        ["explain", "box.pt2", "-b", "portable", "--import", "boxes:registr"],
        ["explain", "box.pt2", "-b", "portable", "--import", "boxes"],
        ["explain", "box.pt2", "-b", "portable", "--import", "boxes:register"],
        ["lower", "box.pt2", "-b", "portable", "-o", "box.dlg"],
        ["run", "box.dlg", "--import", "boxes"],
        ["run", "box.dlg", "--import", "boxes:Box"],
    ]
    unknown, absent, misspelt, unregistered, explained, lowered, ran, failed = json.loads(
        python(tmp_path, COMMANDS, json.dumps(calls))
    )
    words = "box.pt2 has inputs or results of classes that are not registered: boxes.Box: first import the module "
    words += "that registers"
    for code, _, stderr in (unknown, unregistered):
        assert code == 1
        assert words in stderr
        assert "--import MODULE[:FUNCTION]" in stderr
    assert absent[2] == (
        "error: there is no module 'no_boxes' for --import no_boxes: modules are searched here and in the "
        "installed packages\n"
    )
    assert "module boxes has no function 'registr' (--import boxes:registr): did you mean 'register'?" in misspelt[2]
    assert "1 node portable" in explained[1]
    assert [code for code, _, _ in (explained, lowered, ran)] == [0, 0, 0], (explained, lowered, ran)
    assert "boxes:Box failed: TypeError" in failed[2]
