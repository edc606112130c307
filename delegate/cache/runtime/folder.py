"""The folder of the cache, its safety, and folders of files with a size limit in it, some of which are mapped."""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO, ClassVar, NamedTuple

from delegate.common.user_warnings import warn_user
from delegate.program.cores import BackgroundCall, cores

VARIABLE = "DELEGATE_CACHE"  # environment variable: the folder, or "off"
OFF = "off"
ARTIFACTS = "artifacts"  # within it: compiled partitions
CHOICES = "choices"  # within it: placements chosen by measuring
PACKED = "packed"  # within it: weights in the layout of a library
PLUGINS = "plugins"  # within it: answers of plugins to probes
PARTS = (ARTIFACTS, CHOICES, PACKED, PLUGINS)

_warned: set[Path] = set()  # folders, once each in a process


def cache_folder() -> Path | None:
    """Return the folder of the cache; None if the environment turns it off or the user has no home folder.

    The folder is the value of `DELEGATE_CACHE`, else the platform's default, and need not exist.
    """
    requested = os.environ.get(VARIABLE, "")
    if requested == OFF:
        return None
    if requested:
        return Path(requested).expanduser()
    try:
        return _platform_folder() / "delegate"
    except RuntimeError:  # no home
        return None


def private(folder: Path | None) -> Path | None:
    """Return a cache folder if only its user may write to it, as ssh requires; else warn, and return None.

    A user who may write there can have machine code run. Neither the folder nor its parts may be writable by others,
    and their owner must be this user or root. The same holds for its parents, since others could put another folder in
    its place there; a parent with the sticky bit, such as /tmp, prevents that. A link on the way must have one of these
    owners too, since its owner decides where it leads. A missing folder is later created for the user alone.
    """
    if folder is None:
        return None
    problem = danger(folder)
    if problem is None:
        return folder
    what, remedy, place = problem
    if place not in _warned:
        _warned.add(place)
        what = f"the cache is not used: {what}, and could make this process run code"
        warn_user(f"{what}: {remedy}; {VARIABLE} sets another folder")
    return None


def danger(folder: Path) -> tuple[str, str, Path] | None:
    """Return who else could change the contents of a cache folder, the remedy and the place; None if nobody could."""
    if not hasattr(os, "getuid"):
        return None
    parents = {*folder.absolute().parents, *folder.resolve().parents}  # of a link, and of its target
    for place in (folder, *(folder / part for part in PARTS), *sorted(parents)):
        which = f"{place}, above its folder {folder}" if place in parents else f"its folder {place}"
        try:
            status, link = os.stat(place), os.lstat(place)
        except OSError:
            continue
        is_protected = place in parents and status.st_mode & stat.S_ISVTX
        if link.st_uid not in (0, os.getuid()) and stat.S_ISLNK(link.st_mode):
            return f"the user {link.st_uid} owns the link {which}", "remove the link, or choose another folder", place
        if status.st_uid not in (0, os.getuid()):
            return f"the user {status.st_uid} owns {which}", "choose a folder that you own", place
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not is_protected:
            return f"other users can write to {which}", f"run `chmod go-w {place}`, and `delegate cache clear`", place
    return None


def make_private(folder: Path) -> None:
    """Create a folder and its missing parents for the user alone; raise OSError on failure."""
    for place in (*reversed(folder.parents), folder):
        if not place.exists():
            place.mkdir(mode=0o700, exist_ok=True)


def _platform_folder() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return named if named.is_absolute() else Path.home() / ".cache"  # as the XDG specification has it


_UNFINISHED = ".part"
_ABANDONED = 3600  # seconds; the writer of an older unfinished file has ended


class File(NamedTuple):
    """A file of the folder."""

    path: Path
    size: int
    used: int


