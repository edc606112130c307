"""A recorder of a run: the error of partitions and kernels on the inputs that they have, and the first NaN.

The accuracy check records the error of partitions. The debugger records thoroughly: it also compares each kernel with
torch's operator, and runs each partition twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch.fx import Node

from delegate.accuracy.bounds import Bounds
from delegate.accuracy.choices import compare_of
from delegate.accuracy.figures import Differences, difference, equal_everywhere
from delegate.accuracy.reference import EagerRegion, tensors
from delegate.backend.aot import Region
from delegate.compiled import to_tensor
from delegate.edge.node import dtype_of, tensor, torch_dtype
from delegate.edge.torch_private import schema_of
from delegate.errors import DelegateError
from delegate.partitioner.extraction import LoweredDelegate
from delegate.program.dtypes import DType
from delegate.program.instructions import describe_operator, source_of
from delegate.program.model import (
    Arg,
    DelegateCall,
    Instruction,
    KernelCall,
    MethodDefinition,
    Program,
    Ref,
    StructuredCall,
)
from delegate.report.rows import Accuracy
from delegate.runtime.backend import DeviceTensor
from delegate.runtime.call_lock import hold
from delegate.runtime.steps import DelegateStep, KernelStep, Step
from delegate.runtime.watch import Shapes, StepWatch, WrappedStep

T = TypeVar("T")
Tensors = tuple[torch.Tensor, ...]
Forms = tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]


def has_nan(value: torch.Tensor) -> bool:
    """Return whether a tensor has NaN."""
    return (value.is_floating_point() or value.is_complex()) and bool(value.isnan().any())


def has_infinity(value: torch.Tensor) -> bool:
    """Return whether a tensor has infinity."""
    return (value.is_floating_point() or value.is_complex()) and bool(value.isinf().any())


def has_more_nan(value: torch.Tensor, expected: torch.Tensor) -> bool:
    """Return whether a tensor has NaN in an element that is a number or infinite in another tensor of its shape."""
    return has_nan(value) and bool((value.isnan() & ~expected.isnan()).any())


NOT_FINITE: Mapping[str, Callable[[torch.Tensor], bool]] = {"NaN": has_nan, "infinity": has_infinity}


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A call of an instruction: its inputs, its results, and torch's results; no results if it failed.

    `exact` has torch's results in float64, of a kernel that misses the bounds.
    """

    inputs: Tensors
    actual: Tensors = ()
    expected: Tensors = ()
    exact: Tensors = ()


@dataclass(slots=True)
class RecordedInstruction:
    """An instruction of a method, and its error over all its calls.

    Args:
        method: the name of the method.
        name: the name of the partition, or of the first result of the kernel.
        operator: The operator that a kernel runs; empty for a partition.
        source: the user's line; empty if unknown.
        delegate: the partition; None for a kernel.
        prefix: The prefix of the nodes in its body of control flow, e.g. "true_graph_0."; empty outside of bodies.

    Attributes:
        differences: Differences from torch on the instruction's own inputs.
        totals: Differences from torch, run from the method's inputs; none if that is unknown.
        worst: the call with the greatest error, or the one that failed.
        excess: the noise of that call over the noise that the bounds allow.
        last: the last call of a partition, if the recorder is thorough.
        is_stable: a second execution on the same inputs returned the same.
        failure: the error that the instruction raised.
        is_another_answer: it is right, and differs from torch, because several answers are right.
    """

    method: str
    name: str
    operator: str = ""
    source: str = ""
    delegate: LoweredDelegate | None = None
    prefix: str = ""
    differences: Differences = field(default_factory=Differences)
    totals: Differences = field(default_factory=Differences)
    worst: RecordedCall | None = None
    excess: float = -1.0
    last: RecordedCall | None = None
    is_stable: bool = True
    is_another_answer: bool = False
    failure: DelegateError | None = None

    @property
    def region(self) -> Region:
        """The region of a partition."""
        assert self.delegate is not None
        return self.delegate.region

    @property
    def is_wrong(self) -> bool:
        """Whether it misses the bounds, failed, or returned different results for the same inputs."""
        return self.excess > 1 or self.failure is not None or not self.is_stable

    def describe(self) -> str:
        """Return the partition and its backend, or the operator, the name and the user's line of the kernel."""
        if self.delegate is not None:
            return f"partition {self.name} on {self.delegate.backend}"
        return describe_operator(self.operator, self.name, self.source)

    def add(self, call: RecordedCall, forms: Forms, bounds: Bounds, values: Sequence[torch.Tensor]) -> None:
        """Add a completed call.

        Args:
            call: the call.
            forms: its results and torch's, in forms that all right answers share.
            bounds: the error that it may have.
            values: the results of torch, run from the inputs of the method, if known.
        """
        self.differences.add(*forms)
        if values and not self.totals.calls:
            self.totals.add(call.actual, values)
        excess = excess_of(bounds, difference(*forms))
        if forms[0] is not call.actual:
            self.is_another_answer |= excess <= 1 < excess_of(bounds, difference(call.actual, call.expected))
        if excess > self.excess:
            self.excess, self.worst = excess, call

    def fail(self, error: DelegateError, inputs: Tensors) -> None:
        """Add a call that failed."""
        self.failure, self.worst = error, RecordedCall(inputs)


