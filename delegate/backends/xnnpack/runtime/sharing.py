"""Models with many weights, whose packed weights are one file shared by methods, contexts and processes.

XNNPACK reads its packed weights from this file and never the model's own weights. So the model is a file with zeros
instead of weights. If a packed weight were missing, XNNPACK would silently pack zeros. So each model is first compiled
with an outline of the packed file, in which XNNPACK records missing weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from delegate.backends.xnnpack.runtime.interpreted import ModelFile
from delegate.backends.xnnpack.runtime.litert import CompiledModel, library, version
from delegate.backends.xnnpack.runtime.packed import PackedWeights, evict, get, put
from delegate.backends.xnnpack.runtime.packing import packing_key
from delegate.backends.xnnpack.runtime.verified import Graph
from delegate.backends.xnnpack.runtime.weights import Piece
from delegate.cache.environment import host_features
from delegate.program.segments import checksum

LEAST_HOLE = 1 << 16  # bytes of the smallest omitted weight, which covers whole pages
_READ = frozenset({"TRANSPOSE_CONV"})  # whose weights LiteRT reads though they are packed


class Shared:
    """A compiled model as an `Engine`.

    Args:
        model: without its weights.
        graph: the verified model.
        packed: its weights.
        threads: number of threads.
        dynamic: true if sizes change; then `resize` must come first.

    Raises:
        RuntimeError: LiteRT rejects the model; also raised by `run` and `resize`.
    """

    def __init__(self, model: ModelFile, graph: Graph, packed: PackedWeights, threads: int, dynamic: bool) -> None:
        self._packed = packed  # closes the file when the last reference is gone
        self._is_dynamic, self._dynamic = dynamic, [-1 in tensor.signature for tensor in graph.inputs]
        self._compiled = _compiled(model, graph, threads, packed.reader())
        if not dynamic:
            self._compiled.bind([tensor.shape for tensor in graph.inputs])
            if [x.shape for x in self.results] != [tensor.shape for tensor in graph.outputs]:
                raise RuntimeError("the model gives other sizes than it says")
        self.run = self._compiled.run

    @property
    def sources(self) -> Sequence[Any]:
        """The arrays to fill, in this thread."""
        if self._is_dynamic:
            self._compiled.move_to_thread()
        return self._compiled.sources

    @property
    def results(self) -> Sequence[Any]:
        """The arrays that are filled."""
        return self._compiled.results

    def look(self) -> None:
        """Do nothing, because results do not move."""

    def resize(self, shapes: Sequence[tuple[int, ...]]) -> None:
        """Resize the inputs."""
        self._compiled.resize(shapes, self._dynamic)

    def close(self) -> None:
        """Free the model."""
        self._compiled.close()


def share(
    model: ModelFile, graph: Graph, constants: Sequence[Piece], threads: int, *, dynamic: bool, on_disk: bool
) -> Shared | None:
    """Open a model that shares its packed weights, and pack them if necessary; return None if this is not possible.

    Args:
        model: without its constants.
        graph: the verified model.
        constants: of the model.
        threads: number of threads.
        dynamic: true if its sizes change.
        on_disk: true if the cache may hold the packed weights, for other processes.
    """
    if library() is None:
        return None
    packed_places = _packed_places(graph)
    holes = []
    for piece in constants:
        if piece.size >= LEAST_HOLE and (piece.start, piece.size) in packed_places:
            holes.append(piece)
        else:
            model.write(piece.start, piece.content())
    about = {"litert": version(), "host": host_features()}
    key = packing_key(graph, _contents(model, constants), about)
    try:
        packed = get(key, on_disk)
        if packed is None:
            packed = put(key, _pack(model, graph, holes, threads), on_disk)
        if _lacks_weights(model, graph, packed):
            evict(key, on_disk)
            return None
        shared = Shared(model, graph, packed, threads, dynamic)
    except RuntimeError:
        return None
    model.release(graph.weights)
    model.close()
    return shared


def _packed_places(graph: Graph) -> set[tuple[int, int]]:
    """Return the places of weights that XNNPACK reads in packed form only."""
    packed, read = set[tuple[int, int]](), set[tuple[int, int]]()
    for layer in graph.layers:
        weight = layer.inputs[1]
        if weight is not None:
            (read if layer.name in _READ else packed).add(weight.tensor.place)
    return packed.intersection(graph.weights) - read


def _lacks_weights(model: ModelFile, graph: Graph, packed: PackedWeights) -> bool:
    """Return true if packed weights lack some weights of a model."""
    outline = packed.outline()
    before = outline.header()
    _compiled(model, graph, 1, outline.writer()).close()
    return outline.header() != before


def _pack(model: ModelFile, graph: Graph, holes: Sequence[Piece], threads: int) -> PackedWeights:
    for piece in holes:
        model.write(piece.start, piece.content())
    packed = PackedWeights.empty()
    _compiled(model, graph, threads, packed.writer()).close()
    model.release((piece.start, piece.size) for piece in holes)
    return packed


def _compiled(model: ModelFile, graph: Graph, threads: int, packed: int) -> CompiledModel:
    dtypes = ([tensor.dtype for tensor in tensors] for tensors in (graph.inputs, graph.outputs))
    return CompiledModel(model.descriptor, threads, packed, *dtypes)


def _contents(model: ModelFile, constants: Sequence[Piece]) -> Callable[[tuple[int, int]], bytes]:
    known = {(p.start, p.size): checksum(p.stored) + repr(p.how).encode() for p in constants}
    return partial(_content, model.view, known)


def _content(view: memoryview, known: Mapping[tuple[int, int], bytes], place: tuple[int, int]) -> bytes:
    digest = known.get(place)
    return hashlib.sha256(view[place[0] : sum(place)]).digest() if digest is None else digest
