"""A folder of files with a size limit: the least recently used files are removed first."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, ClassVar, NamedTuple

from delegate.cache.folder import make_private

_UNFINISHED = ".part"
_ABANDONED = 3600  # seconds; the writer of an older unfinished file has ended


class File(NamedTuple):
    """A file of the folder."""

    path: Path
    size: int
    used: int


class BoundedFolder:
    """Files of one kind in one folder. Each file is either complete or absent.

    Args:
        folder: created for the user alone if it does not exist.
        most_bytes: limit for the total size of all files; the least recently used are removed first.
    """

    suffix: ClassVar[str]  # of their names

    def __init__(self, folder: Path, most_bytes: int = 2**63) -> None:
        self.folder, self.most_bytes = folder, most_bytes

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

    def evict(self) -> None:
        """Remove the least recently used files until the total size is within the limit."""
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
        """Remove unfinished files of killed processes. Keep those that may still be written."""
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
