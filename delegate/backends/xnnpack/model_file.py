"""A large model as a file in memory, which LiteRT maps, without the weights that XNNPACK has packed copies of.

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
    """The bytes of a model in a file without a name, zeros at first; on Linux.

    Args:
        size: bytes.

    Attributes:
        descriptor: of the file.
        path: by which this process may open it.

    Raises:
        OSError: there is no such file here, or no memory for it.
    """

    def __init__(self, size: int) -> None:
        if sys.platform != "linux":
            raise OSError("files in memory are Linux's")
        self.descriptor = os.memfd_create("model")
        try:
            os.ftruncate(self.descriptor, size)
            self._memory = mmap.mmap(self.descriptor, 0)
            self.path = f"/proc/self/fd/{self.descriptor}"
            os.stat(self.path)
        except BaseException:
            self.close()
            raise

    @property
    def view(self) -> memoryview:
        """Its bytes."""
        return memoryview(self._memory).toreadonly()

    def write(self, start: int, part: Buffer) -> None:
        """Put bytes there; without a mapping, so that they do not count as this process's memory."""
        left = memoryview(part).cast("B")
        while left.nbytes:
            count = os.pwrite(self.descriptor, left, start)
            left, start = left[count:], start + count

    def release(self, places: Iterable[tuple[int, int]]) -> None:
        """Give the memory of parts back, each (start, size): whoever reads them afterwards finds zeros."""
        for start, size in places:
            first, end = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, (start + size) // mmap.PAGESIZE * mmap.PAGESIZE
            if end > first:
                self._memory.madvise(mmap.MADV_REMOVE, first, end - first)

    def close(self) -> None:
        """Let go of it; who has mapped it keeps it. Nothing where that was done."""
        descriptor, self.descriptor = self.descriptor, -1
        with suppress(OSError):
            os.close(descriptor)
