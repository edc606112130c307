"""A recorder of a run: the error of every instruction against torch, on the inputs that the instruction had."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from delegate.accuracy.bounds import Bounds
from delegate.accuracy.choices import compare_of
from delegate.accuracy.figures import Differences, difference, equal_everywhere
from delegate.accuracy.nan import has_infinity, has_nan
from delegate.accuracy.recording import tensor_of
from delegate.accuracy.reference import EagerRegion
from delegate.backends.aot import Region
from delegate.compiled import to_tensor
from delegate.edge.node import torch_dtype
from delegate.errors import DelegateError
from delegate.program.dtypes import DType
from delegate.program.model import (
    Arg,
    DelegateCall,
    Instruction,
    KernelCall,
    Method,
    Program,
    Ref,
    StructuredCall,
)
from delegate.report.rows import Accuracy
from delegate.runtime.call_lock import hold
from delegate.runtime.steps import DelegateStep, KernelStep, Step
from delegate.runtime.watch import Shapes, StepWatch, WrappedStep

Tensors = tuple[torch.Tensor, ...]
Forms = tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A call of an instruction: its inputs, its results, and those of torch; no results if it failed.

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
        operator: of the kernel; empty for a partition.
        source: the user's line; empty if unknown.
        region: of the partition; None for a kernel.
        differences: from torch, on the instruction's own inputs.
        totals: from torch, run from the inputs of the method; none if that is unknown.
        worst: the call with the greatest error, if it misses the bounds or failed.
        last: of a partition, the last call.
        is_stable: a second execution on the same inputs returned the same.
        failure: the error that the instruction raised.
        prefix: that of the nodes in its body of control flow, e.g. "true_graph_0."; empty outside of bodies.
        is_another_answer: it is right, and differs from torch, because several answers are right.
        nan, infinity: the first call whose results have NaN or infinity, and whose inputs have none.
    """

    method: str
    name: str
    operator: str = ""
    source: str = ""
    region: Region | None = None
    differences: Differences = field(default_factory=Differences)
    totals: Differences = field(default_factory=Differences)
    worst: RecordedCall | None = None
    last: RecordedCall | None = None
    is_stable: bool = True
    is_another_answer: bool = False
    failure: DelegateError | None = None
    nan: RecordedCall | None = None
    infinity: RecordedCall | None = None
    prefix: str = ""
    _excess: float = 1.0

    def add(self, call: RecordedCall, forms: Forms, bounds: Bounds, values: Sequence[torch.Tensor]) -> None:
        """Add a completed call.

        Args:
            call: the call.
            forms: its results and those of torch, in forms that all right answers share.
            bounds: the error that it may have.
            values: the results of torch, run from the inputs of the method, if known.
        """
        own = Differences()
        own.add(*forms)
        self.differences.add(*forms)
        if self.nan is None and any(map(has_nan, call.actual)) and not any(map(has_nan, call.inputs)):
            self.nan = call
        if self.infinity is None and any(map(has_infinity, call.actual)) and not any(map(has_infinity, call.inputs)):
            self.infinity = call
        if values and not self.totals.calls:
            self.totals.add(call.actual, values)
        excess = excess_of(bounds, own.accuracy())
        self.is_another_answer |= excess <= 1 < excess_of(bounds, difference(call.actual, call.expected))
        if excess > self._excess:
            self._excess, self.worst = excess, call


