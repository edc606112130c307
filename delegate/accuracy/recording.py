"""A recorder of a run: the error of partitions on the inputs that they have."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch.fx import Node

from delegate.accuracy.bounds import Bounds
from delegate.accuracy.figures import Differences, difference
from delegate.accuracy.reference import EagerRegion
from delegate.backend.aot import Region
from delegate.compiled import to_tensor
from delegate.edge.node import dtype_of, tensor
from delegate.partitioner.extraction import LoweredDelegate
from delegate.program.model import DelegateCall, Instruction, MethodDefinition, Program
from delegate.report.rows import Accuracy
from delegate.runtime.backend import DeviceTensor
from delegate.runtime.steps import DelegateStep, Step
from delegate.runtime.watch import Shapes, Watch, WrappedStep

Tensors = tuple[torch.Tensor, ...]
Forms = tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A call of an instruction: its inputs, its results, and torch's results; no results if it failed."""

    inputs: Tensors
    actual: Tensors = ()
    expected: Tensors = ()


@dataclass(slots=True)
class RecordedInstruction:
    """An instruction of a method, and its error over all its calls.

    Args:
        method: the name of the method.
        name: the name of the partition.
        delegate: the partition; the debugger records kernels too, which have none.

    Attributes:
        differences: Differences from torch on the instruction's own inputs.
        worst: the call with the greatest error.
        excess: the noise of that call over the noise that the bounds allow.
    """

    method: str
    name: str
    delegate: LoweredDelegate | None = None
    differences: Differences = field(default_factory=Differences)
    worst: RecordedCall | None = None
    excess: float = -1.0

    @property
    def region(self) -> Region:
        """The region of a partition."""
        assert self.delegate is not None
        return self.delegate.region

    def add(self, call: RecordedCall, forms: Forms, bounds: Bounds) -> None:
        """Add a call.

        Args:
            call: the call.
            forms: its results and torch's, in forms that all right answers share.
            bounds: the error that it may have.
        """
        self.differences.add(*forms)
        excess = excess_of(bounds, difference(*forms))
        if excess > self.excess:
            self.excess, self.worst = excess, call


E = TypeVar("E", bound=RecordedInstruction)


class RunRecorder(Watch, Generic[E]):
    """A recorder of a program's partitions.

    Args:
        delegates: the partitions by name.
        bounds: the error that an instruction may have.
        create: makes the record of a partition from the first three arguments of `RecordedInstruction`.

    Attributes:
        partitions: the records of the partitions that ran, by name.
    """

    def __init__(self, delegates: Mapping[str, LoweredDelegate], bounds: Bounds, create: Callable[..., E]) -> None:
        self.delegates, self.bounds, self.create = delegates, bounds, create
        self.partitions: dict[str, E] = {}
        self._eager: dict[str, EagerRegion] = {}

    def wrap(
        self, program: Program, method: MethodDefinition, call: Instruction, steps: Iterable[Step], shapes: Shapes
    ) -> list[Step]:
        """Return the steps of an instruction; a partition is recorded."""
        if not isinstance(call, DelegateCall):
            return list(steps)
        name = program.delegates[call.delegate].name

        def run(step: DelegateStep) -> None:
            self._run_partition(step, self._open(method.name, name))

        return [WrappedStep(step, partial(run, step)) if isinstance(step, DelegateStep) else step for step in steps]

    def _open(self, method: str, name: str) -> E:
        """Return the record of a partition, perhaps not for its first call."""
        return self.partitions.setdefault(name, self.create(method, name, self.delegates[name]))

    def _run_partition(self, step: DelegateStep, entry: E) -> None:
        inputs = inputs_of(step, entry)
        step()
        self._record(step, entry, inputs)

    def _record(self, step: DelegateStep, entry: E, inputs: Tensors) -> RecordedCall:
        """Compare the results of a partition with torch's on the same inputs."""
        actual = tuple(tensor_of(a, n).clone() for a, n in zip(step.outputs, entry.region.outputs, strict=True))
        if entry.name not in self._eager:
            self._eager[entry.name] = EagerRegion(entry.region)
        eager = self._eager[entry.name]
        call = RecordedCall(inputs, actual, tuple(eager.results(inputs)))
        results = {node.name: tensor for node, tensor in zip(entry.region.outputs, actual, strict=True)}
        self._add(entry, call, eager.compare(inputs, results) if eager.choices else (call.actual, call.expected))
        return call

    def _add(self, entry: E, call: RecordedCall, forms: Forms) -> None:
        """Add a call to a record; see `RecordedInstruction.add`."""
        entry.add(call, forms, self.bounds)


def excess_of(bounds: Bounds, figures: Accuracy | None) -> float:
    """Return the noise over what bounds allow; 0 for results without a finite element, which equal torch's."""
    return 0.0 if figures is None or math.isnan(figures.sqnr_db) else bounds.excess(figures)


def inputs_of(step: DelegateStep, entry: RecordedInstruction) -> Tensors:
    """Return copies of the inputs that a partition has now."""
    return tuple(tensor_of(a, n).clone() for a, n in zip(step.inputs, entry.region.inputs, strict=True))


def tensor_of(value: Any, node: Node) -> torch.Tensor:
    """Convert an array, in host or device memory, to the tensor that a node of the graph returns."""
    array = value.fetch() if isinstance(value, DeviceTensor) else value
    result = to_tensor(array, dtype_of(tensor(node).dtype))
    assert isinstance(result, torch.Tensor)
    return result
