"""The store: what is put in comes out whole or not at all, whatever happens to the folder."""

from __future__ import annotations

import hashlib
import os
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from delegate.cache.runtime.folder import cache_folder
from delegate.cache.runtime.store import Store

ABOUT = {"notes": ["a", "b"], "space": ""}
PARTS = [b"blob" * 1000, b"", memoryview(bytes(range(256)))]


def kept(store: Store, key: str = "key") -> list[bytes] | None:
    entry = store.get(key)
    return None if entry is None else [bytes(part) for part in entry.parts]


def filled(folder: Path) -> tuple[Store, Path]:
    store = Store(folder)
    store.put("key", ABOUT, PARTS)
    (file,) = folder.iterdir()
    return store, file


def test_what_is_put_comes_out(tmp_path: Path) -> None:
    store, _ = filled(tmp_path / "a" / "b")
    entry = store.get("key")
    assert entry is not None
    assert entry.about == ABOUT
    assert kept(store) == [bytes(p) for p in PARTS]
    assert store.get("other") is None
    assert (tmp_path / "a" / "b").stat().st_mode & 0o077 == 0
    assert store.sizes()[0] > 4000
    assert store.clear() == 1
    assert store.get("key") is None
    assert bytes(entry.parts[0]) == PARTS[0]  # still mapped


