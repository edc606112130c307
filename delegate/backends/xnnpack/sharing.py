"""Models of many weights, whose packed form is one file for all that have the same: methods, contexts, processes.

XNNPACK finds its packed weights there and never reads the model's own, so these need not be there: the model is a file
of zeros in their place. Were anything missing, XNNPACK would pack zeros without a word. So each model is rehearsed
first, with an outline of the file, in which XNNPACK notes what it has missed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from delegate.backends.xnnpack.litert import CompiledModel, library, version
from delegate.backends.xnnpack.model_file import ModelFile
from delegate.backends.xnnpack.packed import PackedWeights, find, forget, keep
from delegate.backends.xnnpack.packing import packing_key
from delegate.backends.xnnpack.verified import Graph
from delegate.backends.xnnpack.weights import Piece
from delegate.cache.environment import host_features
from delegate.program.segments import checksum

LEAST_HOLE = 1 << 16  # bytes of a weight that is left out: whole pages lie in it
_READ = frozenset({"TRANSPOSE_CONV"})  # whose weights LiteRT reads though they are packed


class Shared:
    """A compiled model as an `Engine`.

    Args:
        model: without its weights.
        graph: it, verified.
        packed: its weights.
        threads: to run with.
        dynamic: whether sizes change; then `resize` comes first.

    Raises:
        RuntimeError: LiteRT does not take it; by `run` and `resize` too.
    """

    def __init__(self, model: ModelFile, graph: Graph, packed: PackedWeights, threads: int, dynamic: bool) -> None:
        self._packed = packed  # its file goes with the last of them
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
            self._compiled.here()
        return self._compiled.sources

    @property
    def results(self) -> Sequence[Any]:
        """The arrays that are filled."""
        return self._compiled.results

    def look(self) -> None:
        """Nothing: results stay where they are."""

    def resize(self, shapes: Sequence[tuple[int, ...]]) -> None:
        """Have inputs of these sizes."""
        self._compiled.resize(shapes, self._dynamic)

    def close(self) -> None:
        """Free it."""
        self._compiled.close()


def share(
    model: ModelFile, graph: Graph, found: Sequence[Piece], threads: int, *, dynamic: bool, on_disk: bool
) -> Shared | None:
    """A model that shares its packed weights, packed now if they never were; None where that cannot be.

    Args:
        model: without its constants.
        graph: it, verified.
        found: its constants.
        threads: to run with.
        dynamic: whether its sizes change.
        on_disk: whether the cache may hold what is packed, for other processes.
    """
    if library() is None:
        return None
    looked_up = _looked_up(graph)
    holes = []
    for piece in found:
        if piece.size >= LEAST_HOLE and (piece.start, piece.size) in looked_up:
            holes.append(piece)
        else:
            model.write(piece.start, piece.content())
    about = {"litert": version(), "host": host_features()}
    key = packing_key(graph, _contents(model, found), about)
    try:
        packed = find(key, on_disk)
        if packed is None:
            packed = keep(key, _pack(model, graph, holes, threads), on_disk)
        if _misses(model, graph, packed):
            forget(key, on_disk)
            return None
        made = Shared(model, graph, packed, threads, dynamic)
    except RuntimeError:
        return None
    model.release(graph.weights)
    model.close()
    return made


def _looked_up(graph: Graph) -> set[tuple[int, int]]:
    """Where weights lie that XNNPACK finds packed, and nothing reads."""
    found, read = set[tuple[int, int]](), set[tuple[int, int]]()
    for layer in graph.layers:
        weight = layer.inputs[1]
        if weight is not None:
            (read if layer.name in _READ else found).add(weight.tensor.place)
    return found.intersection(graph.weights) - read


def _misses(model: ModelFile, graph: Graph, packed: PackedWeights) -> bool:
    """Whether XNNPACK does not find there all weights of a model."""
    outline = packed.outline()
    before = outline.begins()
    _compiled(model, graph, 1, outline.writer()).close()
    return outline.begins() != before


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


def _contents(model: ModelFile, found: Sequence[Piece]) -> Callable[[tuple[int, int]], bytes]:
    known = {(p.start, p.size): checksum(p.stored) + repr(p.how).encode() for p in found}
    return partial(_content, model.view, known)


def _content(view: memoryview, known: Mapping[tuple[int, int], bytes], place: tuple[int, int]) -> bytes:
    digest = known.get(place)
    return hashlib.sha256(view[place[0] : sum(place)]).digest() if digest is None else digest
