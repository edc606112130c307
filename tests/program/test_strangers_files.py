"""Saving in a folder that others write to: nothing that lies there holds it up, or is written to."""

from __future__ import annotations

import os
import stat

import pytest

import delegate
from delegate.common.files import read_text, replacing, write_text
from delegate.config import load_config
from delegate.partitioner.saved import SavedPlan
from delegate.placement.lock import Lock
from delegate.program.file import save
from delegate.runtime.array_files import load_arrays
from tests.support.hostile import require_no_wait
from tests.support.programs import static

READERS = {
    "a plan": SavedPlan.load,
    "a lock": Lock.load,
    "costs": lambda path: read_text(path, "costs", ""),
    "a configuration": load_config,
    "a program": delegate.load,
    "arrays": load_arrays,
    "a plan to write": lambda path: write_text(path, "text", "the plan"),
    "a program to write": lambda path: save(static(), path),
}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with a name")
@pytest.mark.parametrize("kind", READERS)
def test_a_pipe_in_the_place_of_a_file_holds_nothing_up(kind, tmp_path):
    require_no_wait(READERS[kind], tmp_path / "pipe")


def test_a_pipe_of_the_shell_is_read_and_written():
    reads, writes = os.pipe()
    write_text(f"/dev/fd/{writes}", "text", "the plan")
    os.close(writes)
    assert read_text(f"/dev/fd/{reads}", "the plan", "") == "text"
    os.close(reads)


def test_the_mode_is_given_to_the_file_itself(tmp_path):
    target, other = tmp_path / "file", tmp_path / "other"
    for path in (target, other):
        path.write_text("old")
        path.chmod(0o600)
    target.chmod(0o640)
    with replacing(str(target)) as file:
        file.write(b"new")
        (temporary,) = (path for path in tmp_path.iterdir() if path.suffix == ".tmp")
        temporary.unlink()
        temporary.symlink_to(other)  # as somebody may, who may write to the folder
    assert stat.S_IMODE(other.stat().st_mode) == 0o600