class RunRecorder(StepWatch):
    """A recorder of the instructions of a program; a `Watch` of the runtime.

    Args:
        regions: the regions of partitions by name.
        bounds: the error that an instruction may have.
        values: results of torch in the first call, by method and node.
        bodies: by method and name of a control-flow node, the prefixes of the nodes in its bodies.

    Attributes:
        instructions: those that ran, in the order of their first calls.
        not_compared: operators of kernels that torch cannot run, such as fused ones.
    """

    def __init__(
        self,
        regions: Mapping[str, Region],
        bounds: Bounds,
        values: Mapping[str, Mapping[str, torch.Tensor]],
        bodies: Mapping[str, Mapping[str, Sequence[str]]],
    ) -> None:
        self._regions, self.bounds, self._values, self._bodies = regions, bounds, values, bodies
        self._prefixes: dict[str, dict[tuple[int, ...], str]] = {}  # by method and results of an instruction
        self._eager: dict[str, EagerRegion] = {}
        self._by_name: dict[tuple[str, str], RecordedInstruction] = {}
        self.not_compared: set[str] = set()

    @property
    def instructions(self) -> tuple[RecordedInstruction, ...]:
        """The recorded instructions, in the order of their first calls."""
        return tuple(self._by_name.values())

    def watched(
        self, program: Program, method: Method, call: Instruction, steps: Iterable[Step], shapes: Shapes
    ) -> list[Step]:
        """Return the steps of an instruction; those of delegates and kernels are recorded."""
        return [self._wrapped(program, method, call, step) for step in steps]

    def _wrapped(self, program: Program, method: Method, call: Instruction, step: Step) -> Step:
        prefix = self._prefix(method, call)
        if isinstance(call, DelegateCall) and isinstance(step, DelegateStep):
            name = program.delegates[call.delegate].name
            return WrappedStep(step, partial(self._run_partition, step, method, name, prefix))
        if isinstance(call, KernelCall) and isinstance(step, KernelStep):
            name = program.operators[call.operator]
            return WrappedStep(step, _OperatorRun(self, step, method, call, name, prefix))
        return step

    def _prefix(self, method: Method, call: Instruction) -> str:
        """Return the prefix of the names of nodes in the body that has an instruction; empty outside of bodies."""
        if method.name not in self._prefixes:
            bodies = self._bodies.get(method.name, {})
            self._prefixes[method.name] = dict(_prefixes(method, method.instructions, bodies))
        return self._prefixes[method.name].get(tuple(call.outputs), "")

    def entry(self, entry: RecordedInstruction) -> RecordedInstruction:
        """Return the record of an instruction that runs, which may be in another loop iteration."""
        return self._by_name.setdefault((entry.method, entry.prefix + entry.name), entry)

    def _in_torch(self, name: str) -> EagerRegion:
        """Return a partition that torch runs."""
        if name not in self._eager:
            self._eager[name] = EagerRegion(self._regions[name])
        return self._eager[name]

    def add(self, entry: RecordedInstruction, call: RecordedCall, forms: Forms) -> None:
        """Add a completed call; see `RecordedInstruction.add`."""
        names = [entry.name] if entry.region is None else [node.name for node in entry.region.outputs]
        known, names = self._values.get(entry.method, {}), [entry.prefix + name for name in names]
        values = [known[name] for name in names] if all(name in known for name in names) else []
        entry.add(call, forms, self.bounds, values if len(values) == len(call.actual) else [])

    def _run_partition(self, step: DelegateStep, method: Method, name: str, prefix: str) -> None:
        region = self._regions[name]
        entry = self.entry(RecordedInstruction(method.name, name, region=region, prefix=prefix))
        inputs = tuple(tensor_of(a, n).clone() for a, n in zip(step.inputs, region.inputs, strict=True))
        try:
            step()
            repeated = tuple(np.empty_like(a) for a in step.outputs)
            with hold(step.lock):
                step.delegate.execute(tuple(step.inputs), repeated)
        except Exception as error:  # a library may raise anything
            entry.failure = step.failed(error)
            entry.worst = RecordedCall(inputs)
            raise
        actual, again = (
            tuple(tensor_of(a, n).clone() for a, n in zip(arrays, region.outputs, strict=True))
            for arrays in (step.outputs, repeated)
        )
        eager = self._in_torch(name)
        call = RecordedCall(inputs, actual, tuple(eager.results(inputs)))
        results = {node.name: tensor for node, tensor in zip(region.outputs, actual, strict=True)}
        self.add(entry, call, eager.compare(inputs, results) if eager.choices else (call.actual, call.expected))
        entry.last = call
        if not same(actual, again):
            entry.is_stable, entry.worst = False, call


