"""The debugger: run a program beside torch, and reduce every wrong partition to the operators at fault."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from delegate.accuracy.bounds import DEFAULTS, Bounds, Verify, is_quantized, precision_of, with_bounds
from delegate.accuracy.layer_noise import layers_of
from delegate.accuracy.program_run import FLOAT, MethodComparison, ProgramRun
from delegate.accuracy.recording import excess_of
from delegate.accuracy.reference import flat_arguments, is_random_method
from delegate.accuracy.samples import Sample
from delegate.accuracy.verification import samples_to_verify
from delegate.common.files import require_folder
from delegate.compiled import to_array
from delegate.config import Config
from delegate.edge.graphs import graph_modules
from delegate.edge.torch_private import pytree
from delegate.errors import AccuracyError, DelegateError, InputError
from delegate.placement.strategy import Placed
from delegate.program.model import Program
from delegate.report.rows import LayerAccuracy
from delegate.request import LoweringRequest
from delegate.runtime.arguments import leaves_of
from delegate.runtime.inputs import InputChecker
from delegate.runtime.isolated import Isolated
from delegate.selection import open_artifact_cache
from delegate_devtools.diagnosis import Diagnosis, Fault, FaultyNode
from delegate_devtools.faults import kind_of
from delegate_devtools.not_finite import describe_not_finite, first_node
from delegate_devtools.quantization import find_clipped_ranges
from delegate_devtools.recorder import (
    NOT_FINITE,
    DebuggedInstruction,
    ThoroughRecorder,
    edge_values,
    prefixes_of_bodies,
)
from delegate_devtools.saved_program import SavedProgram
from delegate_devtools.search import (
    PartitionSearch,
    SearchContext,
    all_compile_faults,
    continue_after_errors,
    failure_of,
    figures_of,
    record_unopened,
)

_LIBRARY_SECONDS = 60.0  # at least, for one call of a library: an emulator of a DSP is slow
_MOST_SECONDS = 1e5  # of the budget
_NAMED = 3  # instructions in a note
# By precision, in dB: an instruction is wrong below. Float32 rounds at 140 dB, and a deep partition at 100 dB.
_THRESHOLDS = {**DEFAULTS, "float32": 80.0}

Progress = Callable[[str], None]


def run_debugger(
    request: LoweringRequest,
    inputs: Any = None,
    *,
    budget: float = 60.0,
    output: str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] | None = None,
    saved: SavedProgram | None = None,
) -> Diagnosis:
    """Find the operators of a program that return wrong values, and the kind of each fault.

    - Every partition and kernel is compared with torch, on the inputs that it has in the program.
    - Sub-regions of a wrong partition are compiled and run, down to a smallest set that is wrong by itself.
    - Libraries run in a separate process, so a crash is a fault like any other.

    Args:
        request: the model and its backends. Bounds of the configuration define which results are wrong; otherwise the
            default of each method's precision does.
        inputs: the inputs to run it on, or a `Verify`, whose bounds and reference go before the request's; None: the
            example inputs of the export.
        budget: seconds after which no further sub-region is tried.
        output: folder for the scripts that show the faults without this project; None: none are written.
        progress: called with short progress texts.
        saved: the program of this model to debug, in place of a new one; the request has a `FromSavedProgram`.

    Raises:
        LoweringError, BackendError and others: the model cannot be lowered, as by `to_backend`.
        InputError: the inputs or the saved program do not fit, or the folder cannot be written.
        AccuracyError: torch cannot run the reference.
    """
    is_number = isinstance(budget, int | float) and not isinstance(budget, bool)
    if not is_number or not 0 <= budget <= _MOST_SECONDS:
        raise InputError(f"budget should be seconds from 0 to {_MOST_SECONDS:g}, not {budget!r}", where="debug")
    if output is not None:
        require_folder(output, "the reproductions", InputError)
    request = _add_inputs(replace(request, progress=progress), inputs)
    return _Debugger(request, float(budget), None if output is None else Path(output), saved).diagnose()


def _add_inputs(request: LoweringRequest, inputs: Any) -> LoweringRequest:
    """Return the request with other inputs, or another `Verify`; raises ConfigError if its bounds are invalid."""
    if not isinstance(inputs, Verify):
        return replace(request, check=replace(request.check, inputs=inputs))
    check = inputs if inputs.reference is not None else replace(inputs, reference=request.check.reference)
    verify = with_bounds(Config(verify=request.selection.verify), inputs).verify
    return replace(request, check=check, selection=replace(request.selection, verify=verify))


@dataclass
class _Debugger:
    """A search for the faults of one program."""

    request: LoweringRequest
    budget: float
    output: Path | None
    saved: SavedProgram | None
    notes: list[str] = field(default_factory=list)
    is_loaded: bool = False
    model: Placed = field(init=False)
    run: ProgramRun = field(init=False)
    recorder: ThoroughRecorder = field(init=False)

    def diagnose(self) -> Diagnosis:
        """Lower the model, run it, and search."""
        start = time.monotonic()
        request = self.request
        self._report("lowering")
        cache = open_artifact_cache(request.selection, request.registry, request.cache)
        self.model = model = request.place(cache, continue_after_errors)
        self.notes += (
            f"plan {plan.name} of method {placement.method} was dropped: {plan.why}"
            for placement in model.placements
            for plan in placement.plans
            if plan.why
        )
        given = samples_to_verify(request.check.inputs, model.exported)
        program, lowered = model.compiler.compile() if self.saved is None else self.saved.lower(model.compiler)
        if self.saved is not None:
            self.notes += self.saved.compare_weights(model.exported)
        self._report("running the program beside torch")
        limit = max(_LIBRARY_SECONDS, 2 * self.budget)
        precision, bounds = _bounds(request, model)
        kernels = request.selection.kernels
        samples = {name: [_fit(program, name, model, call) for call in calls] for name, calls in given.items()}
        self.run = ProgramRun(program, lowered, model.exported, model.floats, samples, request.registry, kernels)
        edges = {name: method.edge for name, method in model.compiler.methods.items()}
        bodies = {name: dict(prefixes_of_bodies(edge.graph_module)) for name, edge in edges.items()}
        values = self._torch_values()
        self.recorder = ThoroughRecorder(self.run.delegates, bounds, values, bodies)
        trust_code = self.saved is None or self.saved.trust_code  # of what was compiled here, or of a trusted file
        methods = list(self._compare(limit, trust_code=trust_code))
        with closing(Isolated(program, request.registry, trust_code=trust_code, limit=limit)) as isolated:
            is_saved, artifacts = self.saved is not None, model.compiler.artifacts
            context = SearchContext(
                request, artifacts, self.run, isolated, bounds, self.budget, self.output, self.notes, is_saved
            )
            faults = list(all_compile_faults(context, model.compiler.failures))
            if not self.is_loaded:
                record_unopened(context, self.recorder, values)
            entries = self.recorder.instructions
            searches = {name: PartitionSearch(context, entry) for name, entry in self.recorder.partitions.items()}
            faults += [f for entry in entries for f in _faults(entry, searches, context)]
            sentences = tuple(self._first_not_finite(searches))
        faults += self._quantization_faults(context)
        if others := [f"{e.prefix}{e.name}" for e in entries if e.is_another_answer]:
            self._note_other_answers(others)
        elif context.is_complete and not faults:
            self._explain_accumulation(methods)
        self._note_gaps(methods)
        if self.output is not None and not faults:
            self.notes.append(f"no reproduction is written to {self.output}: nothing is wrong that it could show")
        accuracies = [a for m in methods for a in (m.lowered, m.floats) if a is not None and a.figures is not None]
        return Diagnosis(
            figures={f"{a.method} against {a.reference}": a.figures for a in accuracies},
            bounds=f"{bounds}, by default for {precision}" if precision else str(bounds),
            faults=tuple(faults),
            instructions=len(entries),
            errors=tuple(map(_row, (entry for entry in entries if entry.differences.outputs))),
            layers=tuple(self._layers()),
            not_finite=sentences,
            is_complete=context.is_complete,
            notes=tuple(self.notes),
            seconds=time.monotonic() - start,
        )

    def _report(self, text: str) -> None:
        if self.request.progress is not None:
            self.request.progress(text)

    def _torch_values(self) -> dict[str, dict[str, torch.Tensor]]:
        """Return the values of torch at the results of partitions and kernels, in the first call of each method."""
        values = {}
        for method in self.run.lowered:
            name = method.program.name
            if name in self.run.samples and not is_random_method(method):
                inside = {n.name for d in method.delegates.values() for n in d.region.outputs}
                modules = graph_modules(method.program.graph_module)
                inside |= {node.name for module in modules for node in module.graph.nodes}
                edge = self.model.compiler.methods[name].edge
                values[name] = edge_values(edge, self._first_arguments(name), inside)
        return values

    def _first_arguments(self, name: str) -> list[object]:
        """Return the leaves of the first call of a method."""
        call = self.run.samples[name][0]
        return flat_arguments(self.model.exported[name], call.args, call.kwargs)

    def _compare(self, limit: float, *, trust_code: bool) -> Iterator[MethodComparison]:
        """Run all methods beside torch; yield those before the first failure."""
        try:
            loaded = self.run.load(trust_code=trust_code, isolate=limit)
        except DelegateError as error:
            self.notes.append(f"the program cannot be loaded, so no instruction ran: {error.what} ({error.where})")
            return
        self.is_loaded = True
        try:
            with loaded:
                yield from self.run.compare(loaded, self.recorder)
        except (InputError, AccuracyError):
            raise
        except DelegateError as error:
            self.notes.append(f"the program failed, and later instructions did not run: {error.what} ({error.where})")

    def _find_quantized(self) -> list[str]:
        """Return the methods that run and are quantized."""
        return [name for name in self.run.samples if is_quantized(precision_of(self.model.exported[name]))]

    def _quantization_faults(self, context: SearchContext) -> Iterator[Fault]:
        """Yield the quantizations whose range is too small for the values."""
        for name in self._find_quantized():
            for clipped in find_clipped_ranges(self.model.exported[name], self.run.samples[name][0]):
                floats, count = self.model.floats.get(name), len(clipped.nodes)
                remedy = "" if floats is None else clipped.remedy(floats)
                fault = Fault(name, "the quantization", "", clipped.nodes, clipped.kind, None, count, remedy=remedy)
                context.note_no_reproduction(fault, "the ranges of the model are too small, on any library")
                yield fault

    def _layers(self) -> Iterator[LayerAccuracy]:
        """Yield the error of each layer of the quantized methods that have a float reference."""
        for name in self._find_quantized():
            if name in self.model.floats:
                sample = self.run.samples[name][0]
                yield from layers_of(name, self.model.floats[name], self.model.exported[name], sample)

    def _first_not_finite(self, searches: Mapping[str, PartitionSearch]) -> Iterator[str]:
        """Yield sentences on the first NaN and the first infinity, in the program and in torch, by method."""
        for name in self.run.samples:
            for kind in NOT_FINITE:
                there = first_node(self.model.exported[name], self._first_arguments(name), NOT_FINITE[kind])
                here = describe_not_finite(
                    self.recorder,
                    name,
                    kind,
                    lambda entry, call: searches[entry.name].values(call),
                    is_likely=bool(there),
                )
                if here or there:
                    yield f"first {kind} here: {here or 'none'}"
                    yield f"first {kind} in torch: {there or 'none'}"

    def _note_other_answers(self, names: Sequence[str]) -> None:
        """Add a note on the instructions that differ from torch and are right."""
        more = ", ..." if len(names) > _NAMED else ""
        self.notes.append(
            f"right, with another answer than torch where several are right, such as the order of equal elements: "
            f"{', '.join(names[:_NAMED])}{more}; the figures of results that depend on these mean nothing"
        )

    def _explain_accumulation(self, methods: Sequence[MethodComparison]) -> None:
        """Add a note if a method misses the bounds although the search found no fault."""
        bounds = self.recorder.bounds
        for method in methods:
            is_missed = excess_of(bounds, method.lowered.figures) > 1
            noise = {
                e.name: excess_of(bounds, e.differences.accuracy())
                for e in self.recorder.instructions
                if e.method == method.name and not e.is_wrong
            }
            noisy = sorted((n for n, excess in noise.items() if excess > 0), key=lambda n: -noise[n])
            if is_missed and len(noisy) > 1:
                what = f"{method.name} against {method.lowered.reference} misses {bounds}"
                self.notes.append(
                    f"{what}, but every instruction meets it: the error of several accumulates; "
                    f"most comes from {', '.join(noisy[:_NAMED])}"
                )
            elif not is_missed and method.floats is not None and excess_of(bounds, method.floats.figures) > 1:
                self.notes.append(f"the backends are right: the difference is between {FLOAT} and the program in torch")

    def _note_gaps(self, methods: Sequence[MethodComparison]) -> None:
        """Add notes on what was not compared."""
        self.notes += (f"method {m.name}, not compared: {m.lowered.why}" for m in methods if m.lowered.why)
        if self.recorder.not_compared:
            names = ", ".join(sorted(self.recorder.not_compared))
            self.notes.append(f"not compared, since torch lacks them or they draw random numbers: {names}")
        for method in self.run.lowered if self.is_loaded else ():
            name = method.program.name
            if name not in self.run.samples:
                self.notes.append(f"method {name} did not run: no inputs were given for it")
            elif missed := [p for p in method.delegates if p not in self.recorder.partitions]:
                self.notes.append(f"not reached by the inputs: {', '.join(missed)}")


def _fit(program: Program, name: str, model: Placed, call: Sample) -> Sample:
    """Return a call of a method as its export took the arguments; raises InputError if they do not fit."""
    definition = next(method for method in program.methods if method.name == name)
    leaves = leaves_of(definition, call.args, dict(call.kwargs))
    InputChecker(definition).arrays([to_array(leaf, f"of {name}") for leaf in leaves])
    return Sample(*pytree.tree_unflatten(leaves, model.exported[name].call_spec.in_spec))


def _row(entry: DebuggedInstruction) -> LayerAccuracy:
    """Return the error of an instruction as a row."""
    added, total = entry.differences.accuracy(), entry.totals.accuracy()
    assert added is not None
    if entry.delegate is not None:
        name, place = entry.name, entry.delegate.backend
    else:
        name, place = f"{entry.prefix}{entry.name}", "  ".join(filter(None, (entry.operator, entry.source)))
    return LayerAccuracy(entry.method, name, place, added.sqnr_db, None if total is None else total.sqnr_db)


def _faults(
    entry: DebuggedInstruction, searches: Mapping[str, PartitionSearch], context: SearchContext
) -> Iterator[Fault]:
    """Yield the faults of an instruction whose results are wrong, differ from call to call, or are missing."""
    if entry.delegate is not None:
        yield from searches[entry.name].faults()
    elif entry.is_wrong and entry.worst is not None:
        kind = failure_of(entry) or kind_of(entry.worst, None, entry.exact)
        if kind.name == "rounding":
            context.notes.append(f"{entry.prefix}{entry.name} misses {context.bounds} by rounding: {kind.explanation}")
            return
        node = FaultyNode(f"{entry.prefix}{entry.name}", entry.operator, source=entry.source)
        fault = Fault(entry.method, "portable kernels", "", (node,), kind, figures_of(entry.worst))
        context.note_no_reproduction(fault, "it runs in Python, without a vendor's library")
        yield fault


def _bounds(request: LoweringRequest, model: Placed) -> tuple[str, Bounds]:
    """Return the least precision of the methods with its default bounds; "" with the bounds of the configuration."""
    if request.selection.verify is not None:
        return "", Bounds.of(request.selection.verify)
    precision = min(map(precision_of, model.exported.values()), key=_THRESHOLDS.__getitem__)
    return precision, Bounds(sqnr_db=_THRESHOLDS[precision])