class BoundedFolder:
    """Files of one kind in one folder, of which each is either complete or absent.

    Args:
        folder: created for the user alone if it does not exist.
        most_bytes: limit for the total size of all files; the least recently used are removed first.
    """

    suffix: ClassVar[str]  # of their names

    def __init__(self, folder: Path, most_bytes: int = 2**63) -> None:
        self.folder, self.most_bytes = folder, most_bytes
        self._unseen: int | None = None  # bytes that were added since the last scan; None before the first

    def clear(self) -> int:
        """Remove all files, and return their number."""
        files = list(self.files())
        for file in files:
            with suppress(OSError):
                file.path.unlink()
        self._drop_abandoned()
        return len(files)

    def sizes(self) -> list[int]:
        """Return the size of every file in bytes."""
        return [file.size for file in self.files()]

    def files(self) -> Iterator[File]:
        """Yield all files."""
        yield from self._scan(self.suffix)

    @contextmanager
    def writing(self) -> Iterator[tuple[BinaryIO, Path]]:
        """Open a new file that the caller renames to its place. It is removed at the end unless it was renamed."""
        make_private(self.folder)
        handle, name = tempfile.mkstemp(_UNFINISHED, dir=self.folder)
        try:
            with open(handle, "wb") as file:
                yield file, Path(name)
        finally:
            with suppress(OSError):
                os.unlink(name)

    def evict(self, added: int) -> None:
        """Remove the least recently used files until the total size is within the limit.

        The folder is scanned at the first call, and then once per sixteenth of the limit that is added. So the work of
        many calls does not grow with the number of files times the number of calls.

        Args:
            added: bytes of the file that was added.
        """
        if self._unseen is not None and self._unseen + added < self.most_bytes // 16:
            self._unseen += added
            return
        self._unseen = 0
        files = sorted(self.files(), key=lambda file: file.used)
        total = sum(file.size for file in files)
        for file in files:
            if total <= self.most_bytes:
                break
            with suppress(OSError):
                file.path.unlink()
                total -= file.size
        self._drop_abandoned()

    def _drop_abandoned(self) -> None:
        """Remove unfinished files of killed processes, but keep those that may still be written."""
        for file in self._scan(_UNFINISHED):
            if time.time() - file.used / 1e9 > _ABANDONED:
                with suppress(OSError):
                    file.path.unlink()

    def _scan(self, suffix: str) -> Iterator[File]:
        with suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                if entry.name.endswith(suffix):
                    with suppress(OSError):  # another process may have removed it
                        status = entry.stat()
                        yield File(Path(entry.path), status.st_size, status.st_mtime_ns)


_CHUNK = 1 << 20  # bytes, hashed at a time


class MappedFiles(BoundedFolder):
    """Files by key that other code maps into memory: checked, safe for several processes. No failure is an error.

    The file name holds the digests of the key and of the content. So the file holds the content alone. It is written
    under a temporary name and renamed into its place. Nobody writes to it afterwards.
    """

    suffix = ".mapped"

    def open(self, key: str) -> int | None:
        """Return a descriptor for reading the file of a key, with all of it checked; None if the file does not exist.

        A damaged file is removed.
        """
        for path in self._of(key):
            with suppress(OSError):  # another process may have removed it
                descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # it may be a pipe
                if path.name == _name(key, descriptor):
                    os.utime(path)
                    return descriptor
                os.close(descriptor)
                _log("%s is damaged, and is removed", path)
                path.unlink()
        return None

    def keep(self, key: str, source: int) -> bool:
        """Store the content of a file, given by its descriptor, under a key. Return False if that fails."""
        size = os.fstat(source).st_size
        if size > self.most_bytes:
            return False
        try:
            with self.writing() as (file, path):
                _copy(source, file.fileno(), size)
                os.replace(path, self.folder / _name(key, source))
        except OSError as error:
            _log("%s cannot be written: %s", self.folder, error)
            return False
        self.evict(size)
        return True

    def remove(self, key: str) -> None:
        """Remove all files of a key."""
        for path in self._of(key):
            with suppress(OSError):
                path.unlink()

    def _of(self, key: str) -> list[Path]:
        begin = _digest(key.encode()) + "-"
        return sorted(file.path for file in self.files() if file.path.name.startswith(begin))


def _name(key: str, descriptor: int) -> str:
    return f"{_digest(key.encode())}-{content_digest(descriptor)}{MappedFiles.suffix}"


def content_digest(descriptor: int) -> str:
    """Return the SHA-256 of the SHA-256s of a file's chunks (1 MiB each) and of its size, computed on all cores.

    The file is read, not mapped, so that it does not count as memory of this process.
    """
    size = os.fstat(descriptor).st_size
    count = max(1, min(cores(), 8, size // (4 * _CHUNK)))
    tasks = [
        BackgroundCall(partial(_chunks, descriptor, range(i * _CHUNK, size, count * _CHUNK))) for i in range(count)
    ]
    parts = [iter(task.result()) for task in tasks]
    chunks = b"".join(next(parts[i % count]) for i in range(-(-size // _CHUNK)))
    return _digest(size.to_bytes(8, "little") + chunks)


def _chunks(descriptor: int, starts: range) -> list[bytes]:
    return [hashlib.sha256(os.pread(descriptor, _CHUNK, start)).digest() for start in starts]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _copy(source: int, target: int, size: int) -> None:
    at = 0
    while at < size:
        if sys.platform == "linux":
            count = os.sendfile(target, source, at, size - at)
        else:
            count = os.write(target, os.pread(source, _CHUNK, at))
        if not count:
            raise OSError("the file ends before its size")
        at += count


def _log(message: str, *args: object) -> None:
    """Write a line to the log. `logging` is imported late because loading a program imports this module."""
    import logging

    logging.getLogger(__name__).info(message, *args)
