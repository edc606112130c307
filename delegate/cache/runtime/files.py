"""Files by key that other code maps into memory: bounded, checked, safe for several processes. No failure is an error.

The file name holds the digests of the key and of the content. So the file holds the content alone. It is written
under a temporary name and renamed into its place. Nobody writes to it afterwards.
"""

from __future__ import annotations

import hashlib
import os
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

from delegate.cache.runtime.folder import BoundedFolder
from delegate.program.cores import BackgroundCall, cores

_CHUNK = 1 << 20  # bytes, hashed at a time


class MappedFiles(BoundedFolder):
    """Files in their own folder, to be mapped."""

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
