"""A thorough recorder of a run: it compares kernels with torch too, runs partitions twice, and keeps failures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from torch.fx import GraphModule, Node

from delegate.accuracy.bounds import Bounds
from delegate.accuracy.figures import Differences, difference, equal_everywhere
from delegate.accuracy.recording import (
    Forms,
    RecordedCall,
    RecordedInstruction,
    RunRecorder,
    Tensors,
    excess_of,
    inputs_of,
    tensor_of,
)
from delegate.accuracy.reference import GraphRunner, no_reference, tensors
from delegate.compiled import to_tensor
from delegate.edge.control_flow import control_flow
from delegate.edge.graphs import call as call_operator
from delegate.edge.node import torch_dtype
from delegate.edge.program import EdgeProgram
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
from delegate.runtime.lifecycle import hold
from delegate.runtime.steps import DelegateStep, KernelStep, Step
from delegate.runtime.watch import Shapes, WrappedStep
from delegate_devtools.choices import compare_of

T = TypeVar("T")


def has_nan(value: torch.Tensor) -> bool:
    """Return whether a tensor has NaN."""
    return (value.is_floating_point() or value.is_complex()) and bool(value.isnan().any())


def has_infinity(value: torch.Tensor) -> bool:
    """Return whether a tensor has infinity."""
    return (value.is_floating_point() or value.is_complex()) and bool(value.isinf().any())


Test = Callable[[torch.Tensor], bool]
NOT_FINITE: Mapping[str, Test] = {"NaN": has_nan, "infinity": has_infinity}


@dataclass(slots=True)
class DebuggedInstruction(RecordedInstruction):
    """An instruction of a method, with what the search for its faults needs.

    Args:
        operator: The operator that a kernel runs; empty for a partition.
        source: the user's line; empty if unknown.

    Attributes:
        prefix: The prefix of the nodes in its body of control flow, e.g. "true_graph_0."; empty outside of bodies.
        totals: Differences from torch, run from the method's inputs; none if that is unknown.
        exact: torch's results in float64, of the worst call of a kernel that misses the bounds.
        last: the last call of a partition.
        is_stable: a second execution on the same inputs returned the same.
        failure: the error that the instruction raised, in the call `worst`.
        is_another_answer: it is right, and differs from torch, because several answers are right.
    """

    operator: str = ""
    source: str = ""
    prefix: str = ""
    totals: Differences = field(default_factory=Differences)
    exact: Tensors = ()
    last: RecordedCall | None = None
    is_stable: bool = True
    is_another_answer: bool = False
    failure: DelegateError | None = None

    def describe(self) -> str:
        """Return the partition and its backend, or the operator, the name and the user's line of the kernel."""
        if self.delegate is not None:
            return f"partition {self.name} on {self.delegate.backend}"
        return describe_operator(self.operator, self.name, self.source)

    @property
    def is_wrong(self) -> bool:
        """Whether it misses the bounds, failed, or returned different results for the same inputs."""
        return self.excess > 1 or self.failure is not None or not self.is_stable

    def add(self, call: RecordedCall, forms: Forms, bounds: Bounds) -> None:
        """Add a completed call; see `RecordedInstruction.add`."""
        RecordedInstruction.add(self, call, forms, bounds)
        if forms[0] is not call.actual and excess_of(bounds, difference(*forms)) <= 1:
            self.is_another_answer |= excess_of(bounds, difference(call.actual, call.expected)) > 1

    def fail(self, error: DelegateError, inputs: Tensors) -> None:
        """Add a call that failed."""
        self.failure, self.worst = error, RecordedCall(inputs)


@dataclass(frozen=True, slots=True)
class NotFiniteCall:
    """The first call of an instruction whose results have NaN or infinity.

    Args:
        kind: a key of `NOT_FINITE`.
        entry: the instruction.
        call: the call; without inputs for a kernel.
    """

    kind: str
    entry: DebuggedInstruction
    call: RecordedCall


