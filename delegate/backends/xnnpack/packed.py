"""Files of packed weights: one for all delegates of the same layers, in this process and, by the cache, in others."""

from __future__ import annotations

import os
from contextlib import suppress
from weakref import WeakValueDictionary

from delegate.cache.files import MappedFiles
from delegate.cache.folder import PACKED, cache_folder, private

MOST_BYTES = 4 << 30  # of all files in the cache
_HEADER, _LIST = 1 << 12, 1 << 20  # bytes that XNNPACK's header and its list of weights have at most


class PackedWeights:
    """A file of packed weights. It is let go of when nothing refers to it.

    Args:
        descriptor: of the file, which this closes.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def empty(cls) -> PackedWeights:
        """One in memory, to be written; raises OSError where there is no such file."""
        return cls(os.memfd_create("packed weights"))

    @property
    def size(self) -> int:
        """Bytes that it has."""
        return os.fstat(self._descriptor).st_size

    def reader(self) -> int:
        """A new descriptor, through which nobody can write."""
        return os.open(f"/proc/self/fd/{self._descriptor}", os.O_RDONLY | os.O_CLOEXEC)

    def writer(self) -> int:
        """A new descriptor, of a file in memory."""
        return os.dup(self._descriptor)

    def outline(self) -> PackedWeights:
        """A copy in memory of what it begins with and ends with, where XNNPACK has its list, and zeros between."""
        copy = PackedWeights.empty()
        os.ftruncate(copy._descriptor, self.size)
        for start, size in ((0, _HEADER), (max(0, self.size - _LIST), _LIST)):
            os.pwrite(copy._descriptor, os.pread(self._descriptor, size, start), start)
        return copy

    def begins(self) -> tuple[int, bytes]:
        """Its size, and what it begins with: XNNPACK notes there what it has missed."""
        return self.size, os.pread(self._descriptor, _HEADER, 0)

    def __del__(self) -> None:
        with suppress(OSError):
            os.close(self._descriptor)


_OPEN = WeakValueDictionary[str, PackedWeights]()  # by key, those that delegates of this process use


def find(key: str, on_disk: bool) -> PackedWeights | None:
    """What has been packed under a key, by this process or, if the cache may be asked, by another."""
    found = _OPEN.get(key)
    if found is None and on_disk and (files := _files()) is not None:
        descriptor = files.open(key)
        if descriptor is not None:
            found = _OPEN[key] = PackedWeights(descriptor)
    return found


def keep(key: str, packed: PackedWeights, on_disk: bool) -> PackedWeights:
    """Have others find what was packed; gives the file to use, which is that of the cache where there is one."""
    if on_disk and (files := _files()) is not None and files.keep(key, packed._descriptor):
        descriptor = files.open(key)
        if descriptor is not None:
            packed = PackedWeights(descriptor)
    _OPEN[key] = packed
    return packed


def forget(key: str, on_disk: bool) -> None:
    """Have nothing under a key that was of no use."""
    _OPEN.pop(key, None)
    if on_disk and (files := _files()) is not None:
        files.remove(key)


def _files() -> MappedFiles | None:
    folder = private(cache_folder())
    return None if folder is None else MappedFiles(folder / PACKED, MOST_BYTES)
