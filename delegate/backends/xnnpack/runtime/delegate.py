"""The runtime part of the backend: a LiteRT model per delegate, whose one operator is XNNPACK's."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, ClassVar

import numpy as np

from delegate.backends.xnnpack.runtime.interpreted import Interpreted, litert, open_interpreter
from delegate.backends.xnnpack.runtime.litert import CompiledModel, ModelFile, library
from delegate.backends.xnnpack.runtime.weights import Piece, assemble, pieces, split_at_constants
from delegate.errors import BackendFailed
from delegate.kernels.half_precision import from_bfloat16, from_float16, to_bfloat16
from delegate.program.cores import BackgroundCall, cores
from delegate.program.dtypes import DType
from delegate.program.source import release_pages
from delegate.runtime.backend import Array, BackendRuntime, Delegate, ReportOperator, TensorType

LARGE = 1 << 24  # bytes of a partition's constants from which a separate file and sharing pay off
MANY = 1 << 26  # bytes of constants of a large program, e.g. a language model with a partition per layer
LAYER = 1 << 20  # the same as LARGE, in such a program, or if sharing is requested
_DAMAGED = "the file is damaged: lower the program again"
_OTHER_SIZES = "call it with sizes that the model accepts; if it accepts these, the file is damaged: lower it again"


# Opens a model again, with a function that receives its operators; None if LiteRT reports none here.
Reopen = Callable[[ReportOperator], Delegate | None]


# An engine runs a model. Each of its methods raises ValueError or RuntimeError if LiteRT fails.
Engine = Interpreted | CompiledModel


class XnnpackDelegate(Delegate):
    """A delegate of one model with separate memory: inputs and outputs are copied.

    Args:
        engine: runs the model.
        specs: the compile specs.
        reopen: opens the model again with a function that receives its operators; None if that is not possible.
    """

    def __init__(self, engine: Engine, specs: Mapping[str, Any], reopen: Reopen | None = None) -> None:
        self._engine, self._dynamic, self._reopen = engine, specs["dynamic"], reopen
        self._types = [[DType[name] for name in names] for names in specs["types"]]  # of inputs, of outputs
        input_types, output_types = self._types
        self._input_conversions = tuple(_WIDE.get(t) for t in input_types)
        self._output_conversions = tuple(_ROUNDED.get(t) for t in output_types)
        self._shapes: tuple[tuple[int, ...], ...] = ()

    def prepare(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> None:
        input_types, output_types = self._types
        for what, tensors, known, types in (
            ("inputs", self._engine.inputs, input_types, inputs),
            ("outputs", self._engine.outputs, output_types, outputs),
        ):
            if not len(tensors) == len(known) == len(types):
                raise BackendFailed(f"it has {len(tensors)} {what}, but the program has {len(types)}", remedy=_DAMAGED)
            for tensor, expected, (shape, dtype) in zip(tensors, known, types, strict=True):
                own = tensor.signature if self._dynamic else tensor.shape
                fits = (
                    expected in _SUPPORTED[what]
                    and dtype == expected.numpy
                    and tensor.dtype == _INTEGERS.get(expected, np.float32)
                )
                if not fits or len(own) != len(shape) or any(map(_differ, own, shape)):
                    problem = (
                        f"the model's {what} are {expected.name}{list(own)}, but the program has {dtype}{list(shape)}"
                    )
                    raise BackendFailed(problem, remedy=_OTHER_SIZES if self._dynamic else _DAMAGED)

    def execute(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        engine = self._engine
        try:
            if self._dynamic:
                if not any(x.size for x in outputs):
                    return  # XNNPACK rejects some operators without elements
                shapes = tuple([x.shape for x in inputs])
                if shapes != self._shapes:
                    engine.resize(shapes)
                    self._shapes = shapes
            for own, array, convert in zip(engine.sources, inputs, self._input_conversions):  # noqa: B905 - `prepare` has counted them
                own[...] = array if convert is None else convert(array)
            engine.run()
            results = engine.results
            if self._dynamic and [x.shape for x in results] != [x.shape for x in outputs]:
                raise ValueError(f"it returns {[x.shape for x in results]}, not {[x.shape for x in outputs]}")
            for array, own, convert_back in zip(outputs, results, self._output_conversions):  # noqa: B905
                if convert_back is None:
                    array[...] = own
                else:
                    convert_back(np.asarray(own), array)
        except (ValueError, RuntimeError) as error:
            self._shapes = ()
            raise BackendFailed("XNNPACK failed at a partition", where=str(error)) from error
        finally:
            if self._dynamic:
                engine.end_run()

    def profiled(self, report: ReportOperator) -> Delegate | None:
        return None if self._reopen is None else self._reopen(report)

    def close(self) -> None:
        self._engine.close()


def _to_float16(values: Array, out: Array) -> None:
    with np.errstate(over="ignore"):  # large values become infinity
        out[...] = values


_WIDE: Mapping[DType, Callable[[Array], Array]] = {DType.float16: from_float16, DType.bfloat16: from_bfloat16}
_ROUNDED: Mapping[DType, Callable[[Array, Array], Any]] = {DType.float16: _to_float16, DType.bfloat16: to_bfloat16}
_FLOATS = frozenset({DType.float32, *_ROUNDED})
_INTEGERS = {t: t.numpy for t in (DType.int8, DType.uint8)}  # types that the model holds; all others become float32
_SUPPORTED = {
    "inputs": _FLOATS | {DType.bool, *_INTEGERS},
    "outputs": _FLOATS | _INTEGERS.keys(),
}  # booleans as 0 and 1


def _differ(own: int, size: int) -> bool:
    return own not in (-1, size)


class XnnpackRuntime(BackendRuntime):
    """The runtime part: it opens models that the AOT part has written."""

    load_options: ClassVar = {"threads": int, "weight_cache": bool}
    _is_large = False

    def expect(self, size: int) -> None:
        self._is_large = size >= MANY

    def init(self, blob: memoryview, compile_specs: Mapping[str, Any]) -> Delegate:
        return self.init_with_data(blob, (), compile_specs)

    def init_with_data(
        self, blob: memoryview, data: Sequence[memoryview], compile_specs: Mapping[str, Any]
    ) -> Delegate:
        try:
            constants = pieces(blob, compile_specs.get("weights", ()), data)
            reopen = partial(_create_profiled, blob, constants, compile_specs)
            is_requested = compile_specs.get("weight_cache", False)
            if sum(piece.size for piece in constants) >= (LAYER if self._is_large or is_requested else LARGE):
                with suppress(OSError):  # there are no files in memory here
                    return _large(blob, constants, compile_specs, reopen)
            # Copying releases Python's lock, so LiteRT is imported in parallel.
            assembly = BackgroundCall(partial(assemble, blob, constants))
            litert()
            model = assembly.result()
        except (ValueError, LookupError, TypeError, struct.error) as error:
            problem = "the model was not written by this backend"
            raise BackendFailed(problem, where=str(error), remedy=_DAMAGED) from error
        with _prepare():
            return XnnpackDelegate(_interpret(model, compile_specs), compile_specs, reopen)


@contextmanager
def _prepare() -> Iterator[None]:
    """Raise BackendFailed for errors of LiteRT, and for specs that do not fit the model."""
    try:
        yield
    except (LookupError, TypeError, ValueError, RuntimeError) as error:
        raise BackendFailed("LiteRT cannot prepare the model", where=str(error)) from error


def _create_profiled(
    blob: memoryview, constants: Sequence[Piece], specs: Mapping[str, Any], report: ReportOperator
) -> Delegate | None:
    """Create a delegate that reports XNNPACK's operators; return None if LiteRT reports none here."""
    if sys.platform != "linux" or library() is None:
        return None
    from delegate.backends.xnnpack.runtime.graph import Graph  # small models need it only here

    content = memoryview(assemble(blob, constants))
    model = ModelFile(content.nbytes)
    try:
        model.write(0, content)
        graph = Graph(content)
        with _prepare():
            engine = CompiledModel(model.descriptor, graph.inputs, graph.outputs, _threads(specs), report=report)
            return XnnpackDelegate(engine.bind(specs["dynamic"]), specs)
    finally:
        model.close()


