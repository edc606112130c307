"""Output on terminals of several widths: nothing is cut, names are whole, errors have colours. Plain elsewhere."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import typer

import delegate
from delegate.cli.app import app
from tests.support.commands import call

_CODES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")  # of colours and of the cursor


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, its program, one of two methods, and inputs."""
    folder = tmp_path_factory.mktemp("terminal")
    module = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Softmax(-1)).eval()
    exported = torch.export.export(module, (torch.ones(2, 8),))
    torch.export.save(exported, folder / "net.pt2")
    delegate.to_backend(exported, "xnnpack").save(folder / "net.dlg")
    delegate.to_backend({"prefill": exported, "decode": exported}, "xnnpack").save(folder / "two.dlg")
    np.save(folder / "x.npy", np.ones((2, 8), np.float32))
    return folder


def on_terminal(folder: Path, *args: str, columns: int) -> tuple[int, str]:
    """Run a command on a terminal; return its exit code and all that it shows."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm"}
    for name in ("NO_COLOR", "COLUMNS"):  # shells do not export COLUMNS
        environment.pop(name, None)
    command = [sys.executable, "-m", "delegate", *args]
    child = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=folder)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # the end of a terminal
        while part := os.read(ours, 4096):
            shown += part
    os.close(ours)
    return child.wait(), shown.decode()


@pytest.mark.parametrize("columns", [60, 80, 140])
def test_lines_fit_the_terminal(folder: Path, columns: int) -> None:
    code, shown = on_terminal(folder, "run", "net.dlg", "--profile", columns=columns)
    assert code == 0, shown
    after = _CODES.sub("", shown.rpartition("\x1b[2K")[2])  # what a spinner drew is gone
    lines = after.replace("\r", "").splitlines()
    assert max(map(len, lines)) <= columns
    text = "".join("".join(lines).split())
    assert "xnnpack_0" in text
    assert "float32[2,8]" in text


def test_help_fits_the_terminal(folder: Path) -> None:
    shown = on_terminal(folder, "lower", "--help", columns=60)[1]
    assert 50 < max(map(len, shown.splitlines())) <= 60


def test_errors_are_red_and_progress_is_shown(folder: Path) -> None:
    code, shown = on_terminal(folder, "run", "two.dlg", columns=60)
    assert code == 1
    assert "\x1b[1;31merror:\x1b[0m no method 'forward' in this program" in shown
    assert "loading two.dlg" in shown
    assert "--method prefill" in " ".join(shown.split())


def test_a_program_of_several_methods(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    args = ("run", "two.dlg")
    assert "name one of them, as --method prefill" in call(*args, code=1)[1]
    assert "--method" in call("diff", "two.dlg", "two.dlg", "--inputs", "x.npy", code=1)[1]
    assert (
        "no method 'decod' in this program (two.dlg): did you mean 'decode'?"
        in call(*args, "--method", "decod", code=1)[1]
    )
    call(*args, "--method", "decode")


@pytest.mark.parametrize(
    "args",
    [
        ("backends",),
        ("backends", "xnnpack"),
        ("explain", "net.dlg"),
        ("inspect", "net.dlg"),
        ("run", "net.dlg"),
        ("cache", "info"),
        ("lower", "net.pt2", "-b", "xnnpack", "-o", "new.dlg"),
    ],
    ids=" ".join,
)
def test_json_is_indented(folder: Path, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...]) -> None:
    monkeypatch.chdir(folder)
    text = call(*args, "--json")[0]
    assert text == json.dumps(json.loads(text), indent=2, ensure_ascii=False) + "\n"


def test_all_nodes_are_a_table(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    lines = call("explain", "net.dlg", "--nodes")[0].splitlines()
    assert re.split("  +", lines[0]) == ["node", "operator", "result", "runs on", "rejected by"]
    assert re.split("  +", lines[1]) == ["linear", "aten.linear.default", "float32[2, 4]", "xnnpack_0"]
    lines = call("explain", "two.dlg", "--nodes")[0].splitlines()
    assert [line.split()[0] for line in lines] == ["method", "prefill", "prefill", "decode", "decode"]


@pytest.mark.parametrize(
    "args",
    [
        ("lower", "net.pt2", "-b", "XNNPACK", "-o", "new.dlg"),
        ("explain", "net.pt2", "-b", "Xnnpack", "-b", "Portable"),
        ("run", "net.dlg", "--option", "XNNPACK.threads=1", "-k", "ATEN"),
        ("backends", "XnnPack"),
    ],
    ids=" ".join,
)
def test_names_match_without_case(folder: Path, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...]) -> None:
    monkeypatch.chdir(folder)
    assert call(*args)[1] == ""


def commands(command: object, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    """Yield every command with the words that call it."""
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))
    if not hasattr(command, "commands"):
        yield path, command


COMMANDS = dict(commands(typer.main.get_command(app)))


def test_the_list_of_commands_has_whole_sentences() -> None:
    text = call("--help")[0]
    assert "..." not in text.replace("[ARGS]...", "")
    words = " ".join(text.split())
    for path, command in COMMANDS.items():
        if len(path) == 1:
            first = " ".join((command.help or "").split()).partition(". ")[0].rstrip(".")
            assert f"{path[0]} {first}." in words


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_names_what_is_required(path: tuple[str, ...]) -> None:
    text = call(*path, "--help")[0]
    assert "list[" not in text
    usage = " ".join(text.partition("\n\n")[0].split())
    for parameter in COMMANDS[path].params:
        if parameter.required:
            shown = parameter.opts[-1] if parameter.param_type_name == "option" else parameter.metavar
            assert shown in usage
            assert "[required]" in text


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        ("delegate loc", ["lock"]),
        ("delegate lower net.pt2 -b xn", ["xnnpack"]),
        ("delegate run two.dlg --method pre", ["prefill"]),
        ("delegate run two.dlg -k at", ["aten"]),
    ],
)
def test_completion(folder: Path, words: str, completions: list[str]) -> None:
    environment = {**os.environ, "_DELEGATE_COMPLETE": "complete_bash", "COMP_WORDS": words}
    environment["COMP_CWORD"] = str(len(words.split()) - 1)
    command = [sys.executable, "-m", "delegate"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, check=True)
    assert done.stdout.split() == completions
