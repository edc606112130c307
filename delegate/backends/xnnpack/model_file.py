"""A large model as a file in memory, which LiteRT maps: its weights go once XNNPACK has packed copies of its own.

Else a process held them twice, and a third time where LiteRT is given bytes.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

Buffer = Any  # bytes, or what gives them by the buffer protocol


class ModelFile:
    """The bytes of a model in a file without a name; on Linux.

    Args:
        parts: of the model, one behind the other.

    Attributes:
        path: by which this process may open it.

    Raises:
        OSError: there is no such file here, or no memory for it.
    """

    def __init__(self, parts: Iterable[Buffer]) -> None:
        if sys.platform != "linux":
            raise OSError("files in memory are Linux's")
        self._descriptor = os.memfd_create("model")
        try:
            for part in parts:
                _write(self._descriptor, memoryview(part).cast("B"))
            self._memory = mmap.mmap(self._descriptor, 0)
            self.path = f"/proc/self/fd/{self._descriptor}"
            os.stat(self.path)
        except BaseException:
            self.close()
            raise

    @property
    def view(self) -> memoryview:
        """Its bytes."""
        return memoryview(self._memory).toreadonly()

    def release(self, places: Iterable[tuple[int, int]]) -> None:
        """Give the memory of parts back, each (start, size): whoever reads them afterwards finds zeros."""
        for start, size in places:
            first, end = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, (start + size) // mmap.PAGESIZE * mmap.PAGESIZE
            if end > first:
                self._memory.madvise(mmap.MADV_REMOVE, first, end - first)

    def close(self) -> None:
        """Let go of it; who has mapped it keeps it."""
        with suppress(OSError):
            os.close(self._descriptor)


def _write(descriptor: int, part: memoryview) -> None:
    while part.nbytes:
        part = part[os.write(descriptor, part) :]
