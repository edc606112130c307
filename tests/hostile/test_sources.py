"""Files and folders that others change, processes killed while they save, members of archives made to be large."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
import tracemalloc
import zipfile

import pytest

import delegate
from delegate.common.files import read_text, replacing, write_text
from delegate.config import load_config
from delegate.errors import ProgramError
from delegate.partitioner.saved import SavedPlan
from delegate.placement.lock import Lock
from delegate.program import file
from delegate.runtime.arguments import load_arrays
from tests.support.hostile import require_no_wait
from tests.support.programs import dynamic, static


@pytest.mark.parametrize("as_bytes", [False, True])
def test_a_copy_is_not_changed_from_outside(as_bytes, tmp_path):
    path = tmp_path / "p.dlg"
    file.save(static(), path)
    data = bytearray(path.read_bytes())
    program = file.load(data if as_bytes else path, copy=True)
    if as_bytes:
        data[-30:] = bytes(30)
    else:
        with path.open("r+b") as opened:
            opened.truncate(0)  # a mapping would end the process when it is next read
    assert program == static()
    assert all(segment.readonly for segment in program.segments)


def test_a_copy_is_aligned_as_a_mapping_is(tmp_path):
    import numpy as np

    file.save(static(), tmp_path / "p.dlg")
    program = file.load(tmp_path / "p.dlg", copy=True)
    assert all(np.asarray(segment).ctypes.data % 64 == 0 for segment in program.segments)


def test_load_copies_on_wish(tmp_path):
    file.save(dynamic()._replace(methods=dynamic().methods[1:]), tmp_path / "p.dlg")
    program = delegate.load(tmp_path / "p.dlg", copy=True)
    os.truncate(tmp_path / "p.dlg", 0)
    assert program.method("nothing")() == ()


def member(path, data: bytes) -> zipfile.Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("p.dlg", data)
    return zipfile.Path(path, "p.dlg")


def test_a_member_that_is_no_program_is_not_unpacked(tmp_path):
    given = member(tmp_path / "a.zip", bytes(60 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(ProgramError, match="not a delegate program file"):
            file.load(given)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_a_member_that_becomes_much_more_is_refused(tmp_path):
    with pytest.raises(ProgramError, match=r"expands .* to 73400320 bytes, a ratio above 10.*store it in the archive"):
        file.load(member(tmp_path / "a.zip", b"\x89DLG\r\n\x1a\n" + bytes((70 << 20) - 8)))


READERS = {
    "a plan": SavedPlan.load,
    "a lock": Lock.load,
    "costs": lambda path: read_text(path, "costs", ""),
    "a configuration": load_config,
    "a program": delegate.load,
    "arrays": load_arrays,
    "a plan to write": lambda path: write_text(path, "text", "the plan"),
    "a program to write": lambda path: file.save(static(), path),
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


STALE = ".delegate-0123456789abcdef.tmp"


def save_text(tmp_path):
    """Save in a thread of its own, and give up after a while."""
    target = tmp_path / "file"
    thread = threading.Thread(target=write_text, args=(target, "text", "it"), daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    return target.read_text()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with a name")
def test_a_pipe_with_the_name_of_a_stale_file_holds_nothing_up(tmp_path):
    os.mkfifo(tmp_path / STALE)
    assert save_text(tmp_path) == "text"


def test_no_link_with_the_name_of_a_stale_file_is_followed(tmp_path):
    (tmp_path / "other").write_text("of somebody")
    (tmp_path / STALE).symlink_to(tmp_path / "other")
    assert save_text(tmp_path) == "text"
    assert (tmp_path / "other").read_text() == "of somebody"


SAVING = """
import sys, time
from delegate.program import file
from delegate.runtime.arguments import load_arrays
from tests.support.programs import static
parts = file.assemble
def slow(program):
    for part in parts(program):
        yield part
        print("writing", flush=True)
        time.sleep(60)
file.assemble = slow
file.save(static(), sys.argv[1])
"""


def saving(path) -> subprocess.Popen[str]:
    """A process that has begun to save, and does not go on."""
    process = subprocess.Popen([sys.executable, "-c", SAVING, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    return process


def test_the_next_save_removes_what_a_killed_one_left(tmp_path):
    with saving(tmp_path / "p.dlg") as process:
        process.send_signal(signal.SIGKILL)
    (stale,) = os.listdir(tmp_path)
    assert stale.startswith(".delegate-")
    file.save(static(), tmp_path / "other.dlg")
    assert os.listdir(tmp_path) == ["other.dlg"]


def test_a_save_that_goes_on_keeps_its_file(tmp_path):
    with saving(tmp_path / "p.dlg") as process:
        file.save(static(), tmp_path / "p.dlg")
        names = os.listdir(tmp_path)
        process.kill()
    assert len(names) == 2
    assert file.load(tmp_path / "p.dlg") == static()


def test_what_looks_alike_is_kept(tmp_path):
    names = {".delegate-1.tmp", ".delegate-0123456789abcdef.tmp.txt", "x.delegate-0123456789abcdef.tmp"}
    for name in names:
        (tmp_path / name).touch()
    file.save(static(), tmp_path / "p.dlg")
    assert set(os.listdir(tmp_path)) == {*names, "p.dlg"}


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