class ThoroughRecorder(RunRecorder[DebuggedInstruction]):
    """A recorder that compares each kernel with torch, and runs each partition twice.

    Args:
        delegates: the partitions by name.
        bounds: the error that an instruction may have.
        values: results of torch in the first call, by method and node.
        bodies: method name -> name of a control-flow node -> the prefixes of the nodes in its bodies.

    Attributes:
        not_compared: operators of kernels that torch cannot run, such as fused ones.
    """

    def __init__(
        self,
        delegates: Mapping[str, LoweredDelegate],
        bounds: Bounds,
        values: Mapping[str, Mapping[str, torch.Tensor]],
        bodies: Mapping[str, Mapping[str, Sequence[str]]],
    ) -> None:
        super().__init__(delegates, bounds, DebuggedInstruction)
        self._values, self._bodies = values, bodies
        self._prefixes: dict[str, dict[tuple[int, ...], str]] = {}  # by method and results of an instruction
        self.not_compared: set[str] = set()
        self._entries: dict[tuple[str, str], DebuggedInstruction] = {}
        self._not_finite: dict[tuple[str, int], NotFiniteCall] = {}

    @property
    def instructions(self) -> tuple[DebuggedInstruction, ...]:
        """The recorded instructions, in the order of their first calls."""
        return tuple(self._entries.values())

    def not_finite(self, method: str, kind: str) -> list[NotFiniteCall]:
        """Return the first NaN or infinity of each instruction of a method that has one, in the order of the run."""
        return [f for f in self._not_finite.values() if (f.entry.method, f.kind) == (method, kind)]

    def wrap(
        self, program: Program, method: MethodDefinition, call: Instruction, steps: Iterable[Step], shapes: Shapes
    ) -> list[Step]:
        """Return the steps of an instruction; partitions and kernels are recorded."""
        return [self._wrap(program, method, call, step) for step in steps]

    def _wrap(self, program: Program, method: MethodDefinition, call: Instruction, step: Step) -> Step:
        if isinstance(call, DelegateCall) and isinstance(step, DelegateStep):
            return WrappedStep(step, lambda: self._run_partition(step, self.entry(program, method, call)))
        if isinstance(call, KernelCall) and isinstance(step, KernelStep):
            return WrappedStep(step, lambda: self._run_kernel(step, self.entry(program, method, call), method, call))
        return step

    def run(
        self, program: Program, method: MethodDefinition, call: Instruction, function: Callable[..., T], *args: Any
    ) -> T:
        """Run the function of an instruction that has no steps."""
        results = function(*args)
        if isinstance(call, KernelCall):
            entry = self.entry(program, method, call)
            self._note_kernel(entry, results if isinstance(results, tuple) else (results,), method, call)
        return results

    def add_unopened(self, method: str, name: str, error: DelegateError) -> DebuggedInstruction:
        """Add a partition that its backend does not open, and return its record."""
        entry = self._entries.setdefault((method, name), self._open(method, name))
        entry.failure = error
        return entry

    def entry(
        self, program: Program, method: MethodDefinition, call: DelegateCall | KernelCall, prefix: str = ""
    ) -> DebuggedInstruction:
        """Return the record of an instruction that runs; instructions of bodies have records of their own."""
        prefix = self._prefix(method, call)
        if isinstance(call, DelegateCall):
            entry = self._open(method.name, program.delegates[call.delegate].name)
        else:
            name, operator = method.values[call.outputs[0]].name, program.operators[call.operator]
            entry = DebuggedInstruction(method.name, name, operator=operator, source=source_of(method, call))
        entry = self._entries.setdefault((method.name, prefix + entry.name), entry)
        entry.prefix = prefix
        return entry

    def _prefix(self, method: MethodDefinition, call: Instruction) -> str:
        """Return the prefix of node names in the body that has an instruction; empty outside of bodies."""
        if method.name not in self._prefixes:
            bodies = self._bodies.get(method.name, {})
            self._prefixes[method.name] = dict(_prefixes(method, method.instructions, bodies))
        return self._prefixes[method.name].get(tuple(call.outputs), "")

    def _add(self, entry: DebuggedInstruction, call: RecordedCall, forms: Forms) -> None:
        entry.add(call, forms, self.bounds)
        names = [entry.name] if entry.delegate is None else [node.name for node in entry.region.outputs]
        known, names = self._values.get(entry.method, {}), [entry.prefix + name for name in names]
        if not entry.totals.calls and len(names) == len(call.actual) and all(name in known for name in names):
            entry.totals.add(call.actual, [known[name] for name in names])

    def _run_partition(self, step: DelegateStep, entry: DebuggedInstruction) -> None:
        inputs = inputs_of(step, entry)
        try:
            step()
            repeated = tuple(np.empty_like(a) for a in step.outputs)
            with hold(step.lock):
                step.delegate.execute(tuple(step.inputs), repeated)
        except Exception as error:  # a library may raise anything
            entry.fail(step.translate(error), inputs)
            raise
        entry.last = call = self._record(step, entry, inputs)
        self._note(entry, call)
        if not same(call.actual, [tensor_of(a, n) for a, n in zip(repeated, entry.region.outputs, strict=True)]):
            entry.is_stable, entry.worst = False, call

    def _run_kernel(
        self, step: KernelStep, entry: DebuggedInstruction, method: MethodDefinition, call: KernelCall
    ) -> None:
        """Run a kernel, and torch's operator on the same arguments."""
        arguments = [_argument(a, v, method) for a, v in zip(call.args, step.args, strict=True)]
        inputs = tuple(t for a in arguments for t in (a if isinstance(a, list) else [a]) if isinstance(t, torch.Tensor))
        operator = torch_operator(entry.operator)
        expected = _run_operator(operator, arguments)
        try:
            step()
        except Exception as error:  # a plugin's kernel may raise anything
            entry.fail(step.translate(error), inputs)
            raise
        self._note_kernel(entry, step.outs, method, call)
        if expected is None:
            self.not_compared.add(entry.operator)
            return
        values = (method.values[i] for i in call.outputs)
        actual = tuple(_tensor(a, v.dtype) for a, v in zip(step.outs, values, strict=True) if a is not None)
        if len(actual) == len(expected):
            forms = _forms(operator, arguments, actual, expected)
            recorded = RecordedCall(inputs, actual, expected)
            self._add(entry, recorded, forms)
            if entry.worst is recorded:
                has_one_answer = forms[0] is actual  # float64 may have another right one
                is_exact_needed = entry.excess > 1 and has_one_answer
                exact = _run_operator(operator, [to_float64(a) for a in arguments]) if is_exact_needed else None
                entry.exact = exact or ()

    def _note_kernel(
        self, entry: DebuggedInstruction, results: Iterable[Any], method: MethodDefinition, call: KernelCall
    ) -> None:
        arrays = zip(results, (method.values[index].dtype for index in call.outputs), strict=True)
        self._note(entry, RecordedCall((), tuple(tensors([to_tensor(array, dtype) for array, dtype in arrays]))))

    def _note(self, entry: DebuggedInstruction, call: RecordedCall) -> None:
        """Note the first call of an instruction with NaN, and with infinity."""
        for kind, test in NOT_FINITE.items():
            if any(map(test, call.actual)):
                self._not_finite.setdefault((kind, id(entry)), NotFiniteCall(kind, entry, call))


