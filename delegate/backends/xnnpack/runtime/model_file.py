"""A large model as a file in memory, which LiteRT maps, without the weights that XNNPACK has packed.

Otherwise a process would hold them twice, and a third time if LiteRT received bytes.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

Buffer = Any  # bytes, or an object with the buffer protocol


class ModelFile:
    """The bytes of a model in an unnamed file, initially zeros; on Linux.

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
        """Return its bytes."""
        return memoryview(self._memory).toreadonly()

    def write(self, start: int, part: Buffer) -> None:
        """Write bytes at a position, not through the mapping: its pages would count as this process's memory."""
        left = memoryview(part).cast("B")
        while left.nbytes:
            count = os.pwrite(self.descriptor, left, start)
            left, start = left[count:], start + count

    def release(self, places: Iterable[tuple[int, int]]) -> None:
        """Release the memory of parts, each (start, size). Later reads return zeros."""
        for start, size in places:
            first, end = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, (start + size) // mmap.PAGESIZE * mmap.PAGESIZE
            if end > first:
                self._memory.madvise(mmap.MADV_REMOVE, first, end - first)

    def close(self) -> None:
        """Close the file; existing mappings stay valid. A second call does nothing."""
        descriptor, self.descriptor = self.descriptor, -1
        with suppress(OSError):
            os.close(descriptor)
