"""Readers of untrusted files: none waits for a pipe or reads a device."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import delegate
from delegate.cli.app import app
from delegate.common.files import open_to_read, read_bytes, require_regular
from delegate.config import load_config
from delegate.errors import DelegateError
from delegate.partitioner.saved import SavedPlan
from delegate.placement.lock import Lock
from delegate.runtime.arguments import load_arrays
from tests.support.sources import ROOT


def command(*words: str) -> Callable[[Path], None]:
    """Return the call of a command, in which FILE is the path."""

    def call(path: Path) -> None:
        named = [word.replace("FILE", str(path)) for word in words]
        done = CliRunner().invoke(app, named, catch_exceptions=False)
        assert done.exit_code in (1, 2), done.output
        raise DelegateError(done.stderr)

    return call


READERS: dict[str, Callable[[Path], object]] = {
    "open_to_read": open_to_read, "read_bytes": read_bytes, "require_regular": require_regular,
    "load_arrays": load_arrays, "load": delegate.load, "plan": SavedPlan.load,
    "lock": Lock.load, "configuration": load_config,
    **{
        name: command(*words)
        for name, words in {
            "inspect": ("inspect", "FILE"), "explain": ("explain", "FILE"), "lower": ("lower", "FILE", "-o", "x.dlg"),
            "report": ("report", "FILE", "-o", "x.html"), "run": ("run", "FILE"), "strip": ("strip", "FILE"),
            "inputs": ("run", "PROGRAM", "-i", "FILE"), "archive": ("run", "PROGRAM", "-i", "FILE.npz"),
            "debug result": ("report", "PROGRAM", "-o", "x.html", "--debug-result", "FILE"),
        }.items()
    },
}  # fmt: skip


@pytest.fixture
def limit() -> Iterator[None]:
    """End a test that waits."""
    signal.alarm(60)
    yield
    signal.alarm(0)


@pytest.mark.usefixtures("limit")
@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("name", READERS)
def test_what_is_no_regular_file(name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path / "x", tmp_path / "x.npz"):
        if kind == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to("/dev/zero")
    program = next((ROOT / "tests" / "hostile" / "seeds").glob("mlp.dlg"))
    (tmp_path / "PROGRAM").symlink_to(program)
    with pytest.raises((DelegateError, OSError)):
        READERS[name](tmp_path / "x")


@pytest.mark.parametrize("name", sorted(READERS))
def test_a_name_that_no_file_has(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "PROGRAM").symlink_to(ROOT / "tests" / "hostile" / "seeds" / "mlp.dlg")
    with pytest.raises((DelegateError, OSError)) as caught:
        READERS[name](tmp_path / ("x" * 300))
    if isinstance(caught.value, DelegateError):
        assert "--debug" not in str(caught.value), caught.value  # the remedy of errors that are not of this project