class _OperatorRun:
    """The run of a kernel's step, compared with torch's operator."""

    __slots__ = ("call", "entry", "method", "operator", "recorder", "step")

    def __init__(
        self, recorder: RunRecorder, step: KernelStep, method: Method, call: KernelCall, name: str, prefix: str
    ) -> None:
        self.recorder, self.step, self.method, self.call = recorder, step, method, call
        self.operator = torch_operator(name)
        source = method.sources[call.source] if call.source >= 0 else ""
        first = method.values[call.outputs[0]].name
        self.entry = RecordedInstruction(method.name, first, name, source, prefix=prefix)

    def __call__(self) -> None:
        entry = self.recorder.entry(self.entry)
        arguments = [self._argument(a, v) for a, v in zip(self.call.args, self.step.args, strict=True)]
        inputs = tuple(t for a in arguments for t in (a if isinstance(a, list) else [a]) if isinstance(t, torch.Tensor))
        expected = self._expected(arguments)
        try:
            self.step()
        except Exception as error:  # a plugin's kernel may raise anything
            entry.failure, entry.worst = self.step.failed(error), RecordedCall(inputs)
            raise
        if expected is None:
            self.recorder.not_compared.add(entry.operator)
            return
        values = (self.method.values[i] for i in self.call.outputs)
        actual = tuple(_tensor(a, v.dtype) for a, v in zip(self.step.outs, values, strict=True) if a is not None)
        if len(actual) == len(expected):
            forms = self._forms(arguments, actual, expected)
            is_wrong = excess_of(self.recorder.bounds, difference(*forms)) > 1
            has_one_answer = forms[0] is actual  # float64 may have another right one
            exact = self._expected([to_float64(a) for a in arguments]) if is_wrong and has_one_answer else None
            self.recorder.add(entry, RecordedCall(inputs, actual, expected, exact or ()), forms)

    def _forms(self, arguments: Sequence[Any], actual: Tensors, expected: Tensors) -> Forms:
        """Return the results and those of torch in forms that all right answers share."""
        schema = self.operator._schema.arguments
        named = dict(zip((a.name for a in schema), arguments, strict=True))
        compare = compare_of(self.operator, named)
        if compare is None:
            return actual, expected
        pairs = list(compare(named, dict(enumerate(actual)), dict(enumerate(expected))))
        return [one for one, _ in pairs], [other for _, other in pairs]

    def _argument(self, arg: Arg, value: Any) -> Any:
        if isinstance(arg, Ref):
            return _tensor(value, self.method.values[arg.index].dtype)
        if isinstance(arg, tuple):
            return [self._argument(a, v) for a, v in zip(arg, value, strict=True)]
        return torch_dtype(value) if isinstance(value, DType) else value

    def _expected(self, arguments: Sequence[Any]) -> Tensors | None:
        """Return the results of torch's operator; None if torch has none, or draws random numbers."""
        if self.operator is None or torch.Tag.nondeterministic_seeded in self.operator.tags:
            return None
        schema = self.operator._schema.arguments
        try:
            with torch.no_grad():
                positional = [v for a, v in zip(schema, arguments, strict=True) if not a.kwarg_only]
                named = {a.name: v for a, v in zip(schema, arguments, strict=True) if a.kwarg_only}
                result = self.operator(*positional, **named)
        except Exception:  # an operator may raise anything
            return None
        results = result if isinstance(result, tuple | list) else (result,)
        return tuple(torch.as_tensor(r) for r in results)


def _prefixes(
    method: Method, instructions: Iterable[Instruction], bodies: Mapping[str, Sequence[str]], prefix: str = ""
) -> Iterator[tuple[tuple[int, ...], str]]:
    """Yield the results of each instruction, and the prefix of the names of nodes in its body."""
    for call in instructions:
        yield tuple(call.outputs), prefix
        if isinstance(call, StructuredCall) and call.outputs:
            name = method.values[call.outputs[0]].name.partition(".")[0]  # "name.0" if there are several results
            for block, own in zip(call.blocks, bodies.get(prefix + name, ()), strict=False):
                yield from _prefixes(method, block.instructions, bodies, own)


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
    """Return the noise over what bounds allow; 0 for results without a finite element, which are those of torch."""
    return 0.0 if figures is None or math.isnan(figures.sqnr_db) else bounds.excess(figures)


def same(tensors: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    """Return if tensors are equal, with NaN at the same places."""
    return all(map(equal_everywhere, tensors, others))


def _tensor(array: Any, dtype: DType) -> torch.Tensor:
    tensor: torch.Tensor = to_tensor(np.array(array), dtype)  # a copy: memory is reused in the call
    return tensor
