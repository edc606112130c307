"""Records the calls of a program's partitions and compares their results with those of torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch.fx import Node

from delegate.accuracy.figures import Differences
from delegate.accuracy.reference import EagerRegion
from delegate.backends.aot import Region
from delegate.compiled import to_tensor
from delegate.edge.node import dtype_of, tensor
from delegate.errors import DelegateError
from delegate.program.model import DelegateCall, Instruction, Method, Program
from delegate.runtime.backend import DeviceTensor
from delegate.runtime.steps import DelegateStep, Step

T = TypeVar("T")


@dataclass(slots=True)
class WatchedPartition:
    """A partition, and its error over all its calls.

    Args:
        region: the region of the partition.
        worst: the inputs of the call with the greatest noise, to look for its cause.
        gives_nan: a result had NaN, and torch gave none.
    """

    region: Region
    eager: EagerRegion = field(init=False)
    differences: Differences = field(default_factory=Differences)
    worst: tuple[torch.Tensor, ...] = ()
    gives_nan: bool = False
    _noise: float = -1.0

    def __post_init__(self) -> None:
        self.eager = EagerRegion(self.region)

    def add_call(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Add a call; raises AccuracyError if torch cannot run the region."""
        input_tensors = [_tensor(a, n) for a, n in zip(inputs, self.region.inputs, strict=True)]
        output_tensors = [_tensor(a, n) for a, n in zip(outputs, self.region.outputs, strict=True)]
        call = Differences()
        expected = self.eager.results(input_tensors)
        call.add(output_tensors, expected)
        self.differences.add(output_tensors, expected)
        self.gives_nan |= any(map(_has_nan, output_tensors)) and not any(map(_has_nan, expected))
        noise = max((o.relative_error for o in call.outputs), default=0.0)
        if not noise <= self._noise:  # NaN is worse than all
            self._noise, self.worst = noise, tuple(t.clone() for t in input_tensors)


class DelegateRecorder:
    """A recorder of the calls of a program's delegates; a `Watch` of the runtime.

    Args:
        partitions: the partitions by name.
    """

    def __init__(self, partitions: Mapping[str, WatchedPartition]) -> None:
        self._partitions = partitions

    def watched(self, program: Program, method: Method, call: Instruction, steps: Iterable[Step]) -> list[Step]:
        """Return the steps of an instruction; those of delegates are recorded."""
        if not isinstance(call, DelegateCall):
            return list(steps)
        partition = self._partitions[program.delegates[call.delegate].name]
        return [_WatchedStep(s, partition) if isinstance(s, DelegateStep) else s for s in steps]

    def run(self, program: Program, method: Method, call: Instruction, function: Callable[..., T], *args: Any) -> T:
        """Run the function of an instruction that has no steps."""
        return function(*args)


class _WatchedStep:
    """A delegate's step whose calls are recorded."""

    __slots__ = ("partition", "step")

    def __init__(self, step: DelegateStep, partition: WatchedPartition) -> None:
        self.step, self.partition = step, partition

    def __call__(self) -> None:
        self.step()
        self.partition.add_call(self.step.inputs, self.step.outputs)

    def failed(self, error: BaseException) -> DelegateError:
        """Return the error that names what failed."""
        return self.step.failed(error)


def _has_nan(value: torch.Tensor) -> bool:
    return value.is_floating_point() and bool(value.isnan().any())


def _tensor(value: Any, node: Node) -> torch.Tensor:
    """Convert an array, in host or device memory, to the tensor that a node of the graph returns."""
    array = value.fetch() if isinstance(value, DeviceTensor) else value
    result = to_tensor(array, dtype_of(tensor(node).dtype))
    assert isinstance(result, torch.Tensor)
    return result
