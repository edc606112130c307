"""With `--json`, stdout holds nothing but JSON, whatever a plugin prints, from Python and from C, at every stage."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer

import delegate
from delegate.cli.app import _COMMANDS, _PACKAGES, app
from delegate.plugins import BLOCK_VARIABLE, COMMANDS
from tests.support.plugins import Site, installed

SAY = """
import atexit, ctypes, logging, os, sys

def say(stage):
    print(f"chatter of Python at {stage}")
    sys.stdout.write(f"chatter of sys.stdout at {stage}\\n")
    os.write(1, f"chatter of descriptor 1 at {stage}\\n".encode())
    ctypes.CDLL(None).printf(b"chatter of C at %s\\n", stage.encode())
    os.system(f"echo chatter of a child at {stage}")

say("import of the library")
atexit.register(say, "the end")
"""
STAGES = {
    "def probe():\n": "probe",
    "    def init(self, blob, compile_specs):\n": "init",
    "    def execute(self, inputs, outputs):\n": "execute",
    "        def check(self, node):\n": "check",
    "        def preprocess(self, region):\n": "preprocess",
}


def talkative(site: Site) -> None:
    """Install the backend `adder`, which prints at every stage."""
    site.module("adder_library", SAY)
    site.backend("adder")
    for module in site.root.glob("adder_[ph]*.py"):
        text = f"from adder_library import say\nsay('import of {module.stem}')\n{module.read_text()}"
        for head, stage in STAGES.items():
            indent = " " * (len(head) - len(head.lstrip()) + 4)
            text = text.replace(head, f"{head}{indent}say({stage!r})\n")
        module.write_text(text)


class Sum(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.relu(a + b)


TELL = """
from adder_library import say
from typing import Annotated
import typer
from delegate.cli import output

say("import of a command")

def tell(as_json: Annotated[bool, typer.Option("--json")] = False) -> None:
    "Tell a number."
    say("a command")
    output.print_json({"number": 17}) if as_json else print("seventeen")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the backend, a command, a model, its program on the backend, inputs, and a bundle."""
    folder = tmp_path_factory.mktemp("json")
    (folder / "site").mkdir()
    args = torch.arange(6.0).reshape(2, 3), torch.ones(2, 3)
    exported = torch.export.export(Sum(), args)
    torch.export.save(exported, folder / "net.pt2")
    np.savez(folder / "inputs.npz", a=args[0], b=args[1])
    with installed(folder / "site") as site:
        talkative(site)
        site.module("teller", TELL)
        site.distribution("teller", "1.0", {"tell": "teller:tell"}, COMMANDS)
        delegate.to_backend(exported, "adder").save(folder / "net.dlg")
        yield folder


def run(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(folder / "site"), *sys.path))}
    environment.pop(BLOCK_VARIABLE, None)
    return subprocess.run(
        [sys.executable, "-m", "delegate", *args],
        capture_output=True, text=True, env=environment, cwd=folder, check=False, timeout=300,
    )  # fmt: skip


NET = ["net.pt2", "-b", "adder"]
# Command -> its arguments, and a stage of the backend that it reaches in its own process.
CALLS: dict[str, tuple[list[str], str]] = {
    "run": (["net.dlg"], "execute"),
    "inspect": (["net.dlg"], ""),
    "explain": (NET, "check"),
    "lower": ([*NET, "-o", "lowered.dlg", "--verify", "inputs.npz", "--no-cache"], "preprocess"),
    "backends": ([], ""),
    "check-backend": (["adder", "-k", "schema or (eager and add)"], "execute"),
    "cache info": ([], ""),
    "tell": ([], "a command"),
    "config schema": ([], ""),
}
ALWAYS_JSON = {"config schema"}  # without the option
QUICK = {"run", "inspect", "backends", "cache info", "tell"}


def check(done: subprocess.CompletedProcess[str], stage: str) -> None:
    assert done.returncode in (0, 1), done.stderr
    json.loads(done.stdout)
    assert "chatter" not in done.stdout
    for speaker in ("Python", "sys.stdout", "descriptor 1", "C", "a child") if stage else ():
        assert f"chatter of {speaker} at {stage}\n" in done.stderr


@pytest.mark.parametrize(
    "command", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CALLS]
)
def test_commands_with_json(command: str, folder: Path) -> None:
    args, stage = CALLS[command]
    check(run(folder, *command.split(), *args, *([] if command in ALWAYS_JSON else ["--json"])), stage)


def test_results_are_alone_without_json_too(folder: Path) -> None:
    done = run(folder, "run", "net.dlg")
    assert done.stdout.startswith("ran forward ") or "chatter" not in done.stdout, done.stdout
    assert "chatter of Python at execute" in done.stderr
    done = run(folder, "--help")
    assert "Tell a number." in done.stdout
    assert "chatter" not in done.stdout
    assert run(folder, "tell").stdout.endswith("seventeen\n"), "another package's command may print by `print`"


def test_every_command_with_json_is_here() -> None:
    group: Any = typer.main.get_command(app)
    commands: dict[str, Any] = {}
    for name in _COMMANDS:
        command = group.get_command(None, name)
        inner = getattr(command, "commands", None)
        commands |= {name: command} if inner is None else {f"{name} {n}": c for n, c in inner.items()}
    with_json = {name for name, c in commands.items() if any("--json" in p.opts for p in c.params)}
    assert with_json == CALLS.keys() - ALWAYS_JSON - {"tell"} - _PACKAGES.keys()  # commands of other packages


def test_only_one_module_prints_results() -> None:
    """`print` leads to stderr while a command runs; so a command that used it would have no results."""
    for path in (Path(delegate.__file__).parent / "cli").rglob("*.py"):
        if path.name == "output.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                files = [ast.unparse(k.value) for k in node.keywords if k.arg == "file"]
                assert files == ["sys.stderr"], f"{path}:{node.lineno}: use output.print_line"
