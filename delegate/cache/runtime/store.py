"""A folder of entries by key: bounded, checksummed, safe for several processes. No failure of it is an error.

An entry is a file that is written under a temporary name and renamed into place, so readers see a complete file or
none. The file holds, in this order: `_MAGIC`; the SHA-256 of the header; the length of the header; the header as JSON
(key, metadata, sizes and checksums of the parts); the parts, each aligned to `ALIGNMENT`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import mmap
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from delegate.cache.runtime.folder import BoundedFolder
from delegate.common.field_checks import count, mapping
from delegate.common.files import open_nonblocking
from delegate.common.user_warnings import warn_user
from delegate.program.segments import align, checksums

T = TypeVar("T")

logger = logging.getLogger(__name__)

_MAGIC = b"DLGKEEP2"
_PREFIX = len(_MAGIC) + 32 + 8

_warned: set[Path] = set()  # folders, once each in a process


class Entry(NamedTuple):
    """The content stored under a key.

    Args:
        about: plain JSON values.
        parts: mapped from the file. Nobody writes to a complete file, and removing it leaves the parts valid.
        digests: the checksum of each part, as text.
    """

    about: Mapping[str, Any]
    parts: tuple[memoryview, ...]
    digests: tuple[str, ...]


class Store(BoundedFolder):
    """Entries in their own folder."""

    suffix = ".kept"

    def get(self, key: str) -> Entry | None:
        """Return the checked entry of a key; None if there is none. A damaged entry is removed."""
        path = self._path(key)
        try:
            entry = _read(_map_entry(path), key)
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
        """Return the value that `make` builds from an entry. An entry that `make` rejects is a miss, and is removed.

        Args:
            key: The entry's key.
            make: checks an entry and turns it into a value; any exception means that the entry is invalid.
        """
        entry = self.get(key)
        if entry is None:
            return None
        try:
            return make(entry)
        except Exception:  # a checksum says nothing of who wrote it, and impossible contents fail in many ways
            logger.info("%s is invalid, and is removed", self._path(key))
            self.remove(key)
            return None

    def put(self, key: str, about: Mapping[str, Any], parts: Sequence[bytes | memoryview]) -> tuple[str, ...] | None:
        """Store metadata and parts under a key, or warn once per process and folder if that fails.

        Returns:
            The checksum of each part, as text; None if the entry was not stored.
        """
        views = [memoryview(p).cast("B") for p in parts]
        digests = tuple(d.hex() for d in checksums(views))
        pieces = list(_pieces(key, about, views, digests))
        size = sum(len(p) for p in pieces)
        if size > self.most_bytes:
            return None
        try:
            self._write(self._path(key), pieces)
        except OSError as error:
            if self.folder not in _warned:
                _warned.add(self.folder)
                what = f"the compile cache cannot be written: {error.strerror or error} ({self.folder})"
                warn_user(f"{what}: its work is done again every time")
            return None
        self.evict(size)
        return digests

    def remove(self, key: str) -> None:
        """Remove the entry of a key."""
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


def _map_entry(path: Path) -> memoryview:
    with open(path, "rb", opener=open_nonblocking) as file:
        if os.fstat(file.fileno()).st_size == 0:  # which cannot be mapped
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


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
    """Return the entry in the bytes of a file; None if the file is damaged or belongs to another key."""
    at = _PREFIX + int.from_bytes(data[_PREFIX - 8 : _PREFIX], "little")
    header = bytes(data[_PREFIX:at])
    if data[: len(_MAGIC)] != _MAGIC or data[len(_MAGIC) : _PREFIX - 8] != hashlib.sha256(header).digest():
        return None
    parts = []
    try:  # a checksum says that it is as it was written, not who wrote it
        header_fields = json.loads(header)
        about = mapping(header_fields, "about")
        for part in header_fields["sizes"]:
            size = count({"size": part}, "size")
            if any(data[at : align(at)]):
                return None
            at = align(at) + size
            parts.append(data[at - size : at])
        if (
            header_fields["key"] != key
            or at != data.nbytes
            or [d.hex() for d in checksums(parts)] != header_fields["digests"]
        ):
            return None
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return None
    return Entry(about, tuple(parts), tuple(header_fields["digests"]))
