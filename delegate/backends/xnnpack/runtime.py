"""The runtime half: a LiteRT interpreter per delegate, whose one operator is XNNPACK's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import Lock
from typing import Any, ClassVar

import numpy as np

from delegate.backends.xnnpack.info import INSTALL, threads
from delegate.backends.xnnpack.model_file import ModelFile
from delegate.backends.xnnpack.quiet import make_first
from delegate.backends.xnnpack.taken import taken
from delegate.backends.xnnpack.verifier import Graph, verify
from delegate.backends.xnnpack.weights import put_together
from delegate.errors import BackendFailed, BackendUnavailable
from delegate.kernels.halves import from_bfloat16, from_float16, to_bfloat16
from delegate.program.dtypes import DType
from delegate.program.task import Task
from delegate.runtime.backend import Array, BackendRuntime, Delegate, TensorType

_DAMAGED = "the file is damaged: lower the program again"


def litert() -> Any:
    """LiteRT's class of interpreters, imported; raises BackendUnavailable where the library is absent."""
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError as error:
        raise BackendUnavailable("backend xnnpack needs ai-edge-litert", where=str(error), remedy=INSTALL) from error
    with _FIRST:
        if not _MADE:
            make_first(Interpreter)
            _MADE.append(True)
    return Interpreter


_FIRST, _MADE = Lock(), list[bool]()


def open_interpreter(model: bytes | ModelFile, num_threads: int) -> Any:
    """LiteRT's interpreter of a model; raises BackendUnavailable where the library is absent."""
    given = {"model_path": model.path} if isinstance(model, ModelFile) else {"model_content": model}
    try:
        return litert()(**given, num_threads=num_threads)
    except (ValueError, RuntimeError) as error:
        raise BackendFailed("LiteRT does not take the model", where=str(error)) from error


