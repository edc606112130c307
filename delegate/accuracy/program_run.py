"""A run of a program beside torch: the results, the written inputs and the states of each method are compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.export import ExportedProgram

from delegate.accuracy.bounds import is_quantized, precision_of
from delegate.accuracy.figures import Differences
from delegate.accuracy.recording import RunRecorder
from delegate.accuracy.reference import (
    EagerMethods,
    copies,
    flat_arguments,
    is_random_method,
    tensors,
    written_buffers,
)
from delegate.accuracy.samples import Sample
from delegate.compiled import TensorContext
from delegate.edge.node import shape_text
from delegate.edge.signature import buffers_of_states
from delegate.edge.torch_private import pytree
from delegate.errors import AccuracyError, InputError
from delegate.kernels.libraries import KernelRequest
from delegate.partitioner.extraction import LoweredDelegate, LoweredProgram
from delegate.program.model import Program
from delegate.registry import Registry
from delegate.report.rows import Accuracy, MethodAccuracy
from delegate.runtime.loaded import LoadedProgram

FLOAT = "the float reference"
QUANTIZED = "the quantized reference"
MODEL = "the model that was given"  # a second reference that is not quantized

Results = Mapping[str, Sequence[Sequence[torch.Tensor]]]  # of each call, by method


@dataclass(frozen=True, slots=True)
class MethodComparison:
    """The figures of a method over all its calls.

    Args:
        name: the name of the method.
        lowered: the figures against the program that was lowered, run by torch.
        floats: the figures against a float reference that is another program; None without one.
        gap: the figures of the program that was lowered against its float reference, both run by torch.
    """

    name: str
    lowered: MethodAccuracy
    floats: MethodAccuracy | None = None
    gap: Accuracy | None = None

    @property
    def bounded(self) -> MethodAccuracy:
        """The figures that bounds are for: against the float reference if there is one."""
        return self.lowered if self.floats is None else self.floats


@dataclass(frozen=True, slots=True)
class ProgramRun:
    """A program to run beside torch.

    Args:
        program: the compiled program.
        lowered: its lowered methods.
        exported: the methods that were lowered.
        floats: the float references of methods that are other programs.
        samples: the calls by method, in the order in which methods run.
        registry, kernels: the backends and kernels that the program runs on.
    """

    program: Program
    lowered: Sequence[LoweredProgram]
    exported: Mapping[str, ExportedProgram]
    floats: Mapping[str, ExportedProgram]
    samples: Mapping[str, Sequence[Sample]]
    registry: Registry
    kernels: KernelRequest | None

    @property
    def delegates(self) -> dict[str, LoweredDelegate]:
        """The partitions by name."""
        return {name: delegate for method in self.lowered for name, delegate in method.delegates.items()}

    def load(self, *, trust_code: bool = True, isolate: bool | float = False) -> LoadedProgram:
        """Load the program; a partition that fails is an error. Arguments and errors as of `delegate.load`."""
        return LoadedProgram(
            self.program, self.registry, self.kernels, fallback="error", trust_code=trust_code, isolate=isolate
        )

    def compare(self, loaded: LoadedProgram, recorder: RunRecorder[Any]) -> Iterator[MethodComparison]:
        """Run all methods in one context, one after another, beside torch; yield the figures of each.

        Raises:
            InputError: the samples do not fit.
            BackendError: a partition cannot be run here.
            AccuracyError: torch cannot run the reference.
        """
        states = {method.program.name: buffers_of_states(method.program) for method in self.lowered}
        floats = {name: ep for name, ep in self.floats.items() if name in self.samples}
        eager = EagerMethods({name: self.exported[name] for name in self.samples}, states)
        eager_floats = EagerMethods(floats, states)
        for name in loaded.methods:
            loaded.method(name).watch(recorder)
        specs = {name: (ep.call_spec.in_spec, ep.call_spec.out_spec) for name, ep in self.exported.items()}
        context = TensorContext(specs, lambda: loaded)
        lowered = {method.program.name: method for method in self.lowered}
        for name, calls in self.samples.items():
            references = (eager, eager_floats) if name in floats else (eager,)
            differences, gap = _compare(name, context, references, calls)
            accuracy = _method_accuracy(lowered[name], differences[0], eager, self._reference(name))
            run = MethodComparison(name, accuracy)
            if name in floats:
                against_floats = _method_accuracy(lowered[name], differences[1], eager_floats, FLOAT)
                figures = None if against_floats.figures is None else gap.accuracy()
                run = replace(run, floats=against_floats, gap=figures)
            yield run

    def _reference(self, name: str) -> str:
        """Return the name of the program that is lowered, as a reference."""
        if is_quantized(precision_of(self.exported[name])):
            return QUANTIZED
        return MODEL if name in self.floats else FLOAT


def torch_results(programs: Mapping[str, ExportedProgram], samples: Mapping[str, Sequence[Sample]]) -> Results:
    """Return the results of programs, run by torch, by method; raises AccuracyError if torch cannot run one."""
    written = {name: written_buffers(programs[name]) for name in samples}
    states = {name: dict(zip(own, own, strict=True)) for name, own in written.items()}
    methods = EagerMethods({name: programs[name] for name in samples}, states)
    return {
        name: [methods.run(name, flat_arguments(programs[name], call.args, call.kwargs)) for call in calls]
        for name, calls in samples.items()
    }


def reference_figures(actual: Results, expected: Results) -> dict[str, Accuracy | None]:
    """Return how far results are from others, by method; raises AccuracyError if their numbers or shapes differ."""
    figures = {}
    for name, calls in actual.items():
        differences = Differences()
        for results, references in zip(calls, expected[name], strict=True):
            _require_same_shapes(name, results, references)
            differences.add(results, references)
        figures[name] = differences.accuracy()
    return figures


def _require_same_shapes(method: str, actual: Sequence[Any], expected: Sequence[Any]) -> None:
    """Check that a model and its reference return as many tensors, of the same shapes."""
    remedy = "give the model that the program was lowered from"
    if len(actual) != len(expected):
        what = f"the program returns {len(actual)} outputs, but its reference {len(expected)}"
        raise AccuracyError(what, where=f"method {method}", remedy=remedy)
    for number, (one, other) in enumerate(zip(actual, expected, strict=True)):
        if one.shape != other.shape:
            what = f"output {number} of the program is {shape_text(one)}, but its reference's is {shape_text(other)}"
            raise AccuracyError(what, where=f"method {method}", remedy=remedy)


def _compare(
    name: str, context: TensorContext[LoadedProgram], references: Sequence[EagerMethods], samples: Sequence[Sample]
) -> tuple[list[Differences], Differences]:
    """Run a method and its references on samples.

    Returns:
        the differences of the program from each reference: of results, of written inputs, and of states. Then the
        differences of the first reference's results from the last one's.
    """
    method = context.loaded.method(name)
    by_reference, between = [Differences() for _ in references], Differences()
    for sample in samples:
        try:
            leaves = method.leaves(sample.args, dict(sample.kwargs))
            own_leaves = copies(leaves)
            args, kwargs = pytree.tree_unflatten(own_leaves, references[0].in_spec(name))
            actual = tensors(context.method(name)(*args, **kwargs))
        except InputError as error:
            raise error.at("verify") from error
        states = context.snapshot()
        results: list[list[torch.Tensor]] = []
        for eager, differences in zip(references, by_reference, strict=True):
            reference_leaves = copies(leaves)
            expected = eager.run(name, reference_leaves)
            results.append(expected)
            _require_same_shapes(name, results[0], expected)
            differences.add(
                [*actual, *(own_leaves[n] for n in method.written), *(states[s] for s in eager.names(name))],
                [
                    *expected,
                    *(reference_leaves[n] for n in method.written),
                    *(eager.states[s] for s in eager.names(name)),
                ],
            )
        between.add(results[0], results[-1])
    return by_reference, between


def _method_accuracy(
    method: LoweredProgram, differences: Differences, eager: EagerMethods, reference: str
) -> MethodAccuracy:
    """Return the figures of a method against a reference, and what was not compared."""
    name = method.program.name
    if is_random_method(method):
        return MethodAccuracy(name, reference, why="it draws random numbers, so its results are never the same")
    if len(differences.empty) == len(differences.outputs):
        return MethodAccuracy(name, reference, why="it returns no numbers")
    states = set(method.program.states.values()).difference(eager.names(name))
    gaps = [f"result {number} is empty" for number in differences.empty]
    if len(differences.nowhere_finite) < len(differences.outputs):
        gaps += [f"result {number} has no finite number" for number in differences.nowhere_finite]
    gaps += [f"the reference has no state {state}" for state in sorted(states)]
    return MethodAccuracy(name, reference, differences.accuracy(), "; ".join(gaps), _describe_nan(differences))


def _describe_nan(differences: Differences) -> str:
    """Describe the NaN in results and their references; empty if neither have any."""
    if not (differences.has_nan or differences.has_expected_nan):
        return ""
    if not differences.has_expected_nan:
        sides = "the program returns NaN, and the reference returns none"
    elif not differences.has_nan:
        sides = "the reference returns NaN, and the program returns none"
    else:
        sides = "the program and the reference return NaN"
    return f"{sides} (`delegate debug MODEL --nan` finds the first node)"
