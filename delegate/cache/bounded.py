"""A folder of files that is bounded: what was unused for longest goes first."""

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
_ABANDONED = 3600  # seconds after which a file that is still unfinished has no writer any more


class File(NamedTuple):
    """One of them."""

    path: Path
    size: int
    used: int


class BoundedFolder:
    """Files of one kind in a folder of their own, each there whole or not at all.

    Args:
        folder: need not exist; it is made for the user alone.
        most_bytes: of all files together: those that were not used for the longest time go first.
    """

    suffix: ClassVar[str]  # of their names

    def __init__(self, folder: Path, most_bytes: int = 2**63) -> None:
        self.folder, self.most_bytes = folder, most_bytes

    def clear(self) -> int:
        """Remove all; gives how many there were."""
        files = list(self.files())
        for file in files:
            with suppress(OSError):
                file.path.unlink()
        self._drop_abandoned()
        return len(files)

    def sizes(self) -> list[int]:
        """The bytes of every file."""
        return [file.size for file in self.files()]

    def files(self) -> Iterator[File]:
        """All that are there."""
        yield from self._found(self.suffix)

    @contextmanager
    def writing(self) -> Iterator[tuple[BinaryIO, Path]]:
        """A new file beside the others, to be renamed to its place; it is gone behind this where that is not done."""
        make_private(self.folder)
        handle, name = tempfile.mkstemp(_UNFINISHED, dir=self.folder)
        try:
            with open(handle, "wb") as file:
                yield file, Path(name)
        finally:
            with suppress(OSError):
                os.unlink(name)

    def make_room(self) -> None:
        """Remove files until all together are small enough."""
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
        """Remove what killed processes have left; what others are writing now stays."""
        for file in self._found(_UNFINISHED):
            if time.time() - file.used / 1e9 > _ABANDONED:
                with suppress(OSError):
                    file.path.unlink()

    def _found(self, suffix: str) -> Iterator[File]:
        with suppress(OSError), os.scandir(self.folder) as found:
            for file in found:
                if file.name.endswith(suffix):
                    with suppress(OSError):  # another process may have removed it
                        status = file.stat()
                        yield File(Path(file.path), status.st_size, status.st_mtime_ns)
