"""The debugger: run a program beside torch, and reduce every wrong partition to the operators at fault."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from delegate.accuracy.bounds import DEFAULTS, Bounds, is_quantized, precision_of
from delegate.accuracy.layer_accuracy import layers_of
from delegate.accuracy.verification import FLOAT, samples_to_verify
from delegate.devtools.debugger.diagnosis import Diagnosis, ErrorRow, Fault, FaultyNode
from delegate.devtools.debugger.failures import all_compile_faults, continue_after_errors, record_unopened
from delegate.devtools.debugger.faults import kind_of
from delegate.devtools.debugger.not_finite import not_finite
from delegate.devtools.debugger.program_run import ProgramRun
from delegate.devtools.debugger.quantization import clipped_ranges
from delegate.devtools.debugger.recording import RecordedInstruction, excess_of
from delegate.devtools.debugger.saved_program import SavedProgram
from delegate.devtools.debugger.search import PartitionSearch, SearchContext, failure_of, figures_of
from delegate.errors import InputError
from delegate.files import require_folder
from delegate.lowering.compiler import Compiler
from delegate.partitioner.extraction import LoweredProgram
from delegate.placement.strategy import Placed
from delegate.program.model import Program
from delegate.request import LoweringRequest
from delegate.runtime.isolated import Isolated
from delegate.selection import open_artifact_cache

_LIBRARY_SECONDS = 60.0  # at least, for one call of a library: an emulator of a DSP is slow
_MOST_SECONDS = 1e5  # of the budget
_NAMED = 3  # instructions in a note
# By precision, in dB: an instruction is wrong below. Float32 rounds at 140 dB, and a deep partition at 100 dB.
_THRESHOLDS = {**DEFAULTS, "float32": 80.0}

Progress = Callable[[str], None]


def run_debugger(
    request: LoweringRequest, budget: float, output: Path | None = None, saved: SavedProgram | None = None
) -> Diagnosis:
    """Find the operators of a program that return wrong values, and the kind of each fault.

    - Every partition and kernel is compared with torch, on the inputs that it has in the program.
    - Sub-regions of a wrong partition are compiled and run, down to a smallest set that is wrong by itself.
    - Libraries run in a separate process, so a crash is a fault like any other.

    Args:
        request: the model, its backends, and the inputs to run it on (`request.check`). Bounds of the configuration
            define which results are wrong; otherwise the default of each method's precision does.
        budget: seconds after which no further sub-region is tried.
        output: folder for the scripts that show the faults without this project; None: none are written.
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
    return _Debugger(request, float(budget), output, saved).run()


