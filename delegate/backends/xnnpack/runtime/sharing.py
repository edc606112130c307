"""Models with many weights, whose packed weights are one file shared by methods, contexts and processes.

XNNPACK reads its packed weights from this file and never the model's own weights. So the model is a file with zeros
instead of weights. If a packed weight were missing, XNNPACK would silently pack zeros. So each model is first compiled
with an outline of the packed file, in which XNNPACK records missing weights.

Models of the same key (`graph.Graph.key`) may use the same packed weights.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from weakref import WeakValueDictionary

from delegate.backends.xnnpack.runtime.graph import Graph
from delegate.backends.xnnpack.runtime.litert import CompiledModel, ModelFile, library, version
from delegate.backends.xnnpack.runtime.weights import Piece
from delegate.cache.runtime.environment import host_features
from delegate.cache.runtime.folder import PACKED, MappedFiles, cache_folder, private
from delegate.program.segments import checksum

LEAST_HOLE = 1 << 16  # bytes of the smallest omitted weight, which covers whole pages


def share(
    model: ModelFile, constants: Sequence[Piece], threads: int, *, dynamic: bool, on_disk: bool
) -> CompiledModel | None:
    """Open a model that shares its packed weights, and pack them if necessary; return None if this is not possible.

    Args:
        model: without its constants.
        constants: The model's constants.
        threads: number of threads.
        dynamic: true if its sizes change.
        on_disk: true if the cache may hold the packed weights, for other processes.
    """
    if library() is None:
        return None
    graph = Graph(model.view)
    holes = []
    for piece in constants:
        if piece.size >= LEAST_HOLE and (piece.start, piece.size) in graph.packed:
            holes.append(piece)
        else:
            model.write(piece.start, piece.content())
    key = graph.key(_contents(model, constants), {"litert": version(), "host": host_features()})
    try:
        packed = get_packed(key, on_disk)
        if packed is None:
            packed = put_packed(key, _pack(model, graph, holes, threads), on_disk)
        if _lacks_weights(model, graph, packed):
            evict_packed(key, on_disk)
            return None
        shared = CompiledModel(model.descriptor, graph.inputs, graph.outputs, threads, packed.reader())
        shared.bind(dynamic, packed)
    except RuntimeError:
        return None
    model.release(graph.weights)
    model.close()
    return shared


def _lacks_weights(model: ModelFile, graph: Graph, packed: PackedWeights) -> bool:
    """Return true if packed weights lack some weights of a model."""
    outline = packed.outline()
    before = outline.header()
    CompiledModel(model.descriptor, graph.inputs, graph.outputs, 1, outline.writer()).close()
    return outline.header() != before


def _pack(model: ModelFile, graph: Graph, holes: Sequence[Piece], threads: int) -> PackedWeights:
    for piece in holes:
        model.write(piece.start, piece.content())
    packed = PackedWeights.empty()
    CompiledModel(model.descriptor, graph.inputs, graph.outputs, threads, packed.writer()).close()
    model.release((piece.start, piece.size) for piece in holes)
    return packed


def _contents(model: ModelFile, constants: Sequence[Piece]) -> Callable[[tuple[int, int]], bytes]:
    known = {(p.start, p.size): checksum(p.stored) + repr(p.how).encode() for p in constants}
    return partial(_content, model.view, known)


def _content(view: memoryview, known: Mapping[tuple[int, int], bytes], place: tuple[int, int]) -> bytes:
    digest = known.get(place)
    return hashlib.sha256(view[place[0] : sum(place)]).digest() if digest is None else digest


MOST_BYTES = 4 << 30  # of all files in the cache
_HEADER, _LIST = 1 << 12, 1 << 20  # bytes that XNNPACK's header and its list of weights have at most


class PackedWeights:
    """A file of packed weights, closed when nothing refers to it.

    Args:
        descriptor: The file's descriptor, which this closes.
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


def get_packed(key: str, on_disk: bool) -> PackedWeights | None:
    """Return the weights packed under a key, by this process or, if `on_disk`, by another; else None."""
    packed = _OPEN.get(key)
    if packed is None and on_disk and (files := _files()) is not None:
        descriptor = files.open(key)
        if descriptor is not None:
            packed = _OPEN[key] = PackedWeights(descriptor)
    return packed


def put_packed(key: str, packed: PackedWeights, on_disk: bool) -> PackedWeights:
    """Store packed weights under a key; return the file to use, which is the cache's file if it has one."""
    if on_disk and (files := _files()) is not None and files.keep(key, packed._descriptor):
        descriptor = files.open(key)
        if descriptor is not None:
            packed = PackedWeights(descriptor)
    _OPEN[key] = packed
    return packed


def evict_packed(key: str, on_disk: bool) -> None:
    """Remove the packed weights of a key."""
    _OPEN.pop(key, None)
    if on_disk and (files := _files()) is not None:
        files.remove(key)


def _files() -> MappedFiles | None:
    folder = private(cache_folder())
    return None if folder is None else MappedFiles(folder / PACKED, MOST_BYTES)