def edge_values(edge: EdgeProgram, leaves: Sequence[Any], names: Set[str]) -> dict[str, torch.Tensor]:
    """Return values of a method in edge dialect, run by torch, by node.

    The names of nodes in bodies of control flow have a prefix, e.g. "true_graph_0.relu". Their values come from the
    first execution.

    Args:
        edge: the method, whose states have their initial values.
        leaves: the leaves of the arguments, in order.
        names: the nodes whose values are returned, if they have one tensor; without prefixes.

    Raises:
        AccuracyError: torch cannot run the method.
    """
    given = {leaf.node: value for leaf, value in zip(edge.inputs, leaves, strict=True)}
    given |= edge.constants
    values = {name: v.clone() for name, v in given.items() if name in names and isinstance(v, torch.Tensor)}
    modules = edge.graph_module.named_modules()
    prefixes = {module.graph: f"{path}." * bool(path) for path, module in modules if isinstance(module, GraphModule)}

    def record(node: Node, result: Any) -> Any:
        name = f"{prefixes[node.graph]}{node.name}"
        if node.name in names and name not in values and isinstance(result, torch.Tensor):
            values[name] = result.clone()
        return result

    runner = GraphRunner(edge.graph_module, record, with_bodies=True, call=call_operator)
    try:
        with torch.no_grad():
            placeholders = edge.graph.find_nodes(op="placeholder")
            runner.run(*(given[n.name] for n in placeholders), enable_io_processing=False)
    except Exception as error:  # an operator may raise anything
        raise no_reference(f"method {edge.name}", error) from error
    return values


def prefixes_of_bodies(module: GraphModule, prefix: str = "") -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each control-flow node by its name, with the prefixes of the nodes in its bodies, also for those in bodies.

    Prefixes are as in `NodeReport.name`, e.g. "true_graph_0.", in the order of `ControlFlow.graphs`.
    """
    for node in module.graph.nodes:
        if (flow := control_flow(node)) is not None:
            prefixes = tuple(f"{prefix}{graph.target}." for graph in flow.graphs)
            yield prefix + node.name, prefixes
            for graph, own in zip(flow.graphs, prefixes, strict=True):
                yield from prefixes_of_bodies(getattr(module, str(graph.target)), own)


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


def same(tensors: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    """Return whether tensors are equal, with NaN at the same places."""
    return all(map(equal_everywhere, tensors, others))


def _tensor(array: Any, dtype: DType) -> torch.Tensor:
    tensor: torch.Tensor = to_tensor(np.array(array), dtype)  # a copy: memory is reused in the call
    return tensor
