"""The debugger: run a program beside torch, and reduce every wrong partition to the operators at fault."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from torch.fx import Node
from torch.utils._pytree import tree_unflatten

from delegate.accuracy.bisection import RegionTrial
from delegate.accuracy.bounds import DEFAULTS, Bounds, is_quantized, precision_of
from delegate.accuracy.figures import Differences, difference
from delegate.accuracy.nan import describe_node, first_node, has_infinity, has_nan, node_text
from delegate.accuracy.reference import EagerRegion, copies, edge_values, flat_arguments, is_random_method, tensors
from delegate.accuracy.samples import Sample
from delegate.accuracy.verification import FLOAT, reference_figures, samples_to_verify, torch_results
from delegate.backends.aot import PreprocessResult, Region
from delegate.backends.bisection import Unit, part_of, units_of
from delegate.compiled import LoadedContext, to_array
from delegate.devtools.debugger.diagnosis import Diagnosis, ErrorRow, Fault, FaultKind, FaultyNode
from delegate.devtools.debugger.faults import faulty_node, kind_of
from delegate.devtools.debugger.minimize import Minimization, OutOfTime, nodes_of
from delegate.devtools.debugger.quantization import clipped_ranges, layer_rows
from delegate.devtools.debugger.recording import RecordedCall, RecordedInstruction, RunRecorder, excess_of, same
from delegate.devtools.debugger.reproduction import write_reproduction
from delegate.edge.program import META_VALUE
from delegate.errors import AccuracyError, DelegateError, InputError
from delegate.files import require_folder
from delegate.lowering.request import LoweringRequest, PlacedModel
from delegate.partitioner.extraction import LoweredProgram
from delegate.program.model import Program
from delegate.report import Accuracy
from delegate.runtime.backend import Delegate
from delegate.runtime.isolation.process import Isolated
from delegate.runtime.loaded import LoadedProgram
from delegate.selection import open_artifact_cache

_LIBRARY_SECONDS = 60.0  # at least, for one call of a library: an emulator of a DSP is slow
_MOST_SECONDS = 1e5  # of the budget
_NAMED = 3  # instructions in a note

Progress = Callable[[str], None]


def run_debugger(request: LoweringRequest, budget: float, output: Path | None = None) -> Diagnosis:
    """Find the operators of a program that return wrong values, and the kind of each fault.

    - Every partition and kernel is compared with torch, on the inputs that it has in the program.
    - Sub-regions of a wrong partition are compiled and run, down to a smallest set that is wrong by itself.
    - Libraries run in a separate process, so a crash is a fault like any other.

    Args:
        request: the model, its backends, and the inputs to run it on (`request.check`). Bounds of the configuration
            define which results are wrong; otherwise the default of each method's precision does.
        budget: seconds after which no further sub-region is tried.
        output: folder for the scripts that show the faults without this project; None: none are written.

    Raises:
        LoweringError, BackendError and others: the model cannot be lowered, as by `to_backend`.
        InputError: the inputs do not fit, or the folder cannot be written.
        AccuracyError: torch cannot run the reference.
    """
    is_number = isinstance(budget, int | float) and not isinstance(budget, bool)
    if not is_number or not 0 <= budget <= _MOST_SECONDS:
        raise InputError(f"budget should be seconds from 0 to {_MOST_SECONDS:g}, not {budget!r}", where="debug")
    if output is not None:
        require_folder(output, "the reproductions", InputError)
    return _Debugger(request, float(budget), output).run()


@dataclass
class _Debugger:
    """A search for the faults of one program."""

    request: LoweringRequest
    budget: float
    output: Path | None
    notes: list[str] = field(default_factory=list)
    is_complete: bool = True

    def run(self) -> Diagnosis:
        """Lower the model, run it, and search."""
        start = time.monotonic()
        request = self.request
        self._report("lowering")
        artifacts = open_artifact_cache(request.selection, request.registry, request.cache)
        self.model = request.place(artifacts)
        exported = self.model.placed.exported
        samples = samples_to_verify(request.check.inputs, exported)
        self.samples: Mapping[str, Sequence[Sample]] = samples
        self.bounds = _bounds(request, self.model)
        program, lowered = self.model.placed.compiler.compile()
        self._report("running the program beside torch")
        recorder, figures = self._record(program, lowered)
        self.deadline = time.monotonic() + self.budget
        self.isolated = Isolated(program, request.registry, trust_code=True, limit=self._limit)
        with closing(self.isolated):
            faults = [f for entry in recorder.instructions for f in self._faults(entry, lowered)]
            not_finite = tuple(self._not_finite(recorder, lowered))
        faults += self._quantization_faults()
        self._explain_accumulation(figures, faults, recorder)
        self._note_gaps(recorder, lowered)
        return Diagnosis(
            figures=figures,
            faults=tuple(faults),
            instructions=len(recorder.instructions),
            errors=tuple(_row(entry, lowered) for entry in recorder.instructions if entry.differences.calls),
            layers=tuple(row for name in self._quantized() for row in self._layer_rows(name)),
            not_finite=not_finite,
            is_complete=self.is_complete,
            notes=tuple(self.notes),
            seconds=time.monotonic() - start,
        )

    def _note_gaps(self, recorder: RunRecorder, lowered: Sequence[LoweredProgram]) -> None:
        """Add notes on what was not compared."""
        if recorder.not_compared:
            names = ", ".join(sorted(recorder.not_compared))
            self.notes.append(f"not compared, since torch lacks them or they draw random numbers: {names}")
        ran = {entry.name for entry in recorder.instructions}
        for method in lowered:
            name = method.program.name
            if name not in self.samples:
                self.notes.append(f"method {name} did not run: no inputs were given for it")
            elif missed := [partition for partition in method.delegates if partition not in ran]:
                self.notes.append(f"not reached by the inputs: {', '.join(missed)}")

    @property
    def _limit(self) -> float:
        """The seconds after which a call of a library has failed."""
        return max(_LIBRARY_SECONDS, 2 * self.budget)

    def _report(self, text: str) -> None:
        if self.request.progress is not None:
            self.request.progress(text)

    def _record(
        self, program: Program, lowered: Sequence[LoweredProgram]
    ) -> tuple[RunRecorder, dict[str, Accuracy | None]]:
        """Run the program with a recorder; return that, and the figures of each method against its references."""
        exported, floats, request = self.model.placed.exported, self.model.floats, self.request
        specs = {name: (ep.call_spec.in_spec, ep.call_spec.out_spec) for name, ep in exported.items()}
        results: dict[str, list[list[torch.Tensor]]] = {}
        with LoadedProgram(
            program,
            request.registry,
            request.selection.kernels,
            fallback="error",
            trust_code=True,
            isolate=self._limit,
        ) as loaded:
            calls = {
                name: [loaded.method(name).leaves(call.args, dict(call.kwargs)) for call in own]
                for name, own in self.samples.items()
            }
            self.samples = {
                name: [Sample(*tree_unflatten(leaves, specs[name][0])) for leaves in own] for name, own in calls.items()
            }
            for name, own in calls.items():
                for leaves in own:
                    loaded.method(name).check([to_array(leaf, f"of {name}") for leaf in leaves])
            regions = {name: d.region for method in lowered for name, d in method.delegates.items()}
            recorder = RunRecorder(regions, self.bounds, self._reference_values(lowered))
            for name in loaded.methods:
                loaded.method(name).watch(recorder)
            context = LoadedContext(loaded, specs)
            try:
                for name, own in calls.items():
                    arguments = (tree_unflatten(copies(leaves), specs[name][0]) for leaves in own)
                    results[name] = [tensors(context.method(name)(*args, **kwargs)) for args, kwargs in arguments]
            except (InputError, AccuracyError):
                raise
            except DelegateError as error:
                self.notes.append(
                    f"the program failed, and later instructions did not run: {error.what} ({error.where})"
                )
        random = {method.program.name for method in lowered if is_random_method(method)}
        for name in [name for name in results if name in random]:
            self.notes.append(f"method {name} draws random numbers, so its results are not compared")
            del results[name]
        done = {name: self.samples[name] for name in results}
        figures = reference_figures(results, torch_results(exported, done))
        texts: dict[str, Accuracy | None] = {
            f"{name} against {self._reference_of(name)}": accuracy for name, accuracy in figures.items()
        }
        for name in results.keys() & floats.keys():
            against = reference_figures({name: results[name]}, torch_results(floats, {name: done[name]}))
            texts[f"{name} against {FLOAT}"] = against[name]
        return recorder, texts

    def _reference_of(self, name: str) -> str:
        if name in self._quantized():
            return "the quantized reference"
        return "the model that was given" if name in self.model.floats else FLOAT

    def _reference_values(self, lowered: Sequence[LoweredProgram]) -> dict[str, dict[str, torch.Tensor]]:
        """Return the values of torch at the results of partitions and kernels, in the first call of each method."""
        values = {}
        for method in lowered:
            name = method.program.name
            if name in self.samples and not is_random_method(method):
                inside = {n.name for d in method.delegates.values() for n in d.region.outputs}
                inside |= {n.name for n in method.program.graph.nodes}
                ep, call = self.model.placed.exported[name], self.samples[name][0]
                edge = self.model.placed.compiler.methods[name].edge
                values[name] = edge_values(edge, flat_arguments(ep, call.args, call.kwargs), inside)
        return values

    def _faults(self, entry: RecordedInstruction, lowered: Sequence[LoweredProgram]) -> Iterator[Fault]:
        """Return the faults of an instruction whose results are wrong, differ from call to call, or are missing."""
        if entry.region is None:
            if entry.worst is None:
                return
            kind = _failure(entry) or kind_of(entry.worst, None)
            yield Fault(
                entry.method,
                "portable kernels",
                "",
                (FaultyNode(entry.name, entry.operator, source=entry.source),),
                kind,
                _figures(entry.worst),
            )
            return
        backend = _backend_of(entry, lowered)
        call = entry.worst or entry.last
        if call is not None:
            yield from self._search(entry, backend, call)

    def _search(self, entry: RecordedInstruction, backend: str, call: RecordedCall) -> Iterator[Fault]:
        """Return the faults of a partition, each reduced to a smallest set of operators."""
        assert entry.region is not None
        trial = self._trial(entry.region, backend, call)
        symptom = _Symptom(trial, entry, self.bounds, self.deadline)
        units = units_of(entry.region)
        found: set[Unit] = set()
        self._rounds = False  # the partition misses the bounds by rounding alone
        try:
            if entry.failure is None and entry.is_stable:
                yield from self._inside(entry, backend, trial, symptom, found)
            while entry.worst is not None and (remaining := [unit for unit in units if unit not in found]):
                self._report(f"partition {entry.name}: {len(remaining)} operators")
                if not symptom(remaining) or (entry.is_stable and self._is_rounding(trial, remaining)):
                    break
                symptom.rejected = 0
                search = Minimization(remaining, symptom)
                search.run()
                found.update(search.found)
                yield self._fault(entry, backend, trial, search, symptom)
            if entry.worst is not None and not found and not self._rounds:
                yield self._whole_partition(entry, backend, entry.worst)
        except OutOfTime:
            self.is_complete = False
            self.notes.append(f"partition {entry.name} is not searched to the end: {self.budget:g} s are over")

    def _whole_partition(self, entry: RecordedInstruction, backend: str, call: RecordedCall) -> Fault:
        """Return the fault of a partition that was wrong in the program, and is right if it runs by itself."""
        assert entry.region is not None
        nodes = _operators(entry.region.calls)
        kind = _kind(entry, call, entry.region)
        text = "it is right if the partition runs by itself, so no operator can be named"
        return Fault(
            entry.method,
            backend,
            entry.name,
            tuple(map(faulty_node, nodes)),
            replace(kind, explanation="; ".join(filter(None, (kind.explanation, text)))),
            _figures(call),
            len(nodes),
            is_minimal=False,
        )

    def _inside(
        self, entry: RecordedInstruction, backend: str, trial: RegionTrial, symptom: _Symptom, found: set[Unit]
    ) -> Iterator[Fault]:
        """Return the faults that show if all values of the partition are results, also those that its results hide.

        Each operator that looks wrong there has to be wrong in a sub-region too, since further results can change what
        a library fuses.
        """
        units = units_of(trial.region)
        for unit in self._wrong_inside(trial):
            if unit in found:
                continue
            self._report(f"partition {entry.name}: operator {unit[0].name}")
            before = units[: units.index(unit) + 1]
            start = next((some for some in ([unit], before) if symptom(some)), None)
            if start is None:
                continue
            symptom.rejected = 0
            search = Minimization(start, symptom)
            search.run()
            fault = self._fault(entry, backend, trial, search, symptom)
            is_usual = fault.kind.name == "rounding" or (fault.kind.name == "precision" and entry.worst is None)
            if not is_usual and not found.intersection(search.found):
                found.update(search.found)
                yield replace(fault, is_hidden=entry.worst is None)

    def _is_rounding(self, trial: RegionTrial, units: Sequence[Unit]) -> bool:
        """Return if torch has the error of some units too at lower precision, so that no operator is at fault."""
        part = part_of(trial.region, units)
        try:
            call = _run(trial, part)
        except Exception:  # of a partition that fails
            return False
        kind = kind_of(call, EagerRegion(part))
        if kind.name != "rounding" and (kind.name != "precision" or len(units) == 1):
            return False
        self.notes.append(f"partition {trial.region.name} misses {self.bounds} by rounding alone: {kind.explanation}")
        self._rounds = True
        return True

    def _wrong_inside(self, trial: RegionTrial) -> list[Unit]:
        """Return the units whose results differ from torch's on the values that the library computed before them."""
        known = self._values_inside(trial)
        wrong = []
        for unit in units_of(trial.region) if known else ():
            part = part_of(trial.region, [unit])
            actual = [known[n.name] for n in part.outputs]
            expected = EagerRegion(part).results([known[n.name] for n in part.inputs])
            if excess_of(self.bounds, difference(actual, expected)) > 1:
                wrong.append(unit)
        return wrong

    def _values_inside(self, trial: RegionTrial) -> dict[str, torch.Tensor]:
        """Return all values of a partition, as results of one more compilation; none if the library rejects that."""
        region = trial.region
        taps = [n for n in region.calls if isinstance(n.meta.get(META_VALUE), torch.Tensor)]
        try:
            values = trial.run(region.with_outputs(taps))
        except Exception:  # a library that accepts the region may reject further results with any error
            self.notes.append(f"the values inside of partition {region.name} cannot be read")
            return {}
        return dict(zip((n.name for n in region.inputs), trial.inputs, strict=True)) | values

    def _fault(
        self,
        entry: RecordedInstruction,
        backend: str,
        trial: RegionTrial,
        search: Minimization,
        symptom: _Symptom,
    ) -> Fault:
        """Describe a smallest set of operators, and write its reproduction."""
        part = part_of(trial.region, search.found)
        nodes = _operators(nodes_of(search.found))
        call = _run(trial, part) if entry.failure is None else _reference(trial, part)
        kind = _kind(entry, call, part)
        rest = [unit for unit in units_of(trial.region) if unit not in search.found]
        try:
            confirmed = not rest or not symptom(rest)
        except OutOfTime:
            confirmed = False
        pins = "".join(f"\n    {node.name}: portable" for node in nodes)
        fault = Fault(
            entry.method,
            backend,
            entry.name,
            tuple(map(faulty_node, nodes)),
            kind,
            _figures(call),
            len(_operators(trial.region.calls)),
            search.tests,
            symptom.rejected,
            search.is_minimal,
            confirmed,
            remedy=f"partitioning:\n  node_pins:{pins}",
        )
        return replace(fault, reproduction=self._reproduce(fault, part, call))

    def _reproduce(self, fault: Fault, part: Region, call: RecordedCall) -> str:
        if self.output is None:
            return ""
        way = self.request.selection.backends[fault.place].reproduction(self._compile(fault.place, part))
        if way is None:
            self.notes.append(f"backend {fault.place} has no way to run an artifact without this project")
            return ""
        operators = ", ".join(node.operator for node in fault.nodes)
        title = f"{fault.kind.name}: {operators} on {fault.place.partition(':')[0]}"
        folder = self.output / "_".join((fault.partition.replace(":", "_"), fault.nodes[0].name))
        try:
            return str(write_reproduction(folder, way, title, part, call))
        except InputError as error:  # the diagnosis is not lost
            self.notes.append(str(error))
            return ""

    def _trial(self, region: Region, backend: str, call: RecordedCall) -> RegionTrial:
        return RegionTrial(region, call.inputs, partial(self._compile, backend), partial(self._open, backend))

    def _compile(self, backend: str, region: Region) -> PreprocessResult:
        return self.model.placed.compiler.artifacts.attempt(backend, region)

    def _open(self, backend: str, result: PreprocessResult) -> Delegate:
        parts = [memoryview(part) for part in (result.blob, *result.data)]
        return self.isolated.create(backend, result.compile_specs, parts)

    def _quantized(self) -> list[str]:
        exported = self.model.placed.exported
        return [name for name in self.samples if is_quantized(precision_of(exported[name]))]

    def _quantization_faults(self) -> Iterator[Fault]:
        """Return the quantizations whose range is too small for the values."""
        for name in self._quantized():
            for nodes, kind in clipped_ranges(self.model.placed.exported[name], self.samples[name][0]):
                yield Fault(name, "the quantization", "", nodes, kind, None, len(nodes))

    def _layer_rows(self, name: str) -> Iterator[ErrorRow]:
        if name in self.model.floats:
            float_program, quantized = self.model.floats[name], self.model.placed.exported[name]
            yield from layer_rows(
                float_program, quantized, self.samples[name][0], name if len(self.samples) > 1 else ""
            )

    def _not_finite(self, recorder: RunRecorder, lowered: Sequence[LoweredProgram]) -> Iterator[str]:
        """Describe the first NaN and the first infinity, in the program and in torch, by method."""
        for name, calls in self.samples.items():
            entries = [entry for entry in recorder.instructions if entry.method == name]
            for kind, test in (("NaN", has_nan), ("infinity", has_infinity)):
                ep = self.model.placed.exported[name]
                there = first_node(ep, flat_arguments(ep, calls[0].args, calls[0].kwargs), test)
                texts = (self._first_inside(entry, kind, test, lowered, is_likely=bool(there)) for entry in entries)
                here = next(filter(None, texts), "")
                if here or there:
                    yield f"first {kind} here: {here or 'none'}"
                    yield f"first {kind} in torch: {there or 'none'}"

    def _first_inside(
        self,
        entry: RecordedInstruction,
        kind: str,
        test: Callable[[torch.Tensor], bool],
        lowered: Sequence[LoweredProgram],
        *,
        is_likely: bool,
    ) -> str:
        """Describe a kernel, or the first node of a partition, whose result meets the test; empty if there is none.

        The values inside of a partition are read if its results meet the test, or if torch has such a value.
        """
        recorded = entry.nan if kind == "NaN" else entry.infinity
        if entry.region is None:
            return "" if recorded is None else node_text(entry.operator, entry.name, entry.source)
        call = recorded or (entry.last if is_likely else None)
        if call is None:
            return ""
        backend = _backend_of(entry, lowered)
        known = self._values_inside(self._trial(entry.region, backend, call))
        node = next((n for n in entry.region.calls if n.name in known and test(known[n.name])), None)
        place = f"partition {entry.name} on {backend}"
        if node is None:
            return "" if recorded is None else place
        return f"{describe_node(node)}, in {place}"

    def _explain_accumulation(
        self, figures: Mapping[str, Accuracy | None], faults: Sequence[Fault], recorder: RunRecorder
    ) -> None:
        """Add a note if a method misses the bounds although the search found no fault."""
        if faults or not self.is_complete:
            return
        for name in self.samples:
            own = f"{name} against {self._reference_of(name)}"
            misses = {text: excess_of(self.bounds, figures.get(text)) > 1 for text in (own, f"{name} against {FLOAT}")}
            noise = {
                e.name: excess_of(self.bounds, e.differences.accuracy())
                for e in recorder.instructions
                if e.method == name and e.worst is None
            }
            noisy = sorted((n for n, excess in noise.items() if excess > 0), key=lambda n: -noise[n])
            if misses[own] and len(noisy) > 1:
                names = ", ".join(noisy[:_NAMED])
                self.notes.append(
                    f"{own} misses {self.bounds}, but every instruction meets it: the error of several accumulates; "
                    f"most comes from {names}"
                )
            elif not misses[own] and misses[f"{name} against {FLOAT}"]:
                self.notes.append(f"the backends are right: the difference is between {FLOAT} and the program in torch")


