"""Engines of models that LiteRT compiles through its C interface: they share packed weights, or report operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from delegate.backends.xnnpack.runtime.litert import CompiledModel
from delegate.backends.xnnpack.runtime.verifier import Graph
from delegate.runtime.backend import ReportOperator


class CompiledEngine:
    """A compiled model as an `Engine`.

    Args:
        compiled: the model.
        graph: the verified model.
        dynamic: true if sizes change; then `resize` must come first.
        packed: its shared packed weights, which must outlive it; None if the model packs its own.

    Raises:
        RuntimeError: LiteRT rejects the model; also raised by `run` and `resize`.
    """

    def __init__(self, compiled: CompiledModel, graph: Graph, dynamic: bool, packed: object = None) -> None:
        self._packed = packed
        self._is_dynamic, self._dynamic = dynamic, [-1 in tensor.signature for tensor in graph.inputs]
        self._compiled = compiled
        if not dynamic:
            self._compiled.bind([tensor.shape for tensor in graph.inputs])
            if [x.shape for x in self.results] != [tensor.shape for tensor in graph.outputs]:
                raise RuntimeError("the model returns other sizes than it declares")
        self.run = self._compiled.run

    @property
    def sources(self) -> Sequence[Any]:
        """Return the arrays to fill, in this thread."""
        if self._is_dynamic:
            self._compiled.move_to_thread()
        return self._compiled.sources

    @property
    def results(self) -> Sequence[Any]:
        """Return the arrays that hold results."""
        return self._compiled.results

    def look(self) -> None:
        """Do nothing, because results do not move."""

    def end_run(self) -> None:
        """Give the memory back to this thread."""
        self._compiled.leave_thread()

    def resize(self, shapes: Sequence[tuple[int, ...]]) -> None:
        """Resize the inputs."""
        self._compiled.resize(shapes, self._dynamic)

    def close(self) -> None:
        """Free the model."""
        self._compiled.close()


class ProfiledEngine(CompiledEngine):
    """A compiled model that reports XNNPACK's operators after each run.

    Args:
        compiled, graph, dynamic: see `CompiledEngine`; the model is profiled.
        report: receives each operator.
    """

    def __init__(self, compiled: CompiledModel, graph: Graph, dynamic: bool, report: ReportOperator) -> None:
        super().__init__(compiled, graph, dynamic)
        self._report, self.run = report, self._run

    def _run(self) -> None:
        self._compiled.run()
        for operator in self._compiled.operators():
            self._report(*operator)
