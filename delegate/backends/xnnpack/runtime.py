"""The runtime half: a LiteRT model per delegate, whose one operator is XNNPACK's."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, Protocol

import numpy as np

from delegate.backends.xnnpack.interpreted import Interpreted, litert, open_interpreter
from delegate.backends.xnnpack.model_file import ModelFile
from delegate.backends.xnnpack.verified import Graph
from delegate.backends.xnnpack.verifier import verify
from delegate.backends.xnnpack.weights import Piece, between, pieces, put_together
from delegate.errors import BackendFailed
from delegate.kernels.half_precision import from_bfloat16, from_float16, to_bfloat16
from delegate.program.dtypes import DType
from delegate.program.source import release_pages
from delegate.program.task import Task, cores
from delegate.runtime.backend import Array, BackendRuntime, Delegate, TensorType

LARGE = 1 << 24  # bytes of a partition's constants that are worth a file of their own, and sharing
MANY = 1 << 26  # bytes of a program's, such as a language model's, of which every layer is a partition
LAYER = 1 << 20  # that are worth it in such a program
_DAMAGED = "the file is damaged: lower the program again"


class Engine(Protocol):
    """What runs a model. Every method raises ValueError or RuntimeError where LiteRT fails.

    Attributes:
        sources: arrays to fill before a run.
        results: arrays that a run has filled.
        run: runs it.
    """

    @property
    def sources(self) -> Sequence[Any]: ...

    @property
    def results(self) -> Sequence[Any]: ...

    @property
    def run(self) -> Callable[[], object]: ...

    def resize(self, shapes: Sequence[tuple[int, ...]]) -> None:
        """Have inputs of these sizes; all arrays are others then."""

    def look(self) -> None:
        """Find the results of the run before, of a model whose sizes change."""

    def close(self) -> None:
        """Free it."""


class XnnpackDelegate(Delegate):
    """One model; its memory is its own, inputs are copied in and outputs out."""

    def __init__(self, engine: Engine, graph: Graph, specs: Mapping[str, Any]) -> None:
        self._engine, self._dynamic = engine, specs["dynamic"]
        self._tensors = graph.inputs, graph.outputs  # the rest of it has the scales of all weights
        self._types = _types(specs)
        taken, given = self._types
        self._takes = tuple(_WIDE.get(t) for t in taken)
        self._gives = tuple(_ROUNDED.get(t) for t in given)
        self._shapes: tuple[tuple[int, ...], ...] = ()

    def prepare(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> None:
        taken, made = self._types
        for what, tensors, known, types in (
            ("inputs", self._tensors[0], taken, inputs),
            ("outputs", self._tensors[1], made, outputs),
        ):
            if not len(tensors) == len(known) == len(types):
                raise BackendFailed(f"it has {len(tensors)} {what}, and the program {len(types)}", remedy=_DAMAGED)
            for tensor, wanted, (shape, dtype) in zip(tensors, known, types, strict=True):
                own = tensor.signature if self._dynamic else tensor.shape
                fits = (
                    wanted in _TAKEN[what] and dtype == wanted.numpy and tensor.dtype == _HELD.get(wanted, np.float32)
                )
                if not fits or len(own) != len(shape) or any(map(_differ, own, shape)):
                    problem = (
                        f"the model's {what} are {wanted.name}{list(own)}, where the program has {dtype}{list(shape)}"
                    )
                    raise BackendFailed(problem, remedy=_DAMAGED)

    def execute(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        engine = self._engine
        try:
            if self._dynamic:
                if not any(x.size for x in outputs):
                    return  # XNNPACK refuses some operators where there is nothing to compute
                shapes = tuple([x.shape for x in inputs])
                if shapes != self._shapes:
                    engine.resize(shapes)
                    self._shapes = shapes
            for own, given, take in zip(engine.sources, inputs, self._takes):  # noqa: B905 - `prepare` has counted them
                own[...] = given if take is None else take(given)
            engine.run()
            if self._dynamic:
                engine.look()
                if [x.shape for x in engine.results] != [x.shape for x in outputs]:
                    raise ValueError(f"it gives {[x.shape for x in engine.results]}, not {[x.shape for x in outputs]}")
            for given, own, give in zip(outputs, engine.results, self._gives):  # noqa: B905
                if give is None:
                    given[...] = own
                else:
                    give(np.asarray(own), given)
        except (ValueError, RuntimeError) as error:
            self._shapes = ()
            raise BackendFailed("XNNPACK failed at a partition", where=str(error)) from error

    def close(self) -> None:
        self._engine.close()


def _types(specs: Mapping[str, Any]) -> list[list[DType]]:
    """The dtypes of what a partition takes and gives."""
    floats = (["float32"] * len(specs["inputs"]), ["float32"] * len(specs["outputs"]))  # in files of format 3
    return [[DType[name] for name in names] for names in specs.get("types", floats)]


def _to_float16(values: Array, out: Array) -> None:
    with np.errstate(over="ignore"):  # what is too large becomes infinity
        out[...] = values


_WIDE: Mapping[DType, Callable[[Array], Array]] = {DType.float16: from_float16, DType.bfloat16: from_bfloat16}
_ROUNDED: Mapping[DType, Callable[[Array, Array], Any]] = {DType.float16: _to_float16, DType.bfloat16: to_bfloat16}
_FLOATS = frozenset({DType.float32, *_ROUNDED})
_HELD = {t: t.numpy for t in (DType.int8, DType.uint8)}  # what the model holds as it is; all else in float32
_TAKEN = {"inputs": _FLOATS | {DType.bool, *_HELD}, "outputs": _FLOATS | _HELD.keys()}  # truth values as 0 and 1


def _differ(own: int, given: int) -> bool:
    return own not in (-1, given)


class XnnpackRuntime(BackendRuntime):
    """Opens models that the AOT half made."""

    load_options: ClassVar = {"threads": int, "weight_cache": bool}
    _of_many = False

    def expect(self, size: int) -> None:
        self._of_many = size >= MANY

    def init(self, blob: memoryview, compile_specs: Mapping[str, Any]) -> Delegate:
        return self.init_with_data(blob, (), compile_specs)

    def init_with_data(
        self, blob: memoryview, data: Sequence[memoryview], compile_specs: Mapping[str, Any]
    ) -> Delegate:
        try:
            found = pieces(blob, compile_specs.get("weights", ()), data)
            if sum(piece.size for piece in found) >= (LAYER if self._of_many else LARGE):
                with suppress(OSError):  # there are no files in memory here
                    return _large(blob, found, compile_specs)
            # Copying does not hold Python's lock: meanwhile LiteRT is imported.
            whole = Task(partial(put_together, blob, found))
            litert()
            model = whole.result()
            graph = verify(memoryview(model), compile_specs["inputs"], compile_specs["outputs"])
        except (ValueError, LookupError, TypeError) as error:
            raise _foreign(error) from error
        return _made(partial(_interpreted, model), graph, compile_specs)


def _large(blob: memoryview, found: Sequence[Piece], specs: Mapping[str, Any]) -> Delegate:
    """A delegate of a model that is a file; its weights are not there where it shares packed ones."""
    model = ModelFile(blob.nbytes + sum(piece.size for piece in found))
    try:
        for start, rest in between(blob, found):
            model.write(start, rest)
        graph = verify(model.view, specs["inputs"], specs["outputs"], [(p.start, p.size) for p in found])
        return _made(partial(_shared, model, found), graph, specs)
    except BaseException:
        model.close()
        raise
    finally:
        release_pages(blob)  # and with it the whole program file, whose pages count as this process's memory


def _shared(model: ModelFile, found: Sequence[Piece], graph: Graph, specs: Mapping[str, Any]) -> Engine:
    if sys.platform == "linux":
        from delegate.backends.xnnpack.sharing import share  # small models need none of it

        on_disk = specs.get("weight_cache", True)
        engine = share(model, graph, found, _threads(specs), dynamic=specs["dynamic"], on_disk=on_disk)
        if engine is not None:
            return engine
    for piece in found:
        model.write(piece.start, piece.content())
    return _interpreted(model, graph, specs)


def _interpreted(model: bytes | ModelFile, graph: Graph, specs: Mapping[str, Any]) -> Engine:
    interpreter = open_interpreter(model, _threads(specs))
    engine = Interpreted(interpreter, specs["inputs"], specs["outputs"], specs["dynamic"])
    if isinstance(model, ModelFile):
        engine.release(model, graph)
        model.close()
    return engine


def _threads(specs: Mapping[str, Any]) -> int:
    return min(specs.get("threads") or cores(), cores())


def _made(
    make: Callable[[Graph, Mapping[str, Any]], Engine], graph: Graph, specs: Mapping[str, Any]
) -> XnnpackDelegate:
    try:
        return XnnpackDelegate(make(graph, specs), graph, specs)
    except (LookupError, TypeError, ValueError, RuntimeError) as error:
        raise BackendFailed("LiteRT cannot prepare the model", where=str(error)) from error


def _foreign(error: Exception) -> BackendFailed:
    return BackendFailed("the model is not as this backend writes them", where=str(error), remedy=_DAMAGED)
