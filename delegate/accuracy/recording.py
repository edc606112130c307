"""Recording of the calls of a running program: the error of its partitions, and the first results with NaN."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import torch
from torch.fx import Node

from delegate.accuracy.figures import Differences
from delegate.accuracy.nan import NanSource, node_text
from delegate.accuracy.reference import EagerRegion, tensors
from delegate.backends.aot import Region
from delegate.compiled import to_tensor
from delegate.edge.node import dtype_of, tensor
from delegate.program.model import DelegateCall, Instruction, KernelCall, Method, Program
from delegate.runtime.backend import DeviceTensor
from delegate.runtime.steps import DelegateStep, KernelStep, Step
from delegate.runtime.watch import Shapes, StepWatch, WrappedStep

T = TypeVar("T")


@dataclass(slots=True)
class WatchedPartition:
    """A partition, and its error over all its calls.

    Args:
        region: the region of the partition.
        worst: the inputs of the call with the greatest noise, to look for its cause.
    """

    region: Region
    eager: EagerRegion = field(init=False)
    differences: Differences = field(default_factory=Differences)
    worst: tuple[torch.Tensor, ...] = ()
    _noise: float = -1.0

    def __post_init__(self) -> None:
        self.eager = EagerRegion(self.region)

    def add_call(self, inputs: Sequence[Any], outputs: Sequence[Any], nan: NanSource) -> None:
        """Add a call, also to the source of NaN; raises AccuracyError if torch cannot run the region."""
        input_tensors = [tensor_of(a, n) for a, n in zip(inputs, self.region.inputs, strict=True)]
        output_tensors = [tensor_of(a, n) for a, n in zip(outputs, self.region.outputs, strict=True)]
        call = Differences()
        expected = self.eager.results(input_tensors)
        results = {node.name: tensor for node, tensor in zip(self.region.outputs, output_tensors, strict=True)}
        forms = self.eager.compare(input_tensors, results) if self.eager.choices else (output_tensors, expected)
        call.add(*forms)
        self.differences.add(*forms)
        nan.add_partition(self.region.name, input_tensors, output_tensors, expected)
        noise = max((o.relative_error for o in call.outputs), default=0.0)
        if not noise <= self._noise:  # NaN is worse than all
            self._noise, self.worst = noise, tuple(t.clone() for t in input_tensors)


class CallRecorder(StepWatch):
    """A recorder of the calls of a method's delegates, and of NaN from its kernels; a `Watch` of the runtime.

    Args:
        partitions: the partitions by name.
        nan: the source of NaN of the method.
    """

    def __init__(self, partitions: Mapping[str, WatchedPartition], nan: NanSource) -> None:
        self._partitions, self._nan = partitions, nan

    def watched(
        self, program: Program, method: Method, call: Instruction, steps: Iterable[Step], shapes: Shapes
    ) -> list[Step]:
        """Return the steps of an instruction; those of delegates and kernels are recorded."""
        if isinstance(call, DelegateCall):
            partition = self._partitions[program.delegates[call.delegate].name]
            run = partial(self._run_partition, partition)
            return [WrappedStep(s, partial(run, s)) if isinstance(s, DelegateStep) else s for s in steps]
        if isinstance(call, KernelCall):
            add = partial(self._add_kernel, program, method, call)
            return [WrappedStep(s, partial(_run_kernel, add, s)) if isinstance(s, KernelStep) else s for s in steps]
        return list(steps)

    def run(self, program: Program, method: Method, call: Instruction, function: Callable[..., T], *args: Any) -> T:
        """Run the function of an instruction that has no steps."""
        results = function(*args)
        if isinstance(call, KernelCall):
            self._add_kernel(program, method, call, results if isinstance(results, tuple) else (results,))
        return results

    def _run_partition(self, partition: WatchedPartition, step: DelegateStep) -> None:
        step()
        partition.add_call(step.inputs, step.outputs, self._nan)

    def _add_kernel(self, program: Program, method: Method, call: KernelCall, results: Iterable[Any]) -> None:
        values = [method.values[index] for index in call.outputs]
        arrays = zip(results, values, strict=True)

        def node() -> str:
            line = method.sources[call.source] if call.source >= 0 else ""
            return node_text(program.operators[call.operator], values[0].name, line)

        self._nan.add_kernel(node, tensors([to_tensor(array, value.dtype) for array, value in arrays]))


def _run_kernel(add: Callable[[Iterable[Any]], None], step: KernelStep) -> None:
    step()
    add(step.outs)


def tensor_of(value: Any, node: Node) -> torch.Tensor:
    """Convert an array, in host or device memory, to the tensor that a node of the graph returns."""
    array = value.fetch() if isinstance(value, DeviceTensor) else value
    result = to_tensor(array, dtype_of(tensor(node).dtype))
    assert isinstance(result, torch.Tensor)
    return result