@dataclass(frozen=True, slots=True)
class NotFiniteCall:
    """The first call of an instruction whose results have NaN or infinity.

    Args:
        kind: "NaN" or "infinity".
        entry: the instruction.
        call: the call; without inputs for a kernel.
        is_own: an element of a partition's results is NaN where torch has none on the same inputs.
    """

    kind: str
    entry: RecordedInstruction
    call: RecordedCall
    is_own: bool


class RunRecorder(StepWatch):
    """A recorder of a program's instructions; a `Watch` of the runtime.

    Args:
        delegates: the partitions by name.
        bounds: the error that an instruction may have.
        is_thorough: compare each kernel with torch, and run each partition twice.
        values: results of torch in the first call, by method and node.
        bodies: MethodDefinition name -> name of a control-flow node -> the prefixes of the nodes in its bodies.

    Attributes:
        not_compared: operators of kernels that torch cannot run, such as fused ones.
    """

    def __init__(
        self,
        delegates: Mapping[str, LoweredDelegate],
        bounds: Bounds,
        *,
        is_thorough: bool = False,
        values: Mapping[str, Mapping[str, torch.Tensor]] | None = None,
        bodies: Mapping[str, Mapping[str, Sequence[str]]] | None = None,
    ) -> None:
        self.delegates, self.bounds, self.is_thorough = delegates, bounds, is_thorough
        self._values, self._bodies = values or {}, bodies or {}
        self._prefixes: dict[str, dict[tuple[int, ...], str]] = {}  # by method and results of an instruction
        self._eager: dict[str, EagerRegion] = {}
        self._by_name: dict[tuple[str, str], RecordedInstruction] = {}
        self._not_finite: dict[tuple[str, int, bool], NotFiniteCall] = {}
        self.not_compared: set[str] = set()

    @property
    def instructions(self) -> tuple[RecordedInstruction, ...]:
        """The recorded instructions, in the order of their first calls."""
        return tuple(self._by_name.values())

    @property
    def partitions(self) -> dict[str, RecordedInstruction]:
        """The partitions that ran, by name."""
        return {entry.name: entry for entry in self.instructions if entry.delegate is not None}

    def not_finite(self, method: str, kind: str) -> list[NotFiniteCall]:
        """Return the first NaN, or infinity, of each instruction of a method that has one, in the order of the run."""
        return [f for f in self._not_finite.values() if (f.entry.method, f.kind) == (method, kind)]

    def watched(
        self, program: Program, method: MethodDefinition, call: Instruction, steps: Iterable[Step], shapes: Shapes
    ) -> list[Step]:
        """Return the steps of an instruction; delegates and kernels are recorded."""
        return [self._wrapped(program, method, call, step) for step in steps]

    def run(
        self, program: Program, method: MethodDefinition, call: Instruction, function: Callable[..., T], *args: Any
    ) -> T:
        """Run the function of an instruction that has no steps."""
        results = function(*args)
        if isinstance(call, KernelCall):
            entry = self.entry(self._kernel_entry(program, method, call))
            self._note_not_finite(entry, results if isinstance(results, tuple) else (results,), method, call)
        return results

    def entry(self, entry: RecordedInstruction) -> RecordedInstruction:
        """Return the record of an instruction that runs, which may be in another loop iteration."""
        return self._by_name.setdefault((entry.method, entry.prefix + entry.name), entry)

    def _wrapped(self, program: Program, method: MethodDefinition, call: Instruction, step: Step) -> Step:
        if isinstance(call, DelegateCall) and isinstance(step, DelegateStep):
            name = program.delegates[call.delegate].name
            entry = RecordedInstruction(
                method.name, name, delegate=self.delegates[name], prefix=self._prefix(method, call)
            )
            return WrappedStep(step, partial(self._run_partition, step, entry))
        if isinstance(call, KernelCall) and isinstance(step, KernelStep):
            entry = self._kernel_entry(program, method, call)
            return WrappedStep(step, partial(self._run_kernel, step, entry, method, call))
        return step

    def _kernel_entry(self, program: Program, method: MethodDefinition, call: KernelCall) -> RecordedInstruction:
        name, operator = method.values[call.outputs[0]].name, program.operators[call.operator]
        return RecordedInstruction(
            method.name, name, operator, source_of(method, call), prefix=self._prefix(method, call)
        )

    def _prefix(self, method: MethodDefinition, call: Instruction) -> str:
        """Return the prefix of node names in the body that has an instruction; empty outside of bodies."""
        if method.name not in self._prefixes:
            bodies = self._bodies.get(method.name, {})
            self._prefixes[method.name] = dict(_prefixes(method, method.instructions, bodies))
        return self._prefixes[method.name].get(tuple(call.outputs), "")

    def _add(self, entry: RecordedInstruction, call: RecordedCall, forms: Forms) -> None:
        """Add a completed call; see `RecordedInstruction.add`."""
        names = [entry.name] if entry.delegate is None else [node.name for node in entry.region.outputs]
        known, names = self._values.get(entry.method, {}), [entry.prefix + name for name in names]
        values = [known[name] for name in names] if all(name in known for name in names) else []
        entry.add(call, forms, self.bounds, values if len(values) == len(call.actual) else [])

    def _run_partition(self, step: DelegateStep, entry: RecordedInstruction) -> None:
        entry, repeated = self.entry(entry), None
        inputs = tuple(tensor_of(a, n).clone() for a, n in zip(step.inputs, entry.region.inputs, strict=True))
        try:
            step()
            if self.is_thorough:
                repeated = [np.empty_like(a) for a in step.outputs]
                with hold(step.lock):
                    step.delegate.execute(tuple(step.inputs), tuple(repeated))
        except Exception as error:  # a library may raise anything
            entry.fail(step.failed(error), inputs)
            raise
        actual = tuple(tensor_of(a, n).clone() for a, n in zip(step.outputs, entry.region.outputs, strict=True))
        if entry.name not in self._eager:
            self._eager[entry.name] = EagerRegion(entry.region)
        eager = self._eager[entry.name]
        call = RecordedCall(inputs, actual, tuple(eager.results(inputs)))
        results = {node.name: tensor for node, tensor in zip(entry.region.outputs, actual, strict=True)}
        self._add(entry, call, eager.compare(inputs, results) if eager.choices else (call.actual, call.expected))
        self._note(entry, call)
        if repeated is not None:
            entry.last = call
            if not same(actual, [tensor_of(a, n) for a, n in zip(repeated, entry.region.outputs, strict=True)]):
                entry.is_stable, entry.worst = False, call

    def _run_kernel(
        self, step: KernelStep, entry: RecordedInstruction, method: MethodDefinition, call: KernelCall
    ) -> None:
        entry = self.entry(entry)
        if not self.is_thorough:
            step()
        else:
            self._compare_kernel(step, entry, method, call)
        self._note_not_finite(entry, step.outs, method, call)

    def _compare_kernel(
        self, step: KernelStep, entry: RecordedInstruction, method: MethodDefinition, call: KernelCall
    ) -> None:
        """Run a kernel, and torch's operator on the same arguments."""
        arguments = [_argument(a, v, method) for a, v in zip(call.args, step.args, strict=True)]
        inputs = tuple(t for a in arguments for t in (a if isinstance(a, list) else [a]) if isinstance(t, torch.Tensor))
        operator = torch_operator(entry.operator)
        expected = _run_operator(operator, arguments)
        try:
            step()
        except Exception as error:  # a plugin's kernel may raise anything
            entry.fail(step.failed(error), inputs)
            raise
        if expected is None:
            self.not_compared.add(entry.operator)
            return
        values = (method.values[i] for i in call.outputs)
        actual = tuple(_tensor(a, v.dtype) for a, v in zip(step.outs, values, strict=True) if a is not None)
        if len(actual) == len(expected):
            forms = _forms(operator, arguments, actual, expected)
            is_wrong = excess_of(self.bounds, difference(*forms)) > 1
            has_one_answer = forms[0] is actual  # float64 may have another right one
            is_exact_needed = is_wrong and has_one_answer
            exact = _run_operator(operator, [to_float64(a) for a in arguments]) if is_exact_needed else None
            self._add(entry, RecordedCall(inputs, actual, expected, exact or ()), forms)

    def _note_not_finite(
        self, entry: RecordedInstruction, results: Iterable[Any], method: MethodDefinition, call: KernelCall
    ) -> None:
        arrays = zip(results, (method.values[index].dtype for index in call.outputs), strict=True)
        self._note(entry, RecordedCall((), tuple(tensors([to_tensor(array, dtype) for array, dtype in arrays]))))

    def _note(self, entry: RecordedInstruction, call: RecordedCall) -> None:
        """Note the first call of an instruction with NaN, with NaN that torch does not have, and with infinity."""
        for kind, test in NOT_FINITE.items():
            if (kind == "NaN" or self.is_thorough) and any(map(test, call.actual)):
                is_own = kind == "NaN" and any(map(has_more_nan, call.actual, call.expected))
                self._not_finite.setdefault((kind, id(entry), is_own), NotFiniteCall(kind, entry, call, is_own))


