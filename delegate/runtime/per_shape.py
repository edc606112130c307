"""A delegate that compiles for each combination of input shapes, and caches the compiled functions."""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from delegate.runtime.backend import Delegate, TensorType

Shapes = tuple[tuple[int, ...], ...]
Run = Callable[[Sequence[Any], Sequence[Any]], object]


class PerShapeDelegate(Delegate):
    """A delegate whose library compiles for concrete shapes, such as a JIT compiler.

    `prepare` gets the shapes once per combination, before calls with them, so `compile` runs there, not in a call.

    Attributes:
        most_shapes: the number of cached combinations, of which the least recently compiled one is evicted first.
    """

    most_shapes: ClassVar[int] = 64

    def __init__(self) -> None:
        self._compiled: OrderedDict[Shapes, Run] = OrderedDict()

    @abstractmethod
    def compile(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> Run:
        """Compile for shapes; return a function like `execute` for arrays of these shapes.

        Raises:
            BackendFailed: the blob has other inputs or outputs, or the library fails.
        """

    def prepare(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> None:
        self._put(inputs, outputs)

    def execute(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        run = self._compiled.get(tuple([x.shape for x in inputs]))
        if run is None:  # evicted by later combinations
            run = self._put(*([TensorType(x.shape, x.dtype) for x in tensors] for tensors in (inputs, outputs)))
        run(inputs, outputs)

    def close(self) -> None:
        self._compiled.clear()

    def _put(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> Run:
        run = self._compiled[tuple([x.shape for x in inputs])] = self.compile(inputs, outputs)
        if len(self._compiled) > self.most_shapes:
            self._compiled.popitem(last=False)
        return run
