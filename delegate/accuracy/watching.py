"""Watches the partitions of a program while it runs: what each is given and gives, and what torch makes of that."""

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
    """A partition, and how far it was off in all its calls.

    Args:
        region: that it is.
        worst: of the calls: the inputs of the one with the greatest noise, to look for its cause.
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

    def called(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """One more call; raises AccuracyError where torch cannot run the region."""
        given = [_tensor(a, n) for a, n in zip(inputs, self.region.inputs, strict=True)]
        made = [_tensor(a, n) for a, n in zip(outputs, self.region.outputs, strict=True)]
        call = Differences()
        expected = self.eager.results(given)
        call.add(made, expected)
        self.differences.add(made, expected)
        self.gives_nan |= any(map(_has_nan, made)) and not any(map(_has_nan, expected))
        noise = max((o.relative_error for o in call.outputs), default=0.0)
        if not noise <= self._noise:  # NaN is worse than all
            self._noise, self.worst = noise, tuple(t.clone() for t in given)


class Watcher:
    """Watches the delegates of a program; a `Watch` of the runtime.

    Args:
        partitions: by name.
    """

    def __init__(self, partitions: Mapping[str, WatchedPartition]) -> None:
        self._partitions = partitions

    def watched(self, program: Program, method: Method, call: Instruction, steps: Iterable[Step]) -> list[Step]:
        """The steps of an instruction, with an eye on a delegate's."""
        if not isinstance(call, DelegateCall):
            return list(steps)
        partition = self._partitions[program.delegates[call.delegate].name]
        return [_WatchedStep(s, partition) if isinstance(s, DelegateStep) else s for s in steps]

    def run(self, program: Program, method: Method, call: Instruction, function: Callable[..., T], *args: Any) -> T:
        """What the function of an instruction that is no step gives."""
        return function(*args)


class _WatchedStep:
    """A delegate's step, and what watches it."""

    __slots__ = ("partition", "step")

    def __init__(self, step: DelegateStep, partition: WatchedPartition) -> None:
        self.step, self.partition = step, partition

    def __call__(self) -> None:
        self.step()
        self.partition.called(self.step.inputs, self.step.outputs)

    def failed(self, error: BaseException) -> DelegateError:
        """The error that tells the user what failed."""
        return self.step.failed(error)


def _has_nan(value: torch.Tensor) -> bool:
    return value.is_floating_point() and bool(value.isnan().any())


def _tensor(given: Any, node: Node) -> torch.Tensor:
    """An array, wherever it lies, as the tensor that a node of the graph gives."""
    array = given.fetch() if isinstance(given, DeviceTensor) else given
    found = to_tensor(array, dtype_of(tensor(node).dtype))
    assert isinstance(found, torch.Tensor)
    return found