def _prefixes(
    method: MethodDefinition, instructions: Iterable[Instruction], bodies: Mapping[str, Sequence[str]], prefix: str = ""
) -> Iterator[tuple[tuple[int, ...], str]]:
    """Yield the results of each instruction, and the prefix of the node names in its body."""
    for call in instructions:
        yield tuple(call.outputs), prefix
        if isinstance(call, StructuredCall) and call.outputs:
            name = method.values[call.outputs[0]].name.partition(".")[0]  # "name.0" if there are several results
            for block, own in zip(call.blocks, bodies.get(prefix + name, ()), strict=False):
                yield from _prefixes(method, block.instructions, bodies, own)


def _argument(arg: Arg, value: Any, method: MethodDefinition) -> Any:
    """Return an argument of a kernel as torch's operator takes it."""
    if isinstance(arg, Ref):
        return _tensor(value, method.values[arg.index].dtype)
    if isinstance(arg, tuple):
        return [_argument(a, v, method) for a, v in zip(arg, value, strict=True)]
    return torch_dtype(value) if isinstance(value, DType) else value


def _run_operator(operator: Any, arguments: Sequence[Any]) -> Tensors | None:
    """Return the results of torch's operator; None if torch has none, or draws random numbers."""
    if operator is None or torch.Tag.nondeterministic_seeded in operator.tags:
        return None
    schema = schema_of(operator).arguments
    try:
        with torch.no_grad():
            positional = [v for a, v in zip(schema, arguments, strict=True) if not a.kwarg_only]
            named = {a.name: v for a, v in zip(schema, arguments, strict=True) if a.kwarg_only}
            result = operator(*positional, **named)
    except Exception:  # an operator may raise anything
        return None
    return tuple(torch.as_tensor(r) for r in (result if isinstance(result, tuple | list) else (result,)))


