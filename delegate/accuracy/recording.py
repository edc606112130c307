"""A recorder of a run: the error of partitions on the inputs that they have, and the first NaN, in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from delegate.accuracy.bounds import Bounds
from delegate.accuracy.figures import Differences, difference
from delegate.accuracy.reference import EagerRegion, NodeRunner, RegionTrial, flat_arguments, tensors
from delegate.accuracy.samples import Sample
from delegate.backend.aot import Region
from delegate.compiled import to_tensor
from delegate.edge.node import dtype_of, op_name, source_line, tensor
from delegate.partitioner.extraction import LoweredDelegate
from delegate.program.instructions import describe_operator, source_of
from delegate.program.model import DelegateCall, Instruction, KernelCall, MethodDefinition, Program
from delegate.report.rows import Accuracy
from delegate.runtime.backend import DeviceTensor
from delegate.runtime.steps import DelegateStep, KernelStep, Step
from delegate.runtime.watch import Shapes, Watch, WrappedStep

T = TypeVar("T")
Tensors = tuple[torch.Tensor, ...]
Values = Mapping[str, torch.Tensor]  # by node
Test = Callable[[torch.Tensor], bool]
Forms = tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]


def has_nan(value: torch.Tensor) -> bool:
    """Return whether a tensor has NaN."""
    return (value.is_floating_point() or value.is_complex()) and bool(value.isnan().any())


def has_more_nan(value: torch.Tensor, expected: torch.Tensor) -> bool:
    """Return whether a tensor has NaN in an element that is a number or infinite in another tensor of its shape."""
    return has_nan(value) and bool((value.isnan() & ~expected.isnan()).any())


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
        name: the name of the partition, or of the first result of the kernel.
        operator: The operator that a kernel runs; empty for a partition.
        source: the user's line; empty if unknown.
        delegate: the partition; None for a kernel.

    Attributes:
        differences: Differences from torch on the instruction's own inputs.
        worst: the call with the greatest error.
        excess: the noise of that call over the noise that the bounds allow.
    """

    method: str
    name: str
    operator: str = ""
    source: str = ""
    delegate: LoweredDelegate | None = None
    differences: Differences = field(default_factory=Differences)
    worst: RecordedCall | None = None
    excess: float = -1.0

    @property
    def region(self) -> Region:
        """The region of a partition."""
        assert self.delegate is not None
        return self.delegate.region

    def describe(self) -> str:
        """Return the partition and its backend, or the operator, the name and the user's line of the kernel."""
        if self.delegate is not None:
            return f"partition {self.name} on {self.delegate.backend}"
        return describe_operator(self.operator, self.name, self.source)

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


@dataclass(frozen=True, slots=True)
class NotFiniteCall(Generic[E]):
    """The first call of an instruction whose results have NaN, or what else the recorder looks for.

    Args:
        kind: a key of `RunRecorder.not_finite_tests`.
        entry: the instruction.
        call: the call; without inputs for a kernel.
        is_own: an element of a partition's results is NaN where torch has none on the same inputs.
    """

    kind: str
    entry: E
    call: RecordedCall
    is_own: bool


