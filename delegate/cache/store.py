"""A folder of entries by key: bounded, checksummed, safe for several processes. No fault of it is ever an error.

An entry is a file, which is written beside its place and renamed into it, so that readers see all of it or nothing. It
holds: `_MAGIC`, the SHA-256 of the header, the length of the header, the header as JSON (the key, what the caller
keeps, sizes and checksums of the parts), the parts, each where `ALIGNMENT` divides its place.
"""

from __future__ import annotations

import hashlib
import json
import logging
import mmap
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from delegate.cache.bounded import BoundedFolder
from delegate.plain_data import count, mapping
from delegate.program.segments import align, checksums

T = TypeVar("T")

logger = logging.getLogger(__name__)

_MAGIC = b"DLGKEEP2"
_PREFIX = len(_MAGIC) + 32 + 8

_warned: set[Path] = set()  # folders, once each in a process


class Entry(NamedTuple):
    """What was kept under a key.

    Args:
        about: plain JSON values.
        parts: mapped from the file, which nobody writes to once it is there; removing it leaves them as they are.
        digests: the checksum of each part, as text.
    """

    about: Mapping[str, Any]
    parts: tuple[memoryview, ...]
    digests: tuple[str, ...]


class Store(BoundedFolder):
    """Entries in a folder of their own."""

    suffix = ".kept"

    def get(self, key: str) -> Entry | None:
        """What is kept under a key, all of it checked; None where nothing is. An entry that is damaged is removed."""
        path = self._path(key)
        try:
            entry = _read(_mapped(path), key)
        except OSError:
            return None
        if entry is None:
            logger.info("%s is damaged, or of another version, and is removed", path)
            self.remove(key)
            return None
        with suppress(OSError):
            os.utime(path)
        return entry

    def read(self, key: str, make: Callable[[Entry], T]) -> T | None:
        """Return what an entry means. One that makes no sense is a miss, and is removed.

        Args:
            key: of the entry.
            make: checks an entry and turns it into a value; whatever it raises says that the entry makes no sense.
        """
        entry = self.get(key)
        if entry is None:
            return None
        try:
            return make(entry)
        except Exception:  # a checksum says nothing of who wrote it, and impossible contents fail in many ways
            logger.info("%s makes no sense, and is removed", self._path(key))
            self.remove(key)
            return None

    def put(self, key: str, about: Mapping[str, Any], parts: Sequence[bytes | memoryview]) -> tuple[str, ...] | None:
        """Keep this under a key. Where that cannot be, there is one warning in a process for each folder.

        Returns:
            The checksum of each part, as text; None where it is not kept.
        """
        views = [memoryview(p).cast("B") for p in parts]
        digests = tuple(d.hex() for d in checksums(views))
        pieces = list(_pieces(key, about, views, digests))
        if sum(len(p) for p in pieces) > self.most_bytes:
            return None
        try:
            self._write(self._path(key), pieces)
        except OSError as error:
            if self.folder not in _warned:
                _warned.add(self.folder)
                what = f"the compile cache cannot be written: {error.strerror or error} ({self.folder})"
                warnings.warn(f"{what}: partitions are compiled anew every time", RuntimeWarning, stacklevel=2)
            return None
        self.make_room()
        return digests

    def remove(self, key: str) -> None:
        """Have nothing under a key."""
        with suppress(OSError):
            self._path(key).unlink()

    def _path(self, key: str) -> Path:
        return self.folder / (hashlib.sha256(key.encode()).hexdigest() + self.suffix)

    def _write(self, path: Path, pieces: Sequence[bytes | memoryview]) -> None:
        with self.writing() as (file, name):
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.replace(name, path)


def _mapped(path: Path) -> memoryview:
    with open(path, "rb", opener=_without_waiting) as file:
        if os.fstat(file.fileno()).st_size == 0:  # which cannot be mapped
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _without_waiting(path: str, flags: int) -> int:
    """Open a file; a pipe in its place has nobody who writes to it."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _pieces(
    key: str, about: Mapping[str, Any], parts: Sequence[memoryview], digests: Sequence[str]
) -> Iterator[bytes | memoryview]:
    sizes = [p.nbytes for p in parts]
    header = json.dumps({"key": key, "about": dict(about), "sizes": sizes, "digests": digests}).encode()
    yield _MAGIC + hashlib.sha256(header).digest() + len(header).to_bytes(8, "little")
    yield header
    end = _PREFIX + len(header)
    for part in parts:
        yield bytes(align(end) - end)
        yield part
        end = align(end) + part.nbytes


def _read(data: memoryview, key: str) -> Entry | None:
    """The entry that a file holds; None where it is damaged, or another."""
    at = _PREFIX + int.from_bytes(data[_PREFIX - 8 : _PREFIX], "little")
    header = bytes(data[_PREFIX:at])
    if data[: len(_MAGIC)] != _MAGIC or data[len(_MAGIC) : _PREFIX - 8] != hashlib.sha256(header).digest():
        return None
    parts = []
    try:  # a checksum says that it is as it was written, not who wrote it
        found = json.loads(header)
        about = mapping(found, "about")
        for part in found["sizes"]:
            size = count({"size": part}, "size")
            if any(data[at : align(at)]):
                return None
            at = align(at) + size
            parts.append(data[at - size : at])
        if found["key"] != key or at != data.nbytes or [d.hex() for d in checksums(parts)] != found["digests"]:
            return None
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return None
    return Entry(about, tuple(parts), tuple(found["digests"]))