def flipped(at: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize(
    "damage",
    [
        *(flipped(at) for at in (0, 7, 8, 39, 40, 47, 48, 60, 300, -200, -2)),
        *((lambda data, n=n: data[:n]) for n in (0, 1, 8, 40, 48, 100, 4000, -1)),
        lambda data: data + b"more",
        lambda data: b"DLGKEEP0" + data[8:],
        lambda data: bytes(len(data)),
    ],
)
def test_a_damaged_entry_is_a_miss_and_is_removed(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    store, file = filled(tmp_path)
    file.write_bytes(damage(file.read_bytes()))
    assert store.get("key") is None
    assert not file.exists()
    store.put("key", ABOUT, PARTS)
    assert kept(store) == [bytes(p) for p in PARTS]


def forged(header: bytes) -> bytes:
    return b"DLGKEEP2" + hashlib.sha256(header).digest() + len(header).to_bytes(8, "little") + header


@pytest.mark.parametrize(
    "header",
    [
        b"no JSON", b"[" * 100_000, b"{}", b"[]", b'{"key": "key", "about": 1, "sizes": [], "digests": []}',
        b'{"key": "key", "about": {}, "sizes": [-64], "digests": [""]}',
        b'{"key": "key", "about": {}, "sizes": ["1"], "digests": [""]}',
        b'{"key": "key", "about": {}, "sizes": 3, "digests": [""]}',
        b'{"key": "key", "about": {}, "sizes": [1e400], "digests": [""]}',
    ],
)  # fmt: skip
def test_a_forged_entry_is_a_miss_and_is_removed(tmp_path: Path, header: bytes) -> None:
    store, file = filled(tmp_path)
    file.write_bytes(forged(header))
    assert store.get("key") is None
    assert not file.exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names here")
def test_a_pipe_in_the_place_of_an_entry_is_a_miss(tmp_path: Path) -> None:
    store, file = filled(tmp_path)
    file.unlink()
    os.mkfifo(file)
    assert store.get("key") is None
    assert not file.exists()


def test_an_entry_of_another_key_is_a_miss(tmp_path: Path) -> None:
    store, file = filled(tmp_path)
    store.put("other", ABOUT, [b"other"])
    (other,) = set(tmp_path.iterdir()) - {file}
    os.replace(other, file)
    assert store.get("key") is None


def test_what_was_unused_for_longest_goes_first(tmp_path: Path) -> None:
    one = filled(tmp_path / "size")[0].sizes()[0]
    store = Store(tmp_path / "store", 3 * one)
    for number, key in enumerate("abc"):
        store.put(key, ABOUT, PARTS)
        for file in store.folder.iterdir():
            if file.stat().st_mtime > 1000:
                os.utime(file, (number, number))
    assert kept(store, "a") is not None  # used now
    store.put("d", ABOUT, PARTS)
    assert [key for key in "abcd" if kept(store, key)] == ["a", "c", "d"]
    assert sum(store.sizes()) <= 3 * one
    store.put("large", ABOUT, [bytes(4 * one)])
    assert kept(store, "large") is None
    assert [key for key in "abcd" if kept(store, key)] == ["a", "c", "d"]


def test_what_a_killed_process_left_goes(tmp_path: Path) -> None:
    store, _ = filled(tmp_path)
    old, new = tmp_path / "old.part", tmp_path / "new.part"
    for file, age in ((old, 7200), (new, 0)):
        file.write_bytes(b"half")
        os.utime(file, (time.time() - age,) * 2)
    Store(store.folder).put("key", ABOUT, PARTS)  # of a later lowering
    assert not old.exists()
    assert new.exists()


def test_the_folder_is_not_scanned_for_each_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lowering with many partitions into a full cache would take quadratic time."""
    scans = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: scans.append(path) or scandir(path))
    store = Store(tmp_path, 64 * 1024)
    for number in range(200):
        store.put(str(number), ABOUT, [b"x" * 1000])
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 64 * 1024 * 17 // 16
    assert 0 < len(scans) <= 2 * 200 * 1500 / (64 * 1024 / 16)  # two for each sixteenth of the limit


@pytest.mark.parametrize("place", ["/proc/self/cache", "file/cache"])
def test_a_folder_that_cannot_be_written_is_one_warning(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("no folder")
    store = Store(tmp_path / place)
    with pytest.warns(RuntimeWarning, match="cannot be written: .* is done again"):
        store.put("key", ABOUT, PARTS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store.put("key", ABOUT, PARTS)
        assert store.get("key") is None
        assert store.sizes() == []
        assert store.clear() == 0


def test_a_full_disk_is_one_warning_and_leaves_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # no file may grow beyond: the write fails in the middle
    try:
        with pytest.warns(RuntimeWarning, match="cannot be written"):
            store.put("key", ABOUT, PARTS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []
    store.put("key", ABOUT, PARTS)
    assert kept(store) == [bytes(p) for p in PARTS]


HAMMER = """
import random, sys
from pathlib import Path
from delegate.cache.runtime.store import Store

store, draw = Store(Path(sys.argv[1]), 300_000), random.Random(int(sys.argv[2]))
for _ in range(400):
    key = str(draw.randrange(6))
    if draw.random() < 0.5:
        store.put(key, {"key": key}, [key.encode() * 30_000, b"end"])
    elif (entry := store.get(key)) is not None:
        assert entry.about == {"key": key} and bytes(entry.parts[0]) == key.encode() * 30_000, key
    if draw.random() < 0.02:
        store.clear()
"""


def test_several_processes_at_once(tmp_path: Path) -> None:
    workers = [
        subprocess.Popen([sys.executable, "-W", "error", "-c", HAMMER, str(tmp_path), str(seed)]) for seed in range(4)
    ]
    assert [worker.wait(120) for worker in workers] == [0] * 4
    assert sum(Store(tmp_path).sizes()) <= 300_000 + 4 * 31_000
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"DELEGATE_CACHE": "off", "HOME": "/home/a"}, None),
        ({"DELEGATE_CACHE": "/b", "HOME": "/home/a"}, Path("/b")),
        ({"DELEGATE_CACHE": "~/b", "HOME": "/home/a"}, Path("/home/a/b")),
    ],
)
def test_the_environment_names_the_folder(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], folder: Path | None
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == folder


@pytest.mark.skipif(sys.platform != "linux", reason="XDG's folders")
@pytest.mark.parametrize(("xdg", "folder"), [("/x", "/x/delegate"), ("", "/home/a/.cache/delegate")])
def test_the_platforms_own_folder(monkeypatch: pytest.MonkeyPatch, xdg: str, folder: str) -> None:
    monkeypatch.delenv("DELEGATE_CACHE")
    monkeypatch.setenv("HOME", "/home/a")
    monkeypatch.setenv("XDG_CACHE_HOME", xdg)
    assert cache_folder() == Path(folder)
