"""Files that others map: what is kept is found whole, or not at all."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from delegate.cache.runtime.folder import MappedFiles, content_digest

CONTENTS = [b"", b"a", random.Random(0).randbytes(10_240_000)]


def source(content: bytes) -> int:
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        return os.dup(file.fileno())


def content_of(descriptor: int | None) -> bytes | None:
    if descriptor is None:
        return None
    with open(descriptor, "rb") as file:
        return file.read()


@pytest.mark.parametrize("content", CONTENTS, ids=len)
def test_kept_and_found(folder: Path, content: bytes) -> None:
    files = MappedFiles(folder)
    assert files.open("key") is None
    assert files.keep("key", source(content))
    assert content_of(files.open("key")) == content
    assert files.open("ke") is None
    assert files.sizes() == [len(content)]
    assert [path.stat().st_mode & 0o777 for path in (folder, *folder.iterdir())] == [0o700, 0o600]
    assert files.clear() == 1
    assert files.open("key") is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(path.read_bytes() + b"x"),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:9_000_000] + b"x" + path.read_bytes()[9_000_001:]),
        lambda path: path.rename(path.with_name(path.name.replace("-", "-0", 1))),
    ],
    ids=["cut", "longer", "empty", "altered", "another name"],
)
def test_damaged_ones_are_removed(folder: Path, damage: object) -> None:
    files = MappedFiles(folder)
    assert files.keep("key", source(CONTENTS[2]))
    damage(next(folder.iterdir()))  # type: ignore[operator]
    assert files.open("key") is None
    assert list(folder.iterdir()) == []
    assert files.keep("key", source(b"new"))
    assert content_of(files.open("key")) == b"new"


def test_the_digest_says_where_bytes_are_and_how_many() -> None:
    contents = [*CONTENTS, CONTENTS[2] + b"\0", CONTENTS[2][::-1], CONTENTS[2][1 << 20 :] + CONTENTS[2][: 1 << 20]]
    assert len({content_digest(source(content)) for content in contents}) == len(contents)


def test_what_was_unused_for_longest_goes_first(folder: Path) -> None:
    files = MappedFiles(folder, 250)
    for name in ("a", "b"):
        assert files.keep(name, source(name.encode() * 100))
        time.sleep(0.02)
    assert content_of(files.open("a")) == b"a" * 100
    time.sleep(0.02)
    assert files.keep("c", source(b"c" * 100))
    assert [files.open(name) is not None for name in "abc"] == [True, False, True]
    assert not files.keep("d", source(b"d" * 251))


@pytest.mark.parametrize("kind", ["a file in its place", "read only"])
def test_a_folder_that_cannot_be_written(tmp_path: Path, kind: str) -> None:
    if kind == "read only" and os.geteuid() == 0:
        pytest.skip("this user may write everywhere")
    folder = tmp_path / "cache"
    if kind == "read only":
        folder.mkdir(mode=0o500)
    else:
        folder.write_text("")
    files = MappedFiles(folder)
    assert not files.keep("key", source(b"content"))
    assert files.open("key") is None


def test_nothing_is_left_of_a_writer_that_was_killed(folder: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from delegate.cache.runtime.folder import MappedFiles
os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
MappedFiles(Path({str(folder)!r})).keep("key", os.open({__file__!r}, os.O_RDONLY))
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    (left,) = folder.iterdir()
    files = MappedFiles(folder)
    assert files.open("key") is None
    os.utime(left, (0, 0))
    assert files.keep("key", source(b"content"))
    assert not left.exists()