@dataclass
class _Debugger:
    """A search for the faults of one program."""

    request: LoweringRequest
    budget: float
    output: Path | None
    saved: SavedProgram | None
    notes: list[str] = field(default_factory=list)

    @property
    def trust_code(self) -> bool:
        """Return true if machine code may run: that which was compiled here, or of a file that the user trusts."""
        return self.saved is None or self.saved.trust_code

    def run(self) -> Diagnosis:
        """Lower the model, run it, and search."""
        start = time.monotonic()
        request = self.request
        self._report("lowering")
        artifacts = open_artifact_cache(request.selection, request.registry, request.cache)
        self.model = request.place(artifacts, continue_after_errors)
        self.notes += (
            f"plan {plan.name} of method {placement.method} was dropped: {plan.why}"
            for placement in self.model.placements
            for plan in placement.plans
            if plan.why
        )
        samples = samples_to_verify(request.check.inputs, self.model.exported)
        compiler = self.model.compiler
        program, lowered = self._lower(compiler)
        self._delegates = {name: d for method in lowered for name, d in method.delegates.items()}
        self._report("running the program beside torch")
        limit = max(_LIBRARY_SECONDS, 2 * self.budget)
        precision, bounds = _bounds(request, self.model)
        run = ProgramRun(request, self.model, program, lowered, samples, bounds, limit, self.trust_code, self.notes)
        run.run()
        isolated = Isolated(program, request.registry, trust_code=self.trust_code, limit=limit)
        with closing(isolated):
            context = self._context(isolated, bounds)
            faults = list(all_compile_faults(context, compiler.failures))
            if not run.is_loaded:
                record_unopened(context, run)
            searches = {
                entry.name: PartitionSearch(context, entry, self._delegates[entry.name].backend)
                for entry in run.recorder.instructions
                if entry.region is not None
            }
            faults += [f for entry in run.recorder.instructions for f in _faults(entry, searches, context)]
            sentences = tuple(not_finite(run, searches))
        faults += self._quantization_faults(run, context)
        if others := [f"{e.prefix}{e.name}" for e in run.recorder.instructions if e.is_another_answer]:
            self._note_other_answers(others)
        elif context.is_complete and not faults:
            self._explain_accumulation(run)
        run.note_gaps()
        if self.output is not None and not faults:
            self.notes.append(f"no reproduction is written to {self.output}: nothing is wrong that it could show")
        return Diagnosis(
            figures=run.figures,
            bounds=f"{bounds}, by default for {precision}" if precision else str(bounds),
            faults=tuple(faults),
            instructions=len(run.recorder.instructions),
            errors=tuple(self._row(entry) for entry in run.recorder.instructions if entry.differences.outputs),
            layers=tuple(row for name in self._quantized(run) for row in self._layer_rows(run, name)),
            not_finite=sentences,
            is_complete=context.is_complete,
            notes=tuple(self.notes),
            seconds=time.monotonic() - start,
        )

    def _lower(self, compiler: Compiler) -> tuple[Program, Sequence[LoweredProgram]]:
        """Return the program to run, and its methods."""
        if self.saved is None:
            return compiler.compile()
        lowered = self.saved.lower(compiler)
        self.notes += self.saved.compare_weights(self.model.exported)
        return self.saved.program, lowered

    def _context(self, isolated: Isolated, bounds: Bounds) -> SearchContext:
        return SearchContext(
            self.request.selection.backends,
            self.model.compiler.artifacts,
            self._delegates,
            isolated,
            bounds,
            self.budget,
            self.output,
            self._report,
            self.notes,
            DEFAULTS["float32"] if self.request.selection.verify is None else None,
            is_saved=self.saved is not None,
        )

    def _report(self, text: str) -> None:
        if self.request.progress is not None:
            self.request.progress(text)

    def _row(self, entry: RecordedInstruction) -> ErrorRow:
        added, total = entry.differences.accuracy(), entry.totals.accuracy()
        assert added is not None
        place = "  ".join(filter(None, (entry.operator, entry.source)))
        if entry.name in self._delegates:
            place = self._delegates[entry.name].backend
        name = entry.name if entry.region is not None else f"{entry.prefix}{entry.name}"
        return ErrorRow(name, place, added.sqnr_db, None if total is None else total.sqnr_db, entry.method)

    def _quantized(self, run: ProgramRun) -> list[str]:
        exported = self.model.exported
        return [name for name in run.samples if is_quantized(precision_of(exported[name]))]

    def _quantization_faults(self, run: ProgramRun, context: SearchContext) -> Iterator[Fault]:
        """Return the quantizations whose range is too small for the values."""
        for name in self._quantized(run):
            for clipped in clipped_ranges(self.model.exported[name], run.samples[name][0]):
                floats, count = self.model.floats.get(name), len(clipped.nodes)
                remedy = "" if floats is None else clipped.remedy(floats)
                fault = Fault(name, "the quantization", "", clipped.nodes, clipped.kind, None, count, remedy=remedy)
                context.note_no_reproduction(fault, "the ranges of the model are too small, on any library")
                yield fault

    def _layer_rows(self, run: ProgramRun, name: str) -> Iterator[ErrorRow]:
        if name in self.model.floats:
            floats, quantized = self.model.floats[name], self.model.exported[name]
            for layer in layers_of(name, floats, quantized, run.samples[name][0]):
                yield ErrorRow(layer.node, layer.place, layer.added_db, layer.total_db, name)

    def _note_other_answers(self, names: Sequence[str]) -> None:
        """Add a note on the instructions that differ from torch and are right."""
        more = ", ..." if len(names) > _NAMED else ""
        self.notes.append(
            f"right, with another answer than torch where several are right, such as the order of equal elements: "
            f"{', '.join(names[:_NAMED])}{more}; the figures of results that depend on these mean nothing"
        )

    def _explain_accumulation(self, run: ProgramRun) -> None:
        """Add a note if a method misses the bounds although the search found no fault."""
        bounds = run.bounds
        for name in run.samples:
            own = f"{name} against {run.reference_of(name)}"
            texts = (own, f"{name} against {FLOAT}")
            misses = {text: excess_of(bounds, run.figures.get(text)) > 1 for text in texts}
            noise = {
                e.name: excess_of(bounds, e.differences.accuracy())
                for e in run.recorder.instructions
                if e.method == name and e.worst is None
            }
            noisy = sorted((n for n, excess in noise.items() if excess > 0), key=lambda n: -noise[n])
            if misses[own] and len(noisy) > 1:
                names = ", ".join(noisy[:_NAMED])
                self.notes.append(
                    f"{own} misses {bounds}, but every instruction meets it: the error of several accumulates; "
                    f"most comes from {names}"
                )
            elif not misses[own] and misses[f"{name} against {FLOAT}"]:
                self.notes.append(f"the backends are right: the difference is between {FLOAT} and the program in torch")


def _faults(
    entry: RecordedInstruction, searches: Mapping[str, PartitionSearch], context: SearchContext
) -> Iterator[Fault]:
    """Yield the faults of an instruction whose results are wrong, differ from call to call, or are missing."""
    if entry.region is not None:
        yield from searches[entry.name].faults()
    elif entry.worst is not None:
        kind = failure_of(entry) or kind_of(entry.worst, None)
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
