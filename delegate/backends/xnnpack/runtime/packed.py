"""Files of packed weights: one for all delegates of the same layers, in this process and, with the cache, in others."""

from __future__ import annotations

import os
from contextlib import suppress
from weakref import WeakValueDictionary

from delegate.cache.files import MappedFiles
from delegate.cache.folder import PACKED, cache_folder, private

MOST_BYTES = 4 << 30  # of all files in the cache
_HEADER, _LIST = 1 << 12, 1 << 20  # bytes that XNNPACK's header and its list of weights have at most


class PackedWeights:
    """A file of packed weights, closed when nothing refers to it.

    Args:
        descriptor: of the file, which this closes.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def empty(cls) -> PackedWeights:
        """Create an empty file in memory; raise OSError if this is not possible."""
        return cls(os.memfd_create("packed weights"))

    @property
    def size(self) -> int:
        """Return its size in bytes."""
        return os.fstat(self._descriptor).st_size

    def reader(self) -> int:
        """Return a new read-only descriptor."""
        return os.open(f"/proc/self/fd/{self._descriptor}", os.O_RDONLY | os.O_CLOEXEC)

    def writer(self) -> int:
        """Return a new descriptor to write a file in memory."""
        return os.dup(self._descriptor)

    def outline(self) -> PackedWeights:
        """Copy its start and its end, which hold XNNPACK's header and list, to a file in memory, with zeros between."""
        copy = PackedWeights.empty()
        os.ftruncate(copy._descriptor, self.size)
        for start, size in ((0, _HEADER), (max(0, self.size - _LIST), _LIST)):
            os.pwrite(copy._descriptor, os.pread(self._descriptor, size, start), start)
        return copy

    def header(self) -> tuple[int, bytes]:
        """Return its size and its header, in which XNNPACK records missing weights."""
        return self.size, os.pread(self._descriptor, _HEADER, 0)

    def __del__(self) -> None:
        with suppress(OSError):
            os.close(self._descriptor)


_OPEN = WeakValueDictionary[str, PackedWeights]()  # by key, those that delegates of this process use


def get(key: str, on_disk: bool) -> PackedWeights | None:
    """Return the weights packed under a key, by this process or, if `on_disk`, by another; else None."""
    packed = _OPEN.get(key)
    if packed is None and on_disk and (files := _files()) is not None:
        descriptor = files.open(key)
        if descriptor is not None:
            packed = _OPEN[key] = PackedWeights(descriptor)
    return packed


def put(key: str, packed: PackedWeights, on_disk: bool) -> PackedWeights:
    """Store packed weights under a key; return the file to use, which is that of the cache if there is one."""
    if on_disk and (files := _files()) is not None and files.keep(key, packed._descriptor):
        descriptor = files.open(key)
        if descriptor is not None:
            packed = PackedWeights(descriptor)
    _OPEN[key] = packed
    return packed


def evict(key: str, on_disk: bool) -> None:
    """Remove the packed weights of a key."""
    _OPEN.pop(key, None)
    if on_disk and (files := _files()) is not None:
        files.remove(key)


def _files() -> MappedFiles | None:
    folder = private(cache_folder())
    return None if folder is None else MappedFiles(folder / PACKED, MOST_BYTES)
