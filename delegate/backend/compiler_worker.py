"""The questions to a compiler in a separate process, which creates AOT parts. `compiler_process` is the other side."""

from __future__ import annotations

import contextlib
import importlib
import mmap
import os
import pickle
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from torch.fx import Node

from delegate.backend.aot import PreprocessResult, Region
from delegate.backend.compiler_process import AotPart
from delegate.backend.selected import SelectedBackend
from delegate.backend.state import BackendState
from delegate.backend.transfer import (
    MAKE,
    SENT_ERRORS,
    encode_error,
    encode_support,
    unpack_graph,
    unpack_region,
)
from delegate.edge.node import dtype_of, size, tensors
from delegate.errors import BackendBroken
from delegate.plugins import AUTHOR, PluginState, load_object, one_line
from delegate.processes.answering import Questions
from delegate.processes.channel import map_shared
from delegate.runtime.backend import TensorType
from delegate.runtime.delegates import open_blob

_MOST_BACKENDS = 8  # AOT parts that are kept; one that is queried later is made again


def questions(*paths: str) -> Questions:
    """Return the one question, whose first answer is facts about the AOT part, then one about each name.

    Args:
        paths: AOT parts to import first, since the parent has other work meanwhile.
    """
    for path in paths:
        with contextlib.suppress(Exception, SystemExit):  # the query reports it
            load_object(path)
    backends = _Backends()
    return {"query": partial(_answers, backends)}


class _Query(NamedTuple):
    """A query.

    Args:
        part: the AOT part.
        names: The subject's nodes, each of which gets an answer.
        table, buffers: the subject, packed.
        out: descriptor of the file for bytes of the answer.
    """

    part: AotPart
    names: list[str]
    table: memoryview
    buffers: list[memoryview]
    out: int


class _Backends:
    """The AOT parts that were queried last."""

    def __init__(self) -> None:
        self._made: OrderedDict[int, SelectedBackend] = OrderedDict()

    def get(self, part: AotPart) -> SelectedBackend:
        """Return an AOT part, which is made if need be; raises DelegateError for a fault of it."""
        if part.number not in self._made:
            try:
                found: Any = load_object(part.path)
                given = found.Options.model_validate_json(part.options, strict=True)
            except (Exception, SystemExit) as error:
                what = f"the AOT part of backend {part.name!r} cannot be imported by another process: {one_line(error)}"
                raise BackendBroken(what, where=part.path, remedy=AUTHOR) from error
            self._made[part.number] = SelectedBackend(part.name, found, given)
        self._made.move_to_end(part.number)
        if len(self._made) > _MOST_BACKENDS:
            self._made.popitem(last=False)
        return self._made[part.number]


def _answers(backends: _Backends, request: Mapping[str, Any], files: Sequence[int]) -> Iterator[Mapping[str, Any]]:
    """Yield the answers to one query: facts about the AOT part, then about each name."""
    subject, out = files
    try:
        _enter(request)
        table, *buffers = map_shared(subject, request["sizes"], mmap.ACCESS_COPY)
        query = _Query(AotPart(**request["part"]), request["names"], table, buffers, out)
        try:
            backend = backends.get(query.part)
        except SENT_ERRORS as error:
            yield encode_error(error)
            return
        question = request["question"]
        try:
            answer = _QUESTIONS[question](backend, query)
        except Exception as error:  # a graph with an operator, or an object, that only the parent has
            yield {"unreadable": one_line(error)}
            return
        yield {"answer": {"preserve_ops": sorted(backend.preserve_ops), "most_constants": backend.most_constants}}
        for name in () if question == MAKE else query.names:
            try:
                yield {"answer": answer(name)}
            except SENT_ERRORS as error:
                yield encode_error(error)
    finally:
        os.close(out)


def _enter(request: Mapping[str, Any]) -> None:
    """Set the environment, the search path and the folder as the parent had them at the time of the query."""
    environment = request["environment"]
    for variable in os.environ.keys() - environment.keys():
        del os.environ[variable]
    for variable, value in environment.items():
        if os.environ.get(variable) != value:
            os.environ[variable] = value
    if sys.path != request["search_path"]:
        sys.path[:] = request["search_path"]
        importlib.invalidate_caches()
    with contextlib.suppress(OSError, TypeError):
        os.chdir(request["folder"])


def _check(backend: SelectedBackend, query: _Query) -> Callable[[str], Any]:
    """Return what answers with the verdict on a node, and the pattern matches around it."""
    nodes = {node.name: node for node in unpack_graph(query.table, query.buffers).nodes}
    return lambda name: encode_support(backend.check(nodes[name]), backend.claims(nodes[name]))


def _identity(backend: SelectedBackend, query: _Query) -> Callable[[str], Any]:
    owner, availability = pickle.loads(query.table)
    state = BackendState(query.part.name, PluginState.OK, owner, "", availability=availability)
    return lambda _: {"text": backend.identity(state)}


def _preprocess(backend: SelectedBackend, query: _Query) -> Callable[[str], Any]:
    region = unpack_region(query.table, query.buffers)

    def compile_region(_: str) -> dict[str, Any]:
        result = backend.preprocess(region)
        if query.part.runtime:
            _try(backend, query.part.runtime, region, result)
        about, parts = result.to_data()
        with open(query.out, "r+b", closefd=False) as file:
            for part in parts:
                file.write(part)
        return {"about": about, "sizes": [memoryview(part).nbytes for part in parts]}

    return compile_region


def _try(backend: SelectedBackend, runtime: str, region: Region, result: PreprocessResult) -> None:
    """Check and open an artifact as later processes will, and close it.

    An exception is not a fault here: a check that fails is a miss of the cache, and kernels replace what cannot be
    opened.
    """
    with contextlib.suppress(Exception, SystemExit):
        backend.check_artifact(region, result)
    with contextlib.suppress(Exception, SystemExit):
        created: Any = load_object(runtime)
        blob, *data = (memoryview(part) for part in (result.blob, *result.data))
        with contextlib.closing(open_blob(created(), blob, data, result.compile_specs, trust_code=True)) as delegate:
            delegate.prepare(_types(region.inputs), _types(region.outputs))


def _types(nodes: Iterable[Node]) -> list[TensorType]:
    """Return the sizes at the export, and the dtypes, of nodes with one result each."""
    types = []
    for node in nodes:
        (value,) = tensors(node)
        dtype = dtype_of(value.dtype)
        assert dtype is not None  # of an input or a result of a partition
        types.append(TensorType(tuple(map(size, value.shape)), dtype.numpy))
    return types


# Each reads its subject, and returns what answers about a node by its name.
_QUESTIONS: Mapping[str, Callable[[SelectedBackend, _Query], Callable[[str], Any]]] = {
    MAKE: lambda *_: lambda _: None,
    "identity": _identity,
    "check": _check,
    "preprocess": _preprocess,
}
