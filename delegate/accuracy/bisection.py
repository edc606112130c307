"""Find the nodes that cause an error: record the calls of partitions, then bisect the inaccurate ones.

A bisection runs parts of a partition on its backend, and the rest in torch. The noise of the parts adds up. So the
search can estimate the error of the partition without its noisiest parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import torch
from torch.fx import Node

from delegate.accuracy.figures import Differences, difference
from delegate.accuracy.reference import EagerRegion
from delegate.backends.aot import PreprocessResult, Region
from delegate.backends.bisection import MOST, Unit, part_of, units_of
from delegate.compiled import to_array, to_tensor
from delegate.edge.node import dtype_of, tensor
from delegate.errors import DelegateError
from delegate.program.model import DelegateCall, Instruction, Method, Program
from delegate.report import Accuracy
from delegate.runtime.backend import Delegate, DeviceTensor
from delegate.runtime.steps import DelegateStep, Step
from delegate.runtime.watch import Executor, Shapes

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
        input_tensors = [tensor_of(a, n) for a, n in zip(inputs, self.region.inputs, strict=True)]
        output_tensors = [tensor_of(a, n) for a, n in zip(outputs, self.region.outputs, strict=True)]
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

    def executor(self, method: Method, executor: Executor) -> Executor:
        """Return the executor of a method."""
        return executor

    def watched(
        self, program: Program, method: Method, call: Instruction, steps: Iterable[Step], shapes: Shapes
    ) -> list[Step]:
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


def tensor_of(value: Any, node: Node) -> torch.Tensor:
    """Convert an array, in host or device memory, to the tensor that a node of the graph returns."""
    array = value.fetch() if isinstance(value, DeviceTensor) else value
    result = to_tensor(array, dtype_of(tensor(node).dtype))
    assert isinstance(result, torch.Tensor)
    return result


_MARGIN = 0.8  # share of the allowed noise that the remaining units may have, since causes are not quite independent


@dataclass(slots=True)
class RegionTrial:
    """A runner of parts of a region on its backend, and of the nodes after them in torch, on recorded inputs.

    Args:
        region: the region of the partition.
        inputs: the recorded inputs of the region.
        compile: compiles a region for the backend.
        open: makes a delegate of a compiled region.
    """

    region: Region
    inputs: Sequence[torch.Tensor]
    compile: Callable[[Region], PreprocessResult]
    open: Callable[[PreprocessResult], Delegate]
    _eager: EagerRegion = field(init=False)
    _known: dict[str, torch.Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self._eager = EagerRegion(self.region)
        self._known = self._eager.values(self.inputs)

    def accuracy(self, units: Sequence[Unit]) -> Accuracy | None:
        """Return the error of the results if these units run on the backend; None if it cannot run them separately."""
        try:
            part_results = self.run(part_of(self.region, units))
        except Exception:  # a library that accepts the region may reject a part of it with any error
            return None
        expected = [self._known[node.name] for node in self.region.outputs]
        return difference(self._eager.continued(self.inputs, self._known, part_results), expected)

    def known(self, nodes: Iterable[Node]) -> list[torch.Tensor]:
        """Return the values of nodes of a part in torch, computed on the recorded inputs."""
        return [self._known[node.name] for node in nodes]

    def run(self, part: Region) -> dict[str, torch.Tensor]:
        """Run a part on its backend, on the values that torch computes for its inputs.

        Returns:
            the outputs of the part, by node.

        Raises:
            RegionRefused, RegionFailed: the library rejects the part.
            BackendError: the library fails at the call. A library may raise other exceptions.
        """
        expected = self.known(part.outputs)
        inputs = tuple(to_array(t, n.name) for t, n in zip(self.known(part.inputs), part.inputs, strict=True))
        outputs = tuple(np.empty_like(to_array(t, ""), order="C") for t in expected)
        delegate = self.open(self.compile(part))
        try:
            delegate.execute(inputs, outputs)
        finally:
            delegate.close()
        results = (to_tensor(a, dtype_of(t.dtype)) for a, t in zip(outputs, expected, strict=True))
        return dict(zip((n.name for n in part.outputs), results, strict=True))


@dataclass(frozen=True, slots=True)
class UnitRange:
    """Neighbouring units, and their noise over the noise that the bounds allow."""

    units: tuple[Unit, ...]
    excess: float
    is_one: bool = False  # it cannot be split: it has one unit, or the backend runs neither half

    @property
    def density(self) -> float:
        """The noise per unit."""
        return self.excess / len(self.units)


def bisect_inaccurate(region: Region, excess: float, measure: Callable[[Sequence[Unit]], float | None]) -> list[Unit]:
    """Return the fewest units to remove from a region so that it may meet the bounds; at least one.

    Args:
        region: the region that misses the bounds.
        excess: its noise over the noise that the bounds allow.
        measure: returns the excess of some of its units; None if it cannot be measured.
    """
    all_units = tuple(units_of(region))
    ranges = [UnitRange(all_units, excess, len(all_units) == 1)]
    cut = all_units[0]
    for _ in range(MOST // 2):
        divisible = [s for s in _heaviest(ranges) if not s.is_one]
        if not divisible:
            break
        chosen = max(divisible, key=lambda s: len(s.units))
        ranges.remove(chosen)
        ranges += _halved(chosen, measure)
        cut = chosen.units[len(chosen.units) // 2]
    heaviest = list(chain.from_iterable(s.units for s in _heaviest(ranges)))
    return heaviest or [cut]  # both halves are accurate, and the whole is not: cut between them


def _halved(parent: UnitRange, measure: Callable[[Sequence[Unit]], float | None]) -> list[UnitRange]:
    middle = len(parent.units) // 2
    halves = parent.units[:middle], parent.units[middle:]
    first, second = map(measure, halves)
    if first is None and second is None:
        return [UnitRange(parent.units, parent.excess, True)]
    first = _rest(parent.excess, second) if first is None else first
    second = _rest(parent.excess, first) if second is None else second
    return [UnitRange(units, excess, len(units) == 1) for units, excess in zip(halves, (first, second), strict=True)]


def _rest(whole: float, part: float | None) -> float:
    """Return the excess of the half that was not measured."""
    assert part is not None
    return max(whole - part, 0.0) if math.isfinite(whole) else whole


def _heaviest(ranges: Sequence[UnitRange]) -> list[UnitRange]:
    """Return the ranges to remove so that the noise of the rest is allowed; the noisiest per unit go first."""
    by_density = sorted(ranges, key=lambda s: s.density)
    noise = 0.0
    stay: list[UnitRange] = []
    for candidate in by_density:
        if noise + candidate.excess <= _MARGIN:
            noise += candidate.excess
            stay.append(candidate)
    return [s for s in ranges if s not in stay]
