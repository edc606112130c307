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
    files = _files() if on_disk else None
    try:
        packed = _OPEN[key] = (
            _OPEN.get(key) or _open_packed(key, files) or _pack(key, model, graph, holes, threads, files)
        )
        if _lacks_weights(model, graph, packed):
            _OPEN.pop(key, None)
            if files is not None:
                files.remove(key)
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


def _pack(
    key: str, model: ModelFile, graph: Graph, holes: Sequence[Piece], threads: int, files: MappedFiles | None
) -> PackedWeights:
    """Pack the weights of a model; return the cache's file if it keeps them, else a file in memory."""
    for piece in holes:
        model.write(piece.start, piece.content())
    packed = PackedWeights(os.memfd_create("packed weights"))
    CompiledModel(model.descriptor, graph.inputs, graph.outputs, threads, packed.writer()).close()
    model.release((piece.start, piece.size) for piece in holes)
    is_kept = files is not None and files.keep(key, packed.descriptor)
    return (is_kept and _open_packed(key, files)) or packed


def _open_packed(key: str, files: MappedFiles | None) -> PackedWeights | None:
    """Return the weights that this or another process has packed and stored under a key; else None."""
    descriptor = None if files is None else files.open(key)
    return None if descriptor is None else PackedWeights(descriptor)


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
        self.descriptor = descriptor

    def reader(self) -> int:
        """Return a new read-only descriptor."""
        return os.open(f"/proc/self/fd/{self.descriptor}", os.O_RDONLY | os.O_CLOEXEC)

    def writer(self) -> int:
        """Return a new descriptor to write a file in memory."""
        return os.dup(self.descriptor)

    def outline(self) -> PackedWeights:
        """Copy its start and its end, which hold XNNPACK's header and list, to a file in memory, with zeros between."""
        copy, whole = PackedWeights(os.memfd_create("outline")), os.fstat(self.descriptor).st_size
        os.ftruncate(copy.descriptor, whole)
        for start, size in ((0, _HEADER), (max(0, whole - _LIST), _LIST)):
            os.pwrite(copy.descriptor, os.pread(self.descriptor, size, start), start)
        return copy

    def header(self) -> tuple[int, bytes]:
        """Return its size and its header, in which XNNPACK records missing weights."""
        return os.fstat(self.descriptor).st_size, os.pread(self.descriptor, _HEADER, 0)

    def __del__(self) -> None:
        with suppress(OSError):
            os.close(self.descriptor)


_OPEN = WeakValueDictionary[str, PackedWeights]()  # by key, those that delegates of this process use


def _files() -> MappedFiles | None:
    folder = private(cache_folder())
    return None if folder is None else MappedFiles(folder / PACKED, MOST_BYTES)
