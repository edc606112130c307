"""The runtime half: a LiteRT interpreter per delegate, whose one operator is XNNPACK's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from delegate.backends.xnnpack.info import INSTALL, threads
from delegate.errors import BackendFailed, BackendUnavailable
from delegate.runtime.backend import Array, BackendRuntime, Delegate


def open_interpreter(model: bytes, num_threads: int) -> Any:
    """LiteRT's interpreter wrapper of a model; raises BackendUnavailable where the library is absent."""
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError as error:
        raise BackendUnavailable("backend xnnpack needs ai-edge-litert", where=str(error), remedy=INSTALL) from error
    try:
        return Interpreter(model_content=model, num_threads=num_threads)
    except (ValueError, RuntimeError) as error:
        raise BackendFailed("LiteRT does not take the model", where=str(error)) from error


class XnnpackDelegate(Delegate):
    """One interpreter; buffers are its own, inputs are copied in and outputs out."""

    def __init__(self, interpreter: Any, inputs: Sequence[int], outputs: Sequence[int], dynamic: bool) -> None:
        self._owner = interpreter  # keeps the model's bytes alive
        self._wrapper = interpreter._interpreter
        self._inputs, self._outputs, self._dynamic = tuple(inputs), tuple(outputs), dynamic
        self._shapes: tuple[tuple[int, ...], ...] = ()
        self._sources: list[Array] = []
        self._results: list[Array] = []
        if not dynamic:
            self._bind()

    def _bind(self) -> None:
        """Plan memory for the current sizes and look at its inputs and outputs as arrays."""
        wrapper = self._wrapper
        wrapper.AllocateTensors()
        self._sources = [wrapper.tensor(wrapper, i) for i in self._inputs]
        self._results = [wrapper.tensor(wrapper, i) for i in self._outputs]

    def _resize(self, shapes: tuple[tuple[int, ...], ...]) -> None:
        self._sources, self._results, self._shapes = [], [], ()
        for index, shape in zip(self._inputs, shapes, strict=True):
            self._wrapper.ResizeInputTensor(index, np.array(shape, np.int32), False)
        self._bind()
        self._shapes = shapes

    def execute(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        try:
            if self._dynamic:
                shapes = tuple([x.shape for x in inputs])
                if shapes != self._shapes:
                    self._resize(shapes)
            for own, given in zip(self._sources, inputs, strict=False):
                own[...] = given
            self._wrapper.Invoke()
            if self._dynamic:  # XNNPACK moves its outputs when sizes change
                self._results = [self._wrapper.tensor(self._wrapper, i) for i in self._outputs]
            for given, own in zip(outputs, self._results, strict=False):
                given[...] = own
        except (ValueError, RuntimeError) as error:
            self._shapes = ()
            raise BackendFailed("XNNPACK failed at a partition", where=str(error)) from error

    def close(self) -> None:
        self._sources, self._results = [], []
        self._wrapper = self._owner = None


class XnnpackRuntime(BackendRuntime):
    """Opens models that the AOT half made."""

    def init(self, blob: memoryview, compile_specs: Mapping[str, Any]) -> Delegate:
        interpreter = open_interpreter(bytes(blob), compile_specs.get("threads") or threads())
        try:
            return XnnpackDelegate(
                interpreter, compile_specs["inputs"], compile_specs["outputs"], compile_specs["dynamic"]
            )
        except (ValueError, RuntimeError) as error:
            raise BackendFailed("LiteRT cannot prepare the model", where=str(error)) from error
