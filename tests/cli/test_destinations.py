"""Where commands write: what cannot be written is an error before anything is read or done."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import typer

import delegate
from delegate.cli.app import app
from delegate.common.files import require_file, require_folder
from delegate.errors import InputError, PartitionError, ProgramError
from tests.support.commands import call

WRITTEN = [  # command, option
    (("lower", "absent.pt2"), "-o"),
    (("lower", "absent.pt2", "-o", "x.dlg"), "--lock"),
    (("lower", "absent.pt2", "-o", "x.dlg"), "--bundle"),
    (("lower", "absent.pt2", "-o", "x.dlg"), "--trace"),
    (("run", "absent.dlg"), "-o"),
    (("run", "absent.dlg"), "--trace"),
    (("new-backend", "mine"), "-o"),
    (("strip", "absent.dlg"), "-o"),
    (("report", "absent.dlg"), "-o"),
]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("kept")


@pytest.mark.parametrize(("command", "option"), WRITTEN, ids=str)
def test_what_cannot_be_written_is_said_first(command, option):
    """The model is not there either: it is not looked at yet."""
    stderr = call(*command, option, "file/below/x", code=1)[1]
    assert "cannot be written" in stderr
    assert stderr.count("\n") == 1
    assert Path("file").read_text() == "kept"
    assert os.listdir() == ["file"]


@pytest.mark.parametrize(("command", "option"), [w for w in WRITTEN if w[0][0] in ("lower", "measure")], ids=str)
def test_a_missing_folder_and_a_folder(command, option):
    assert "there is no folder" in call(*command, option, "absent/x", code=1)[1]
    assert "is a folder" in call(*command, option, ".", code=1)[1]


def test_every_option_that_writes_is_here():
    """Of all commands: an option that takes a path and says that it writes."""

    def options(command, name=()):
        for child, inner in getattr(command, "commands", {}).items():
            yield from options(inner, (*name, child))
        for option in command.params:
            words = getattr(option, "help", None) or ""
            takes_path = option.param_type_name == "option" and not option.is_flag
            if name and takes_path and any(w in words for w in ("Write", "write.", "Where to")):
                yield name[0], option.opts[-1]

    assert set(options(typer.main.get_command(app))) == {(command[0], option) for command, option in WRITTEN}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("lower", "file", "-o", "./file"), "--output would overwrite MODEL"),
        (("lower", "m.pt2", "-c", "file", "-o", "file"), "--output would overwrite --config"),
        (("lower", "m.pt2", "--locked", "file", "-o", "file"), "--output would overwrite --locked"),
        (("lower", "m.pt2", "--costs", "file", "-o", "file"), "--output would overwrite --costs"),
        (("lower", "m.pt2", "-o", "new", "--lock", "new"), "--lock would overwrite --output"),
        (("lower", "m.pt2", "-o", "new", "--trace", "new"), "--trace would overwrite --output"),
        (("run", "file", "--trace", "file"), "--trace would overwrite FILE"),
        (("report", "file", "-o", "file"), "--output would overwrite"),
        (("lower", "m.pt2", "-o", "new", "--bundle", "new"), "--bundle would overwrite --output"),
    ],
)
def test_nothing_is_written_over_what_is_read(args, message):
    assert message in call(*args, code=1)[1]
    assert Path("file").read_text() == "kept"
    assert os.listdir() == ["file"]


def test_streams():
    require_file(os.devnull, "costs", streams=True)
    with pytest.raises(ProgramError, match="is not a file"):
        require_file(os.devnull, "the bundle", ProgramError)
    os.symlink("absent/x", "link")
    with pytest.raises(PartitionError, match="there is no folder"):
        require_file("link", "the lockfile")
    for path in ("a\0b", ""):
        with pytest.raises(PartitionError, match=r"is not a path|is a folder"):
            require_file(path, "the lockfile")
    require_folder("new/below", "the outputs", InputError)


@pytest.mark.parametrize(
    "placement", [delegate.ByPreference(lockfile="absent/x"), delegate.Measured(lockfile="absent/x")]
)
def test_destinations_are_checked_before_the_model_is_read(placement):
    with pytest.raises(PartitionError, match="there is no folder"):
        delegate.to_backend("absent.pt2", "xnnpack", placement=placement)
