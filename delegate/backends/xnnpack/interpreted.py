"""LiteRT's interpreter, whose one operator is XNNPACK's: what runs models whose packed weights nobody shares."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from threading import Lock
from typing import Any

import numpy as np

from delegate.backends.xnnpack.info import INSTALL
from delegate.backends.xnnpack.model_file import ModelFile
from delegate.backends.xnnpack.quiet import make_first
from delegate.backends.xnnpack.taken import taken
from delegate.backends.xnnpack.verified import Graph
from delegate.errors import BackendFailed, BackendUnavailable

Array = np.ndarray[Any, np.dtype[Any]]


def litert() -> Any:
    """LiteRT's class of interpreters, imported; raises BackendUnavailable where the library is absent."""
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError as error:
        raise BackendUnavailable("backend xnnpack needs ai-edge-litert", where=str(error), remedy=INSTALL) from error
    with _FIRST:
        if not _MADE:
            make_first(partial(_first, Interpreter))
            _MADE.append(True)
    return Interpreter


_FIRST, _MADE = Lock(), list[bool]()


def _first(interpreter: Any, model: bytes) -> None:
    interpreter(model_content=model, num_threads=1)._interpreter.AllocateTensors()


def open_interpreter(model: bytes | ModelFile, num_threads: int) -> Any:
    """LiteRT's interpreter of a model; raises BackendUnavailable where the library is absent."""
    given = {"model_path": model.path} if isinstance(model, ModelFile) else {"model_content": model}
    try:
        return litert()(**given, num_threads=num_threads)
    except (ValueError, RuntimeError) as error:
        raise BackendFailed("LiteRT does not take the model", where=str(error)) from error


class Interpreted:
    """An interpreter as an `Engine`.

    The wrapper below LiteRT's Python class is called directly: that class looks for arrays that share the interpreter's
    memory before each call, and refuses to run while there are any. Here they are kept on purpose, and let go before
    memory is planned anew.

    Args:
        interpreter: LiteRT's.
        inputs, outputs: tensors of its model.
        dynamic: whether sizes change; then `resize` comes first.
    """

    def __init__(self, interpreter: Any, inputs: Sequence[int], outputs: Sequence[int], dynamic: bool) -> None:
        self._owner = interpreter  # keeps the model's bytes alive
        self._wrapper = interpreter._interpreter
        self._inputs, self._outputs, self._dynamic = tuple(inputs), tuple(outputs), dynamic
        self.sources: list[Any] = []
        self.results: list[Any] = []
        self._nodes = 0  # of the interpreter, where the model has let go of its weights
        self.run = self._wrapper.Invoke
        if not dynamic:
            self._bind()

    def _bind(self) -> None:
        """Plan memory for the current sizes and look at it as arrays."""
        self._wrapper.AllocateTensors()
        self.sources = [self._look(i) for i in self._inputs]
        self.look()

    def look(self) -> None:
        """Find the results: XNNPACK may move them when sizes change."""
        self.results = [self._look(i) for i in self._outputs]

    def release(self, model: ModelFile, graph: Graph) -> None:
        """Give back the memory of the model's weights, which XNNPACK has packed, if it has taken all operators."""
        if self._dynamic:
            self._wrapper.AllocateTensors()  # packs; what is resized later stays packed
        if len(taken(self._wrapper, graph.operators)) == graph.operators:
            model.release(graph.weights)
            self._nodes = self._wrapper.NumNodes()

    def _look(self, index: int) -> Any:
        """A tensor's memory; of one without dimensions LiteRT gives only a number, so that cannot be kept."""
        found = self._wrapper.tensor(self._wrapper, index)
        return found if isinstance(found, np.ndarray) else _Number(self._wrapper, index)

    def resize(self, shapes: Sequence[tuple[int, ...]]) -> None:
        """Have inputs of these sizes."""
        self.sources, self.results = [], []
        for index, shape in zip(self._inputs, shapes, strict=True):
            self._wrapper.ResizeInputTensor(index, np.array(shape, np.int32), False)
        self._bind()
        if self._nodes and self._nodes != self._wrapper.NumNodes():
            raise RuntimeError("LiteRT has given the model to XNNPACK anew, and its weights are gone")

    def close(self) -> None:
        """Let go of it."""
        self.sources, self.results = [], []
        self._wrapper = self._owner = self.run = None


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