class RunRecorder(Watch, Generic[E]):
    """A recorder of a program's instructions.

    Args:
        delegates: the partitions by name.
        bounds: the error that an instruction may have.
        create: makes the record of an instruction from the first five arguments of `RecordedInstruction`.
    """

    not_finite_tests: ClassVar[Mapping[str, Callable[[torch.Tensor], bool]]] = {"NaN": has_nan}

    def __init__(self, delegates: Mapping[str, LoweredDelegate], bounds: Bounds, create: Callable[..., E]) -> None:
        self.delegates, self.bounds, self.create = delegates, bounds, create
        self._eager: dict[str, EagerRegion] = {}
        self._entries: dict[tuple[str, str], E] = {}
        self._not_finite: dict[tuple[str, int, bool], NotFiniteCall[E]] = {}

    @property
    def instructions(self) -> tuple[E, ...]:
        """The recorded instructions, in the order of their first calls."""
        return tuple(self._entries.values())

    @property
    def partitions(self) -> dict[str, E]:
        """The partitions that ran, by name."""
        return {entry.name: entry for entry in self.instructions if entry.delegate is not None}

    def not_finite(self, method: str, kind: str) -> list[NotFiniteCall[E]]:
        """Return the first NaN of each instruction of a method that has one, in the order of the run."""
        return [f for f in self._not_finite.values() if (f.entry.method, f.kind) == (method, kind)]

    def wrap(
        self, program: Program, method: MethodDefinition, call: Instruction, steps: Iterable[Step], shapes: Shapes
    ) -> list[Step]:
        """Return the steps of an instruction; delegates and kernels are recorded."""
        return [self._wrap(program, method, call, step) for step in steps]

    def run(
        self, program: Program, method: MethodDefinition, call: Instruction, function: Callable[..., T], *args: Any
    ) -> T:
        """Run the function of an instruction that has no steps."""
        results = function(*args)
        if isinstance(call, KernelCall):
            entry = self.entry(program, method, call)
            self._note_kernel(entry, results if isinstance(results, tuple) else (results,), method, call)
        return results

    def entry(self, program: Program, method: MethodDefinition, call: DelegateCall | KernelCall, prefix: str = "") -> E:
        """Return the record of an instruction that runs, perhaps not for the first time.

        Args:
            program, method, call: the instruction.
            prefix: of the names in its body of control flow, if records of several bodies are kept apart.
        """
        if isinstance(call, DelegateCall):
            name = program.delegates[call.delegate].name
            entry = self.create(method.name, name, "", "", self.delegates[name])
        else:
            name = method.values[call.outputs[0]].name
            entry = self.create(method.name, name, program.operators[call.operator], source_of(method, call))
        return self._entries.setdefault((method.name, prefix + name), entry)

    def _wrap(self, program: Program, method: MethodDefinition, call: Instruction, step: Step) -> Step:
        if isinstance(call, DelegateCall) and isinstance(step, DelegateStep):
            return WrappedStep(step, lambda: self._run_partition(step, self.entry(program, method, call)))
        if isinstance(call, KernelCall) and isinstance(step, KernelStep):
            return WrappedStep(step, lambda: self._run_kernel(step, self.entry(program, method, call), method, call))
        return step

    def _run_partition(self, step: DelegateStep, entry: E) -> None:
        inputs = inputs_of(step, entry)
        step()
        self._record(step, entry, inputs)

    def _run_kernel(self, step: KernelStep, entry: E, method: MethodDefinition, call: KernelCall) -> None:
        step()
        self._note_kernel(entry, step.outs, method, call)

    def _record(self, step: DelegateStep, entry: E, inputs: Tensors) -> RecordedCall:
        """Compare the results of a partition with torch's on the same inputs."""
        actual = tuple(tensor_of(a, n).clone() for a, n in zip(step.outputs, entry.region.outputs, strict=True))
        if entry.name not in self._eager:
            self._eager[entry.name] = EagerRegion(entry.region)
        eager = self._eager[entry.name]
        call = RecordedCall(inputs, actual, tuple(eager.results(inputs)))
        results = {node.name: tensor for node, tensor in zip(entry.region.outputs, actual, strict=True)}
        self._add(entry, call, eager.compare(inputs, results) if eager.choices else (call.actual, call.expected))
        self._note(entry, call)
        return call

    def _add(self, entry: E, call: RecordedCall, forms: Forms) -> None:
        """Add a call to a record; see `RecordedInstruction.add`."""
        entry.add(call, forms, self.bounds)

    def _note_kernel(self, entry: E, results: Iterable[Any], method: MethodDefinition, call: KernelCall) -> None:
        arrays = zip(results, (method.values[index].dtype for index in call.outputs), strict=True)
        self._note(entry, RecordedCall((), tuple(tensors([to_tensor(array, dtype) for array, dtype in arrays]))))

    def _note(self, entry: E, call: RecordedCall) -> None:
        """Note the first call of an instruction with NaN, and the first with NaN that torch does not have."""
        for kind, test in self.not_finite_tests.items():
            if any(map(test, call.actual)):
                is_own = kind == "NaN" and any(map(has_more_nan, call.actual, call.expected))
                self._not_finite.setdefault((kind, id(entry), is_own), NotFiniteCall(kind, entry, call, is_own))


def describe_nan(
    recorder: RunRecorder[RecordedInstruction],
    method: str,
    trial_of: Callable[[NotFiniteCall[RecordedInstruction]], RegionTrial],
) -> str:
    """Describe the first node of a method that gives NaN, or what has NaN without a node.

    A partition that gives NaN where torch has none on the same inputs goes before all others.

    Args:
        recorder: the recorder of the run.
        method: the name of the method.
        trial_of: returns a runner for parts of the partition on the inputs of the call.
    """
    found = recorder.not_finite(method, "NaN")
    first = next((f for f in found if f.is_own), found[0] if found else None)
    if first is None:
        return "its inputs or states"
    if first.entry.delegate is None:
        return first.entry.describe()
    trial = trial_of(first)
    values = trial.known
    if first.is_own:
        values = {n: v for n, v in trial.read_values().items() if has_more_nan(v, trial.known.get(n, v))}
    text = describe_inside(first.entry, values, has_nan) or first.entry.describe()
    return f"{text}, {'where torch returns none' if first.is_own else 'as in torch'}"


def describe_inside(entry: RecordedInstruction, values: Values, test: Test) -> str:
    """Describe the first node of a partition whose value passes a test, such as `has_nan`; empty if none does."""
    nodes = (n for n in entry.region.calls if n.name in values and test(values[n.name]))
    return next((f"{describe_node(node)}, in {entry.describe()}" for node in nodes), "")


def nan_text(differences: Differences, here: str, reference: ExportedProgram, samples: Iterable[Sample]) -> str:
    """Describe the NaN in results of a program and of its reference; empty if neither has any.

    Args:
        differences: The differences in all results together.
        here: the first node of the program that gives NaN, in words.
        reference: the program that torch ran.
        samples: its calls.
    """
    if not differences.has_expected_nan:
        return f"NaN is first in {here}; the reference returns no NaN" if differences.has_nan else ""
    calls = (flat_arguments(reference, sample.args, sample.kwargs) for sample in samples)
    node = next(filter(None, (first_node(reference, leaves, has_nan) for leaves in calls)), "its inputs or states")
    if not differences.has_nan:
        return f"the reference returns NaN, first in {node}, and the program returns none"
    return f"NaN is first in {here}; the reference returns NaN too, first in {node}"


def first_node(ep: ExportedProgram, leaves: Sequence[Any], test: Test) -> str:
    """Describe the first node whose result in torch passes a test: operator, name, the user's line.

    Args:
        ep: the program.
        leaves: the leaves of the arguments, in the order of its inputs.
        test: for example `has_nan`.

    Returns:
        the text; empty without such a node.
    """
    sources: list[Node] = []

    def record(node: Node, result: Any) -> Any:
        if not sources and any(map(test, tensors(result))):
            sources.append(node)
        return result

    NodeRunner(ep, record, with_bodies=True).results(leaves)
    return describe_node(sources[0]) if sources else ""


def describe_node(node: Node) -> str:
    """Return the operator, the name and the user's source line of a node."""
    return describe_operator(op_name(node), node.name, source_line(node))


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
