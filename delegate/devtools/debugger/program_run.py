"""A run of a program beside torch: every instruction on its own inputs, and the results of each method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_unflatten

from delegate.accuracy.bounds import Bounds, is_quantized, precision_of
from delegate.accuracy.reference import copies, edge_values, flat_arguments, is_random_method, tensors
from delegate.accuracy.samples import Sample
from delegate.accuracy.verification import FLOAT, reference_figures, torch_results
from delegate.compiled import LoadedContext, to_array
from delegate.devtools.debugger.recording import RunRecorder
from delegate.edge.control_flow import prefixes_of_bodies
from delegate.edge.graphs import graph_modules
from delegate.errors import AccuracyError, DelegateError, InputError
from delegate.partitioner.extraction import LoweredProgram
from delegate.placement.strategy import Placed
from delegate.program.model import Method, Program
from delegate.report.rows import Accuracy
from delegate.request import LoweringRequest
from delegate.runtime.arguments import leaves_of
from delegate.runtime.inputs import InputChecker
from delegate.runtime.loaded import LoadedProgram


@dataclass
class ProgramRun:
    """A run of a program beside torch.

    Creating it raises InputError if the calls do not fit, and AccuracyError if torch cannot run a method.

    Args:
        request: of the lowering.
        model: the placed model.
        program: the program.
        lowered: its methods.
        samples: the calls by method.
        bounds: define which results are wrong.
        limit: seconds that a call of a library may take.
        trust_code: run partitions of machine code.

    Attributes:
        recorder: the instructions that ran.
        values: results of torch in the first call, by method and node.
        figures: of each method against its reference: method and reference in words -> figures.
        notes: what failed, and what is not compared.
        is_loaded: the backends have opened all partitions.
    """

    request: LoweringRequest
    model: Placed
    program: Program
    lowered: Sequence[LoweredProgram]
    samples: Mapping[str, Sequence[Sample]]
    bounds: Bounds
    limit: float
    trust_code: bool
    notes: list[str] = field(default_factory=list)
    figures: dict[str, Accuracy | None] = field(default_factory=dict)
    is_loaded: bool = True
    values: Mapping[str, Mapping[str, torch.Tensor]] = field(init=False)
    recorder: RunRecorder = field(init=False)

    def __post_init__(self) -> None:
        regions = {name: d.region for method in self.lowered for name, d in method.delegates.items()}
        definitions = {method.name: method for method in self.program.methods}
        self._calls = {name: [_leaves(definitions[name], c) for c in own] for name, own in self.samples.items()}
        self.samples = {name: [self._sample(name, c) for c in own] for name, own in self._calls.items()}
        self.values = self._torch_values()
        edges = {name: method.edge for name, method in self.model.compiler.methods.items()}
        bodies = {name: dict(prefixes_of_bodies(edge.graph_module)) for name, edge in edges.items()}
        self.recorder = RunRecorder(regions, self.bounds, self.values, bodies)

    def run(self) -> None:
        """Run all calls; raises AccuracyError if torch cannot run the reference."""
        try:
            loaded = LoadedProgram(
                self.program,
                self.request.registry,
                self.request.selection.kernels,
                fallback="error",
                trust_code=self.trust_code,
                isolate=self.limit,
            )
        except DelegateError as error:
            self.is_loaded = False
            self.notes.append(f"the program cannot be loaded, so no instruction ran: {error.what} ({error.where})")
            return
        with loaded:
            results = self._results(loaded)
        for name in [name for name in results if is_random_method(self._method(name))]:
            self.notes.append(f"method {name} draws random numbers, so its results are not compared")
            del results[name]
        self._compare(results)

    def reference_of(self, name: str) -> str:
        """Return the reference of a method in words."""
        if is_quantized(precision_of(self.model.exported[name])):
            return "the quantized reference"
        return "the model that was given" if name in self.model.floats else FLOAT

    def note_gaps(self) -> None:
        """Add notes on what was not compared."""
        if self.recorder.not_compared:
            names = ", ".join(sorted(self.recorder.not_compared))
            self.notes.append(f"not compared, since torch lacks them or they draw random numbers: {names}")
        ran = {entry.name for entry in self.recorder.instructions}
        for method in self.lowered if self.is_loaded else ():
            name = method.program.name
            if name not in self.samples:
                self.notes.append(f"method {name} did not run: no inputs were given for it")
            elif missed := [partition for partition in method.delegates if partition not in ran]:
                self.notes.append(f"not reached by the inputs: {', '.join(missed)}")

    def _sample(self, name: str, leaves: Sequence[Any]) -> Sample:
        return Sample(*tree_unflatten(leaves, self.model.exported[name].call_spec.in_spec))

    def _method(self, name: str) -> LoweredProgram:
        return next(method for method in self.lowered if method.program.name == name)

    def _results(self, loaded: LoadedProgram) -> dict[str, list[list[torch.Tensor]]]:
        """Return the results of all calls by method; of those before the first failure if an instruction fails."""
        for name in loaded.methods:
            loaded.method(name).watch(self.recorder)
        specs = {n: (ep.call_spec.in_spec, ep.call_spec.out_spec) for n, ep in self.model.exported.items()}
        context = LoadedContext(loaded, specs)
        results: dict[str, list[list[torch.Tensor]]] = {}
        try:
            for name, own in self._calls.items():
                calls = (self._sample(name, copies(leaves)) for leaves in own)
                results[name] = [tensors(context.method(name)(*call.args, **call.kwargs)) for call in calls]
        except (InputError, AccuracyError):
            raise
        except DelegateError as error:
            self.notes.append(f"the program failed, and later instructions did not run: {error.what} ({error.where})")
        return results

    def _compare(self, results: Mapping[str, Sequence[Sequence[torch.Tensor]]]) -> None:
        """Set the figures of methods that ran."""
        floats = self.model.floats
        done = {name: self.samples[name] for name in results}
        for name, accuracy in reference_figures(results, torch_results(self.model.exported, done)).items():
            self.figures[f"{name} against {self.reference_of(name)}"] = accuracy
        for name in results.keys() & floats.keys():
            against = reference_figures({name: results[name]}, torch_results(floats, {name: done[name]}))
            self.figures[f"{name} against {FLOAT}"] = against[name]

    def _torch_values(self) -> dict[str, dict[str, torch.Tensor]]:
        """Return the values of torch at the results of partitions and kernels, in the first call of each method."""
        values = {}
        for method in self.lowered:
            name = method.program.name
            if name in self.samples and not is_random_method(method):
                inside = {n.name for d in method.delegates.values() for n in d.region.outputs}
                modules = graph_modules(method.program.graph_module)
                inside |= {node.name for module in modules for node in module.graph.nodes}
                ep, call = self.model.exported[name], self.samples[name][0]
                edge = self.model.compiler.methods[name].edge
                values[name] = edge_values(edge, flat_arguments(ep, call.args, call.kwargs), inside)
        return values


def _leaves(definition: Method, call: Sample) -> list[Any]:
    """Return the leaves of the arguments of a method; raises InputError if they do not fit."""
    leaves = leaves_of(definition, call.args, dict(call.kwargs))
    InputChecker(definition).arrays([to_array(leaf, f"of {definition.name}") for leaf in leaves])
    return leaves