def _forms(operator: Any, arguments: Sequence[Any], actual: Tensors, expected: Tensors) -> Forms:
    """Return the results of a kernel and torch's in forms that all right answers share."""
    named = dict(zip((a.name for a in schema_of(operator).arguments), arguments, strict=True))
    compare = compare_of(operator, named)
    if compare is None:
        return actual, expected
    pairs = list(compare(named, dict(enumerate(actual)), dict(enumerate(expected))))
    return [one for one, _ in pairs], [other for _, other in pairs]


def to_float64(argument: Any) -> Any:
    """Return an argument of an operator with its float32 tensors in float64."""
    if isinstance(argument, list):
        return [to_float64(a) for a in argument]
    is_float32 = isinstance(argument, torch.Tensor) and argument.dtype is torch.float32
    return argument.double() if is_float32 else argument


def torch_operator(name: str) -> Any:
    """Return torch's operator of a name such as "aten.add.Tensor"; None if torch has none."""
    namespace, _, rest = name.partition(".")
    base, _, overload = rest.rpartition(".")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), base), overload)
    except (AttributeError, RuntimeError):
        return None


def excess_of(bounds: Bounds, figures: Accuracy | None) -> float:
    """Return the noise over what bounds allow; 0 for results without a finite element, which equal torch's."""
    return 0.0 if figures is None or math.isnan(figures.sqnr_db) else bounds.excess(figures)


def same(tensors: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    """Return whether tensors are equal, with NaN at the same places."""
    return all(map(equal_everywhere, tensors, others))


def tensor_of(value: Any, node: Node) -> torch.Tensor:
    """Convert an array, in host or device memory, to the tensor that a node of the graph returns."""
    array = value.fetch() if isinstance(value, DeviceTensor) else value
    result = to_tensor(array, dtype_of(tensor(node).dtype))
    assert isinstance(result, torch.Tensor)
    return result


def _tensor(array: Any, dtype: DType) -> torch.Tensor:
    tensor: torch.Tensor = to_tensor(np.array(array), dtype)  # a copy: memory is reused in the call
    return tensor