def _large(blob: memoryview, constants: Sequence[Piece], specs: Mapping[str, Any], reopen: Reopen) -> Delegate:
    """Create a delegate of a model in a file, which has no weights if it shares packed ones."""
    model = ModelFile(blob.nbytes + sum(piece.size for piece in constants))
    try:
        for start, rest in split_at_constants(blob, constants):
            model.write(start, rest)
        with _prepare():
            return XnnpackDelegate(_share(model, constants, specs), specs, reopen)
    except BaseException:
        model.close()
        raise
    finally:
        release_pages(blob)  # and the whole program file, whose pages count as this process's memory


def _share(model: ModelFile, constants: Sequence[Piece], specs: Mapping[str, Any]) -> Engine:
    if sys.platform == "linux":
        from delegate.backends.xnnpack.runtime.sharing import share  # small models need none of it

        on_disk = specs.get("weight_cache", True)
        engine = share(model, constants, _threads(specs), dynamic=specs["dynamic"], on_disk=on_disk)
        if engine is not None:
            return engine
    for piece in constants:
        model.write(piece.start, piece.content())
    content = bytes(model.view)
    model.close()
    return _interpret(content, specs)


def _interpret(model: bytes, specs: Mapping[str, Any]) -> Engine:
    return Interpreted(open_interpreter(model, _threads(specs)), specs["dynamic"])


def _threads(specs: Mapping[str, Any]) -> int:
    return min(specs.get("threads") or cores(), cores())
