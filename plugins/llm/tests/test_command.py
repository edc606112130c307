"""`delegate llm`: exit codes, files that cannot be written, names that an attacker would choose, and the example."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from delegate.cli.app import app
from tests.support.commands import FAILED, USAGE, require_exit
from tests.support.hostile import EVIL, paths, require_printable  # noqa: F401 - a fixture
from tests.support.sources import ROOT

CODES = {
    FAILED: ["llm export absent -o new.dlg", "llm run absent.dlg -p text", "llm chat absent.dlg"],
    USAGE: ["llm export", "llm run", "llm chat", "llm unknown"],
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("code", "line"), [(code, line) for code, lines in CODES.items() for line in lines])
def test_exit_code(code: int, line: str) -> None:
    require_exit(line.split(), code)


def test_a_destination_that_cannot_be_written_is_said_first() -> None:
    Path("file").write_text("kept")
    done = CliRunner().invoke(app, ["llm", "export", "absent", "-o", "file/below/x"])
    assert (done.exit_code, "cannot be written" in done.stderr) == (1, True)
    assert (Path("file").read_text(), os.listdir()) == ("kept", ["file"])


@pytest.mark.parametrize(
    "form",
    [("run", "FILE", "--prompt", EVIL), ("run", EVIL), ("chat", EVIL), ("export", EVIL, "-o", "x.dlg"), (EVIL,)],
    ids=ascii,
)
def test_no_command_prints_control_characters(form: tuple[str, ...], paths: dict[str, str]) -> None:  # noqa: F811
    require_printable(["llm", *(paths.get(part, part) for part in form)])


def test_the_list_of_commands_imports_neither_numpy_nor_torch() -> None:
    code = (
        "import sys; from delegate.cli.app import app\ntry: app(['--help'])\n"
        "finally: print('numpy' in sys.modules, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Export a language model of transformers, and generate text." in done.stdout
    assert done.stdout.endswith("False False\n")


@pytest.mark.slow
def test_the_example() -> None:
    call("", ROOT / "examples" / "language_model" / "make_model.py", "tiny")
    program = ("-m", "delegate", "llm")
    call("", *program, "export", "tiny", "-o", "tiny.dlg", "--context", "128", "--chunk", "16")
    text = call("", *program, "run", "tiny.dlg", "-p", "<s>Q: What is a kernel? A:")
    assert text == " A NumPy function that runs one operator.\n"
    assert call("Does it need torch?\n", *program, "chat", "tiny.dlg") == " No, the file runs without torch.\n"


def call(text: str, *arguments: str | Path) -> str:
    """Run Python with this text as stdin, and return what it prints."""
    done = subprocess.run([sys.executable, *arguments], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
