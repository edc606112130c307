"""Files and folders that others change, files left by killed processes, members of archives made to be large."""

from __future__ import annotations

import os
import stat
import tracemalloc
import zipfile

import pytest

import delegate
from delegate.common.files import read_text, replacing, write_text
from delegate.errors import ProgramError
from delegate.program import file
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


def test_a_pipe_of_the_shell_is_read_and_written():
    reads, writes = os.pipe()
    write_text(f"/dev/fd/{writes}", "text", "the plan")
    os.close(writes)
    assert read_text(f"/dev/fd/{reads}", "the plan", "") == "text"
    os.close(reads)


STALE = ".delegate-0123456789abcdef.tmp"


def test_a_save_removes_files_of_killed_ones_and_nothing_else(tmp_path):
    link = STALE.replace("0", "2")
    kept = {".delegate-1.tmp", f"{STALE}.txt", f"x{STALE}", link}
    for name in {*kept, STALE} - {link}:
        (tmp_path / name).touch()
    (tmp_path / link).symlink_to(tmp_path / ".delegate-1.tmp")
    with replacing(str(tmp_path / "other.dlg")) as opened:  # another save, which goes on
        opened.write(b"all of it")
        file.save(static(), tmp_path / "p.dlg")
    assert set(os.listdir(tmp_path)) == {*kept, "p.dlg", "other.dlg"}
    assert (tmp_path / "other.dlg").read_bytes() == b"all of it"


def test_the_mode_is_given_to_the_file_itself(tmp_path):
    target, other = tmp_path / "file", tmp_path / "other"
    for path in (target, other):
        path.write_text("old")
        path.chmod(0o600)
    target.chmod(0o640)
    with replacing(str(target)) as opened:
        opened.write(b"new")
        (temporary,) = (path for path in tmp_path.iterdir() if path.suffix == ".tmp")
        temporary.unlink()
        temporary.symlink_to(other)  # as somebody may, who may write to the folder
    assert stat.S_IMODE(other.stat().st_mode) == 0o600
