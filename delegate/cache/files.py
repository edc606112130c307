"""Files by key that others map as they are: bounded, checked, safe for several processes. No fault is ever an error.

The name of a file is the digest of its key and that of its content, so that the content is all that it holds. It is
written beside its place and renamed into it, and nobody writes to it afterwards.
"""

from __future__ import annotations

import hashlib
import os
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

from delegate.cache.bounded import BoundedFolder
from delegate.program.task import Task

_CHUNK = 1 << 20  # bytes, hashed at a time


class MappedFiles(BoundedFolder):
    """Files in a folder of their own."""

    suffix = ".mapped"

    def open(self, key: str) -> int | None:
        """A descriptor, for reading, of what is kept under a key, all of it checked; None where nothing is.

        What is damaged is removed.
        """
        for path in self._of(key):
            with suppress(OSError):  # another process may have removed it
                descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # it may be a pipe
                if path.name == _name(key, descriptor):
                    os.utime(path)
                    return descriptor
                os.close(descriptor)
                _say("%s is damaged, and is removed", path)
                path.unlink()
        return None

    def keep(self, key: str, source: int) -> bool:
        """Keep the content of a file, given by its descriptor, under a key; whether that was done."""
        size = os.fstat(source).st_size
        if size > self.most_bytes:
            return False
        try:
            with self.writing() as (file, path):
                _copy(source, file.fileno(), size)
                os.replace(path, self.folder / _name(key, source))
        except OSError as error:
            _say("%s cannot be written: %s", self.folder, error)
            return False
        self.make_room()
        return True

    def remove(self, key: str) -> None:
        """Have nothing under a key."""
        for path in self._of(key):
            with suppress(OSError):
                path.unlink()

    def _of(self, key: str) -> list[Path]:
        begin = _digest(key.encode()) + "-"
        return sorted(file.path for file in self.files() if file.path.name.startswith(begin))


def _name(key: str, descriptor: int) -> str:
    return f"{_digest(key.encode())}-{content_digest(descriptor)}{MappedFiles.suffix}"


def content_digest(descriptor: int) -> str:
    """The SHA-256 of the SHA-256s of a file's chunks of 1 MiB, and of its size, computed on all cores.

    It is read, not mapped, so that it does not count as memory of this process.
    """
    size = os.fstat(descriptor).st_size
    count = max(1, min(os.cpu_count() or 1, 8, size // (4 * _CHUNK)))
    tasks = [Task(partial(_chunks, descriptor, range(i * _CHUNK, size, count * _CHUNK))) for i in range(count)]
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


def _say(message: str, *args: object) -> None:
    """A line of the log, which is imported late: programs are loaded through this module, as fast as it is imported."""
    import logging

    logging.getLogger(__name__).info(message, *args)
