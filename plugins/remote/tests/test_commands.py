"""`delegate measure` and `delegate lower --bundle`: exit codes, files of strangers, and what cannot be written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from delegate_remote.runtime import bundle
from torch.export import ExportedProgram
from typer.testing import CliRunner

import delegate
from delegate.cli.app import app
from delegate.errors import ProgramError
from delegate.plugins import PluginState
from delegate.registry import default_registry
from tests.support.commands import DONE, FAILED, USAGE, require_exit
from tests.support.hostile import EVIL, paths, require_no_wait, require_printable  # noqa: F401 - a fixture


@pytest.fixture(scope="module")
def exported() -> ExportedProgram:
    return torch.export.export(torch.nn.Linear(4, 4).eval(), (torch.randn(1, 4),))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("measure net.bundle --budget 0.01", DONE),
        ("measure absent.bundle", FAILED),
        ("measure net.pt2", FAILED),
        ("measure net.bundle --budget 0", USAGE),
    ],
)
def test_exit_code(exported: ExportedProgram, line: str, code: int) -> None:
    torch.export.save(exported, "net.pt2")
    written = "lower net.pt2 -b xnnpack --measure --bundle net.bundle"
    done = CliRunner().invoke(app, written.split())
    assert done.exit_code == DONE, done.output
    require_exit(line.split(), code)


def test_the_output_is_checked_first() -> None:
    Path("file").touch()
    for arguments, message in (
        (("file", "-o", "file"), "--output would overwrite FILE"),
        (("file", "-o", "absent/x"), "folder"),
    ):
        done = CliRunner().invoke(app, ["measure", *arguments])
        assert done.exit_code in (FAILED, USAGE)
        assert message in done.output


@pytest.mark.usefixtures("site")  # a new registry
def test_the_package_is_found() -> None:
    states = {s.name: (s.state, s.owner) for s in default_registry().measurements}
    assert states["bundle"] == (PluginState.OK, "delegate-remote")


@pytest.mark.parametrize("form", [(EVIL,), ("DAMAGED",), ("FILE", "-o", EVIL)], ids=ascii)
def test_measure_prints_no_control_characters(form: tuple[str, ...], paths: dict[str, str]) -> None:  # noqa: F811
    require_printable(["measure", *(paths.get(part, part) for part in form)])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with a name")
def test_a_pipe_in_the_place_of_a_bundle_holds_nothing_up(tmp_path: Path) -> None:
    require_no_wait(lambda path: bundle.read(path, path.parent), tmp_path / "pipe")


def test_the_destination_is_checked_before_the_model_is_read() -> None:
    with pytest.raises(ProgramError, match="there is no folder"):
        delegate.to_backend("absent.pt2", "xnnpack", placement=delegate.Remote(bundle="absent/x"))


def test_a_device_is_not_replaced(exported: ExportedProgram) -> None:
    """A bundle takes the place of what is there, which must be a file."""
    os.mkfifo("pipe")
    with pytest.raises(ProgramError, match="is not a file"):
        delegate.to_backend(exported, "xnnpack", placement=delegate.Remote(bundle="pipe"))
    assert not Path("pipe").is_file()
