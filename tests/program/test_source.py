"""Where programs come from: file objects of all kinds, members of archives, files of packages, and what goes wrong."""

from __future__ import annotations

import importlib
import importlib.resources
import io
import mmap
import os
import sys
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest

from delegate.errors import ProgramError
from delegate.program.file import load, serialize
from delegate.program.source import open_source
from tests.support.programs import static

DATA = serialize(static())
NAME = "models/net.dlg"


def archive(path: Path | io.BytesIO, method: int = zipfile.ZIP_STORED, padding: int | None = None) -> zipfile.ZipFile:
    """An archive of a text and the program; `padding` puts the program so many bytes behind an aligned place."""
    info = zipfile.ZipInfo(NAME)
    info.compress_type = method
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("readme.txt", "a program")
        if padding is not None:
            size = made.fp.tell() + 30 + len(NAME) + 4
            info.extra = b"\xfe\xca" + (fill := -size % 64 + padding).to_bytes(2, "little") + bytes(fill)
        made.writestr(info, DATA)
    return zipfile.ZipFile(path)


def is_mapped(data: memoryview) -> bool:
    return isinstance(data.obj, mmap.mmap)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
@pytest.mark.parametrize("padding", [None, 0, 1])
def test_a_member_is_mapped_where_it_is_stored_and_aligned_else_read(tmp_path, method, padding):
    with archive(tmp_path / "a.zip", method, padding) as opened:
        data, name = open_source(zipfile.Path(opened, NAME))
    assert name.endswith("a.zip/models/net.dlg")
    assert data == DATA
    assert is_mapped(data) == (method == zipfile.ZIP_STORED and padding == 0)
    if is_mapped(data):
        assert np.frombuffer(data, np.uint8).ctypes.data % 64 == 0
    assert load(data) == static()  # the archive is closed, what was mapped stays valid


def test_a_program_behind_a_prefix_in_an_archive_that_starts_late(tmp_path):
    archive(tmp_path / "a.zip", padding=0).close()
    (tmp_path / "b.zip").write_bytes(bytes(128) + (tmp_path / "a.zip").read_bytes())
    data, _ = open_source(zipfile.Path(tmp_path / "b.zip", NAME))
    assert is_mapped(data)
    assert load(data) == static()


def test_an_archive_in_memory():
    assert load(zipfile.Path(archive(io.BytesIO(), padding=0), NAME)) == static()


def test_an_opened_member(tmp_path):
    with archive(tmp_path / "a.zip", zipfile.ZIP_DEFLATED) as opened, opened.open(NAME) as member:
        assert load(member) == static()


@pytest.mark.parametrize("zipped", [False, True])
def test_a_file_of_a_package(tmp_path, monkeypatch, zipped):
    name = f"package_with_a_program_{zipped:d}"
    files = {f"{name}/__init__.py": b"", f"{name}/net.dlg": DATA}
    if zipped:
        with zipfile.ZipFile(tmp_path / "site.zip", "w") as site:
            for path, content in files.items():
                site.writestr(path, content)
        monkeypatch.syspath_prepend(str(tmp_path / "site.zip"))
    else:
        (tmp_path / name).mkdir()
        for path, content in files.items():
            (tmp_path / path).write_bytes(content)
        monkeypatch.syspath_prepend(str(tmp_path))
    try:
        assert load(importlib.resources.files(name) / "net.dlg") == static()
    finally:
        sys.modules.pop(name, None)


def test_a_pipe():
    """It cannot be sought, and gives less than is asked for at once."""
    reading, writing = os.pipe()

    def write() -> None:
        with os.fdopen(writing, "wb", buffering=0) as stream:
            for start in range(0, len(DATA), 100):
                stream.write(DATA[start : start + 100])

    thread = threading.Thread(target=write)
    thread.start()
    with os.fdopen(reading, "rb", buffering=0) as stream:
        assert load(stream) == static()
    thread.join()


def test_an_unbuffered_file_from_where_it_stands(tmp_path):
    (tmp_path / "a").write_bytes(b"prefix" + DATA)
    with open(tmp_path / "a", "rb", buffering=0) as stream:
        stream.seek(6)
        assert load(stream) == static()


def _member(name: str, path: Path) -> zipfile.Path:
    return zipfile.Path(path, name)


def _corrupt(path: Path, method: int) -> zipfile.Path:
    """The member with a byte in its middle altered."""
    archive(path, method, 0).close()
    with zipfile.ZipFile(path) as opened:
        info = opened.getinfo(NAME)
    data = bytearray(path.read_bytes())
    data[info.header_offset + 30 + len(NAME) + len(info.extra) + info.compress_size // 2] ^= 0xFF
    path.write_bytes(data)
    return zipfile.Path(path, NAME)


def _encrypted(path: Path) -> zipfile.Path:
    archive(path).close()
    data = bytearray(path.read_bytes())
    for signature, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.rindex(signature) + flags] |= 1
    path.write_bytes(data)
    return zipfile.Path(path, NAME)


def _cut(_: Path) -> zipfile.ZipExtFile:
    """An opened member whose archive has lost its end in the meantime."""
    archive(data := io.BytesIO(), zipfile.ZIP_DEFLATED).close()
    member = zipfile.ZipFile(data).open(NAME)  # noqa: SIM115 - the test has it read, and fail
    data.truncate(200)
    return member


FAILURES = {
    "no such member": (lambda p: _member("models/nte.dlg", p), r"there is no such file \(.*a\.zip/models/nte\.dlg\)"),
    "a folder": (lambda p: _member("models/", p), r"there is no such file \(.*a\.zip/models/\)"),
    "another member": (lambda p: _member("readme.txt", p), r"not a delegate program file \(.*readme\.txt\)"),
    "corrupt, stored": (lambda p: _corrupt(p, zipfile.ZIP_STORED), r"does not match \(.*net\.dlg|must be zero"),
    "corrupt, deflated": (lambda p: _corrupt(p, zipfile.ZIP_DEFLATED), r"cannot read .* \(.*net\.dlg\): check the"),
    "corrupt, lzma": (lambda p: _corrupt(p, zipfile.ZIP_LZMA), r"cannot read the program file.* \(.*net\.dlg\)"),
    "encrypted": (_encrypted, r"password required.*net\.dlg\): check the archive"),
    "cut while open": (_cut, r"cannot read the program file.*net\.dlg\): check the archive"),
    "the archive itself": (str, r"a\.zip\): it is a zip archive: pass the program in it as a zipfile\.Path"),
    "text": (lambda p: io.StringIO("text"), r'returns str, not bytes: open it with mode "rb"'),
    "nothing to read yet": (lambda p: NonBlocking(), "returns NoneType, not bytes"),
    "a number": (lambda p: 3, "cannot be read from int: pass a path, bytes"),
    "nothing": (lambda p: None, "cannot be read from NoneType"),
    "an object that fails": (lambda p: Odd(), "cannot read the program file: the network is gone"),
}  # fmt: skip


class NonBlocking(io.RawIOBase):
    def readall(self) -> None:
        return None

    read = readall


class Odd:
    def read(self) -> bytes:
        raise LookupError("the network is gone")


@pytest.mark.parametrize("name", FAILURES)
def test_failures(name, tmp_path):
    make, match = FAILURES[name]
    archive(tmp_path / "a.zip").close()
    source = make(tmp_path / "a.zip")
    with pytest.raises(ProgramError, match=match) as caught:
        load(source)
    assert "\n" not in str(caught.value)