class XnnpackDelegate(Delegate):
    """One interpreter; its memory is its own, inputs are copied in and outputs out.

    The wrapper below LiteRT's Python class is called directly: that class looks for arrays that share the interpreter's
    memory before each call, and refuses to run while there are any. Here they are kept on purpose, and let go before
    memory is planned anew.
    """

    def __init__(self, interpreter: Any, graph: Graph, specs: Mapping[str, Any]) -> None:
        self._owner = interpreter  # keeps the model's bytes alive
        self._wrapper = interpreter._interpreter
        self._graph, self._dynamic = graph, specs["dynamic"]
        self._inputs, self._outputs = tuple(specs["inputs"]), tuple(specs["outputs"])
        floats = (["float32"] * len(self._inputs), ["float32"] * len(self._outputs))  # in files of format 3
        self._types = [[DType[name] for name in names] for names in specs.get("types", floats)]
        taken, given = self._types
        self._takes = tuple(_WIDE.get(t) for t in taken)
        self._gives = tuple(_ROUNDED.get(t) for t in given)
        self._shapes: tuple[tuple[int, ...], ...] = ()
        self._sources: list[Array] = []
        self._results: list[Array] = []
        self._nodes = 0  # of the interpreter, where the model has let go of its weights
        if not self._dynamic:
            self._bind()

    def _bind(self) -> None:
        """Plan memory for the current sizes and look at it as arrays."""
        self._wrapper.AllocateTensors()
        self._sources = [self._look(i) for i in self._inputs]
        self._results = [self._look(i) for i in self._outputs]

    def release(self, model: ModelFile) -> None:
        """Give back the memory of the model's weights, which XNNPACK has packed, if it has taken all operators."""
        if self._dynamic:
            self._wrapper.AllocateTensors()  # packs; what is resized later stays packed
        if len(taken(self._wrapper, self._graph.operators)) == self._graph.operators:
            model.release(self._graph.weights)
            self._nodes = self._wrapper.NumNodes()

    def _look(self, index: int) -> Any:
        """A tensor's memory; of one without dimensions LiteRT gives only a number, so that cannot be kept."""
        found = self._wrapper.tensor(self._wrapper, index)
        return found if isinstance(found, np.ndarray) else _Number(self._wrapper, index)

    def _resize(self, shapes: tuple[tuple[int, ...], ...]) -> None:
        self._sources, self._results, self._shapes = [], [], ()
        for index, shape in zip(self._inputs, shapes, strict=True):
            self._wrapper.ResizeInputTensor(index, np.array(shape, np.int32), False)
        self._bind()
        if self._nodes and self._nodes != self._wrapper.NumNodes():
            raise RuntimeError("LiteRT has given the model to XNNPACK anew, and its weights are gone")
        self._shapes = shapes

    def prepare(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> None:
        taken, made = self._types
        for what, tensors, known, types in (
            ("inputs", self._graph.inputs, taken, inputs),
            ("outputs", self._graph.outputs, made, outputs),
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
        try:
            if self._dynamic:
                if not any(x.size for x in outputs):
                    return  # XNNPACK refuses some operators where there is nothing to compute
                shapes = tuple([x.shape for x in inputs])
                if shapes != self._shapes:
                    self._resize(shapes)
            for own, given, take in zip(self._sources, inputs, self._takes):  # noqa: B905 - `prepare` has counted them
                own[...] = given if take is None else take(given)
            self._wrapper.Invoke()
            if self._dynamic:  # XNNPACK may move its outputs when sizes change
                self._results = [self._look(i) for i in self._outputs]
                if [x.shape for x in self._results] != [x.shape for x in outputs]:
                    raise ValueError(f"it gives {[x.shape for x in self._results]}, not {[x.shape for x in outputs]}")
            for given, own, give in zip(outputs, self._results, self._gives):  # noqa: B905
                if give is None:
                    given[...] = own
                else:
                    give(np.asarray(own), given)
        except (ValueError, RuntimeError) as error:
            self._shapes = ()
            raise BackendFailed("XNNPACK failed at a partition", where=str(error)) from error

    def close(self) -> None:
        self._sources, self._results = [], []
        self._wrapper = self._owner = None


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


class _Number:
    """A tensor without dimensions, as the delegate uses arrays: filled by `x[...] = value`, read as an array."""

    shape = ()

    def __init__(self, wrapper: Any, index: int) -> None:
        self._wrapper, self._index = wrapper, index
        self._dtype = np.asarray(wrapper.GetTensor(index, 0)).dtype

    def __setitem__(self, key: Any, value: Array) -> None:
        self._wrapper.SetTensor(self._index, np.asarray(value, self._dtype))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self._wrapper.GetTensor(self._index, 0), dtype)


class XnnpackRuntime(BackendRuntime):
    """Opens models that the AOT half made."""

    load_options: ClassVar = {"threads": int}

    def init(self, blob: memoryview, compile_specs: Mapping[str, Any]) -> Delegate:
        return self.init_with_data(blob, (), compile_specs)

    def init_with_data(
        self, blob: memoryview, data: Sequence[memoryview], compile_specs: Mapping[str, Any]
    ) -> Delegate:
        # Copying does not hold Python's lock: meanwhile LiteRT is imported.
        whole = Task(partial(put_together, blob, compile_specs.get("weights", ()), data))
        litert()
        try:
            model = whole.result()
        except (ValueError, LookupError, TypeError) as error:
            raise _foreign(error) from error
        if isinstance(model, bytes):
            return _delegate(model, memoryview(model), compile_specs)
        try:
            return _delegate(model, model.view, compile_specs)
        finally:
            model.close()


def _delegate(model: bytes | ModelFile, view: memoryview, specs: Mapping[str, Any]) -> XnnpackDelegate:
    try:
        graph = verify(view, specs["inputs"], specs["outputs"])
    except (ValueError, LookupError, TypeError) as error:
        raise _foreign(error) from error
    interpreter = open_interpreter(model, min(specs.get("threads") or threads(), threads()))
    try:
        made = XnnpackDelegate(interpreter, graph, specs)
        if isinstance(model, ModelFile):
            made.release(model)
    except (LookupError, TypeError, ValueError, RuntimeError) as error:
        raise BackendFailed("LiteRT cannot prepare the model", where=str(error)) from error
    return made


def _foreign(error: Exception) -> BackendFailed:
    return BackendFailed("the model is not as this backend writes them", where=str(error), remedy=_DAMAGED)
