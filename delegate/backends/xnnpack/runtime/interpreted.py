"""LiteRT's interpreter, whose one operator is XNNPACK's, for models whose packed weights are not shared.

LiteRT silently runs rejected operators with slow kernels, so the AOT part counts the operators inside XNNPACK.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from delegate.backends.xnnpack.info import INSTALL
from delegate.errors import BackendFailed, BackendUnavailable

Array = np.ndarray[Any, np.dtype[Any]]


def litert() -> Any:
    """Import and return LiteRT's class of interpreters; raise BackendUnavailable if the library is absent."""
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError as error:
        raise BackendUnavailable("backend xnnpack needs ai-edge-litert", where=str(error), remedy=INSTALL) from error
    return Interpreter


def open_interpreter(model: bytes, num_threads: int) -> Any:
    """Open LiteRT's interpreter of a model; raise BackendUnavailable if the library is absent."""
    try:
        return litert()(model_content=model, num_threads=num_threads)
    except (ValueError, RuntimeError) as error:
        raise BackendFailed("LiteRT rejects the model", where=str(error)) from error


class ModelTensor(NamedTuple):
    """An input or output of a model.

    Args:
        shape: its sizes; for a dynamic one an example.
        signature: the same with -1 for dynamic ones.
        dtype: NumPy's type of its elements.
    """

    shape: tuple[int, ...]
    signature: tuple[int, ...]
    dtype: np.dtype[Any]


class Interpreted:
    """An interpreter as an `Engine`.

    The wrapper below LiteRT's Python class is called directly. The class refuses to run while arrays share the
    interpreter's memory. Here such arrays exist on purpose, and are released before memory is planned again.

    Args:
        interpreter: LiteRT's.
        dynamic: true if sizes change; then `resize` must come first.

    Attributes:
        inputs, outputs: the tensors of its model.
    """

    def __init__(self, interpreter: Any, dynamic: bool) -> None:
        self._owner = interpreter  # keeps the model's bytes alive
        self._wrapper = interpreter._interpreter
        self._inputs, self._outputs = self._wrapper.InputIndices(), self._wrapper.OutputIndices()
        self._dynamic = dynamic
        self.inputs, self.outputs = (
            tuple(map(self._describe_tensor, indices)) for indices in (self._inputs, self._outputs)
        )
        self.sources: list[Any] = []
        self._results: list[Any] = []
        self.run = self._wrapper.Invoke
        if not dynamic:
            self._bind()

    def _describe_tensor(self, index: int) -> ModelTensor:
        wrapper = self._wrapper
        shape, signature = (tuple(get(index, 0).tolist()) for get in (wrapper.TensorSize, wrapper.TensorSizeSignature))
        return ModelTensor(shape, signature or shape, np.dtype(wrapper.TensorType(index, 0)))

    def _bind(self) -> None:
        """Plan memory for the current sizes and view it as arrays."""
        self._wrapper.AllocateTensors()
        self.sources = [self._view_tensor(i) for i in self._inputs]
        if not self._dynamic:
            self._results = [self._view_tensor(i) for i in self._outputs]

    @property
    def results(self) -> list[Any]:
        """Return the arrays that the last run has filled: XNNPACK may move those of dynamic sizes."""
        return [self._view_tensor(i) for i in self._outputs] if self._dynamic else self._results

    def _view_tensor(self, index: int) -> Any:
        """Return a tensor's memory. LiteRT copies tensors without dimensions, so these need a wrapper."""
        tensor = self._wrapper.tensor(self._wrapper, index)
        return tensor if isinstance(tensor, np.ndarray) else _Number(self._wrapper, index)

    def resize(self, shapes: Sequence[tuple[int, ...]]) -> None:
        """Resize the inputs."""
        self.sources = []
        for index, shape in zip(self._inputs, shapes, strict=True):
            self._wrapper.ResizeInputTensor(index, np.array(shape, np.int32), False)
        self._bind()

    def end_run(self) -> None:
        """Do nothing, because the memory is the interpreter's own."""

    def close(self) -> None:
        """Release the interpreter."""
        self.sources, self._results = [], []
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


def find_covered_operators(wrapper: Any, count: int) -> set[int]:
    """Return the positions of the operators that run inside XNNPACK, from inputs to outputs of its delegate nodes.

    Args:
        wrapper: the object below LiteRT's class of interpreters, with its tensors allocated.
        count: number of operators in the model.
    """
    makers = {int(t): i for i in range(count) for t in wrapper.NodeOutputs(i)}
    covered: set[int] = set()
    for node in range(count, wrapper.NumNodes()):
        if wrapper.NodeName(node) == "DELEGATE":
            covered |= _operators_inside(wrapper, makers, node)
    return covered


def _operators_inside(wrapper: Any, makers: dict[int, int], delegate: int) -> set[int]:
    inputs = {int(t) for t in wrapper.NodeInputs(delegate)}
    stack = [int(t) for t in wrapper.NodeOutputs(delegate)]
    operators: set[int] = set()
    while stack:
        maker = makers.get(stack.pop())
        if maker is not None and maker not in operators:
            operators.add(maker)
            stack += [int(t) for t in wrapper.NodeInputs(maker) if int(t) not in inputs]
    return operators