class _Symptom:
    """The test of a minimisation: some units of a partition show its symptom if they run alone."""

    def __init__(self, trial: RegionTrial, entry: RecordedInstruction, bounds: Bounds, deadline: float) -> None:
        self._trial, self._bounds, self._deadline = trial, bounds, deadline
        self._fails, self._differs = entry.failure is not None, not entry.is_stable
        self.rejected = 0  # sub-regions that the library did not run

    def __call__(self, units: Sequence[Unit]) -> bool:
        """Return if these units show the symptom; raises OutOfTime."""
        if time.monotonic() > self._deadline:
            raise OutOfTime
        part = part_of(self._trial.region, units)
        try:
            results = self._trial.run(part)
            again = self._trial.run(part) if self._differs else results
        except DelegateError:
            return self._fails
        except Exception:  # a library that accepts the region may reject a part of it with any error
            self.rejected += 1
            return False
        actual, repeated = ([r[node.name] for node in part.outputs] for r in (results, again))
        if self._fails:
            return False
        if self._differs:
            return not same(actual, repeated)
        figures = Differences()
        figures.add(actual, [*_known(self._trial, part.outputs)])
        return excess_of(self._bounds, figures.accuracy()) > 1


def _bounds(request: LoweringRequest, model: PlacedModel) -> Bounds:
    """Return the configured bounds, else the default of the least precise method."""
    if request.selection.verify is not None:
        return Bounds.of(request.selection.verify)
    return Bounds(sqnr_db=min(DEFAULTS[precision_of(ep)] for ep in model.placed.exported.values()))


def _known(trial: RegionTrial, nodes: Iterable[Node]) -> Iterator[torch.Tensor]:
    return (trial.known[node.name] for node in nodes)


def _operators(nodes: Iterable[Node]) -> list[Node]:
    """Return the nodes without those that pick a result of another."""
    return [node for node in nodes if node.target is not operator.getitem]


def _failure(entry: RecordedInstruction) -> FaultKind | None:
    return None if entry.failure is None else FaultKind("failure", entry.failure.what)


def _kind(entry: RecordedInstruction, call: RecordedCall, part: Region) -> FaultKind:
    """Return the kind of the fault of a partition, which some of its operators show in a call."""
    if not entry.is_stable:
        return FaultKind("non-determinism", "two executions on the same inputs return different values")
    return _failure(entry) or kind_of(call, EagerRegion(part))


def _reference(trial: RegionTrial, part: Region) -> RecordedCall:
    """Return a call of a part with the results of torch alone."""
    return RecordedCall(tuple(_known(trial, part.inputs)), expected=tuple(_known(trial, part.outputs)))


def _run(trial: RegionTrial, part: Region) -> RecordedCall:
    """Run a part on its backend, and return the call; raises as `RegionTrial.run` does."""
    results = trial.run(part)
    return replace(_reference(trial, part), actual=tuple(results[node.name] for node in part.outputs))


def _figures(call: RecordedCall) -> Accuracy | None:
    return difference(call.actual, call.expected) if call.actual else None


def _backend_of(entry: RecordedInstruction, lowered: Sequence[LoweredProgram]) -> str:
    """Return the backend of a partition; empty for a kernel."""
    return next((m.delegates[entry.name].backend for m in lowered if entry.name in m.delegates), "")


def _row(entry: RecordedInstruction, lowered: Sequence[LoweredProgram]) -> ErrorRow:
    added, total = entry.differences.accuracy(), entry.totals.accuracy()
    assert added is not None
    place = _backend_of(entry, lowered) or "  ".join(filter(None, (entry.operator, entry.source)))
    return ErrorRow(entry.name, place, added.sqnr_db, None if total is None else total.sqnr_db)
