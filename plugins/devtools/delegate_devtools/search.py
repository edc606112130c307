"""The search of one partition: reduce wrong values, a failure or a rejection to the smallest sets of operators."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch.fx import Node

from delegate.accuracy.bounds import DEFAULTS, Bounds
from delegate.accuracy.figures import difference
from delegate.accuracy.program_run import ProgramRun
from delegate.accuracy.recording import RecordedCall, excess_of
from delegate.accuracy.reference import EagerRegion, RegionTrial
from delegate.backend.aot import PreprocessResult, Region, RegionCrashed, RegionFailed, RegionGivenUp
from delegate.backend.guilty import Unit, nodes_of, part_of, units_of
from delegate.edge.program import META_VALUE
from delegate.errors import DelegateError, InputError
from delegate.lowering.compiler import CompileFailure, Compiler
from delegate.partitioner.artifacts import Artifacts
from delegate.report.rows import Accuracy
from delegate.request import LoweringRequest
from delegate.runtime.backend import Delegate
from delegate.runtime.isolated import Isolated
from delegate_devtools.diagnosis import REFUSAL, Fault, FaultKind, FaultyNode
from delegate_devtools.faults import faulty_node, kind_of
from delegate_devtools.minimize import Minimization, OutOfTime
from delegate_devtools.recorder import DebuggedInstruction, ThoroughRecorder, same
from delegate_devtools.reproduction import write_compilation, write_reproduction

_NAMED = 3  # operators in a note
_RIGHT_ALONE = "it is right if the partition runs by itself, so no operator can be named"
_RIGHT_AGAIN = "it is right if the partition is compiled again: only the artifact of the file is wrong"


@dataclass
class SearchContext:
    """The means and limits of the searches in one program.

    Args:
        request: the model, its backends and its bounds.
        artifacts: compile sub-regions.
        run: the program, whose partitions are not compiled again.
        isolated: opens artifacts in a separate process.
        bounds: define which results are wrong.
        budget: seconds of all searches.
        output: folder of the reproductions; None: none are written.
        notes: on the searches, for people.
        is_saved: the partitions come from a file.

    Attributes:
        least_rounding_db: an SQNR from which it is not a fault that a backend computes float32 at lower precision, if
            it is made to; None: the user gave bounds.
        is_complete: no search has ended early.
    """

    request: LoweringRequest
    artifacts: Artifacts
    run: ProgramRun
    isolated: Isolated
    bounds: Bounds
    budget: float
    output: Path | None
    notes: list[str]
    is_saved: bool
    is_complete: bool = True

    def __post_init__(self) -> None:
        self._deadline = time.monotonic() + self.budget
        self._delegates = self.run.delegates
        self.backends = self.request.selection.backends
        self.least_rounding_db = DEFAULTS["float32"] if self.request.selection.verify is None else None

    def report(self, text: str) -> None:
        """Report progress."""
        if self.request.progress is not None:
            self.request.progress(text)

    def require_time(self) -> None:
        """Raise OutOfTime if the budget is over."""
        if time.monotonic() > self._deadline:
            raise OutOfTime

    def end_early(self, partition: str) -> None:
        """Note that the budget was over in the search of a partition."""
        self.is_complete = False
        self.notes.append(f"partition {partition} is not searched to the end: {self.budget:g} s are over")

    def compile(self, backend: str, region: Region) -> PreprocessResult:
        """Return the artifact of a region, with the errors of `Artifacts.attempt`."""
        whole = self._delegates.get(region.name)
        if whole is not None and whole.backend == backend and _border(whole.region) == _border(region):
            return whole.result
        return self.artifacts.attempt(backend, region)

    def open(self, backend: str, result: PreprocessResult) -> Delegate:
        """Create a delegate of an artifact in the separate process; raises BackendError."""
        parts = [memoryview(part) for part in (result.blob, *result.data)]
        return self.isolated.create(backend, result.compile_specs, parts)

    def reproduce(self, fault: Fault, part: Region, call: RecordedCall) -> str:
        """Write the reproduction of a fault, and return the path of its script; empty without one."""
        if self.output is None:
            return ""
        way = self.backends[fault.place].reproduction(self.compile(fault.place, part))
        if way is None:
            self.note_no_reproduction(fault, "the backend has no way to run an artifact without this project")
            return ""
        return self._write(fault, partial(write_reproduction, self.output, fault, way, part, call))

    def reproduce_compilation(self, fault: Fault, part: Region) -> str:
        """Write the reproduction of a region that does not compile, and return the path of its script, or nothing."""
        if self.output is None:
            return ""
        return self._write(fault, partial(write_compilation, self.output, fault, part))

    def _write(self, fault: Fault, write: Callable[[], Path]) -> str:
        try:
            return str(write())
        except InputError as error:  # the diagnosis is not lost
            self.note_no_reproduction(fault, str(error))
            return ""

    def note_no_reproduction(self, fault: Fault, why: str) -> None:
        """Note why the folder of the reproductions, if there is one, has none of a fault."""
        if self.output is not None:
            names = ", ".join(node.name for node in fault.nodes[:_NAMED]) + ", ..." * (len(fault.nodes) > _NAMED)
            self.notes.append(f"no reproduction of {names} on {fault.place}: {why}")


class PartitionSearch:
    """A search for the faults of one partition.

    Args:
        context: What all searches in the program share.
        entry: the record of the partition.
    """

    def __init__(self, context: SearchContext, entry: DebuggedInstruction) -> None:
        assert entry.delegate is not None
        self._context, self._entry = context, entry
        self._region, self._backend = entry.delegate.region, entry.delegate.backend
        self._rounds_float32 = context.backends[self._backend].rounds_float32
        self._values: dict[int, dict[str, torch.Tensor]] = {}  # by identity of the call
        self._found: set[Unit] = set()
        self._is_explained = False  # the partition misses the bounds, and no operator is at fault

    def faults(self) -> Iterator[Fault]:
        """Yield the faults, each reduced to a smallest set of operators."""
        entry = self._entry
        call = entry.worst if entry.is_wrong else entry.last
        if call is None:
            return
        trial = self._trial(call)
        symptom = _WrongResults(trial, entry, self._context)
        try:
            if self._context.is_saved and entry.is_wrong and self._is_right_again(call):
                yield self._whole_partition(call, _RIGHT_AGAIN)
                return
            if entry.failure is None and entry.is_stable:
                yield from self._faults_inside(trial, symptom, call)
                self._is_explained = self._is_another_right_answer(call)
            while entry.is_wrong and not self._is_explained and (remaining := self._remaining()):
                self._context.report(f"partition {entry.name}: {len(remaining)} operators")
                if not symptom(remaining) or (entry.is_stable and self._is_rounding(trial, remaining)):
                    break
                search = symptom.minimize(remaining)
                self._found.update(search.found)
                if entry.is_stable and entry.failure is None and self._is_rounding(trial, search.found, by_parts=False):
                    continue
                yield self._fault(trial, search, symptom)
            if entry.is_wrong and not self._found and not self._is_explained:
                yield self._whole_partition(call, _RIGHT_ALONE)
        except OutOfTime:
            self._context.end_early(entry.name)

    def values(self, call: RecordedCall) -> dict[str, torch.Tensor]:
        """Return all values of the partition in a call, as results of one more compilation, by node.

        There are none if the library rejects that.
        """
        if id(call) not in self._values:
            self._values[id(call)] = values = _read_values(self._trial(call))
            if not values:
                self._context.notes.append(f"the values inside of partition {self._region.name} cannot be read")
        return self._values[id(call)]

    def _trial(self, call: RecordedCall) -> RegionTrial:
        compile_, open_ = partial(self._context.compile, self._backend), partial(self._context.open, self._backend)
        return RegionTrial(self._region, call.inputs, compile_, open_)

    def _is_right_again(self, call: RecordedCall) -> bool:
        """Return if the partition is right with an artifact that is compiled now."""
        fresh = partial(self._context.artifacts.attempt, self._backend)
        trial = RegionTrial(self._region, call.inputs, fresh, partial(self._context.open, self._backend))
        symptom = _WrongResults(trial, self._entry, self._context)
        return not symptom(units_of(self._region)) and not symptom.rejected

    def _remaining(self) -> list[Unit]:
        return [unit for unit in units_of(self._region) if unit not in self._found]

    def _faults_inside(self, trial: RegionTrial, symptom: _WrongResults, call: RecordedCall) -> Iterator[Fault]:
        """Yield the faults that show if all values of the partition are results, also those that its results hide.

        Each operator that looks wrong there has to be wrong in a sub-region too, since further results can change what
        a library fuses.
        """
        is_hidden = not self._entry.is_wrong
        units = units_of(self._region)
        for unit in self._wrong_inside(call):
            if unit in self._found:
                continue
            self._context.report(f"partition {self._entry.name}: operator {unit[0].name}")
            before = units[: units.index(unit) + 1]
            start = next((some for some in ([unit], before) if symptom(some)), None)
            if start is None:
                continue
            search = symptom.minimize(start)
            fault = self._fault(trial, search, symptom)
            is_usual = self._is_usual(fault.kind, fault.figures) or (fault.kind.name == "precision" and is_hidden)
            if not is_usual and not self._found.intersection(search.found):
                self._found.update(search.found)
                yield replace(fault, is_hidden=is_hidden or self._is_accurate())

    def _is_accurate(self) -> bool:
        """Return if the results of the partition are as accurate as an accuracy check demands by default."""
        figures, least = self._entry.differences.accuracy(), self._context.least_rounding_db
        return figures is not None and least is not None and figures.sqnr_db >= least

    def _wrong_inside(self, call: RecordedCall) -> list[Unit]:
        """Return the units whose results differ from torch's on the values that the library computed before them."""
        known = self.values(call)
        wrong = []
        for unit in units_of(self._region) if known else ():
            part = part_of(self._region, [unit])
            forms = EagerRegion(part).compare([known[n.name] for n in part.inputs], known)
            if excess_of(self._context.bounds, difference(*forms)) > 1:
                wrong.append(unit)
        return wrong

    def _is_usual(self, kind: FaultKind, figures: Accuracy | None) -> bool:
        """Return if an error is not a fault: of float32 itself, or of a library that computes at lower precision."""
        least = self._context.least_rounding_db
        is_small = figures is not None and least is not None and figures.sqnr_db >= least
        return kind.name == "rounding" or (kind.name == "precision" and is_small and self._rounds_float32)

    def _is_rounding(self, trial: RegionTrial, units: Sequence[Unit], *, by_parts: bool = True) -> bool:
        """Return if torch has the error of some units too at lower precision, so that no operator is at fault.

        Args:
            trial: runs the units.
            units: the units.
            by_parts: several units may round, each a little.
        """
        part = part_of(self._region, units)
        try:
            call = _run(trial, part)
        except Exception:  # of a partition that fails
            return False
        kind = kind_of(call, EagerRegion(part))
        is_expected = self._context.least_rounding_db is None or self._rounds_float32
        is_sum = by_parts and kind.name == "precision" and len(units) > 1 and is_expected
        if not is_sum and not self._is_usual(kind, figures_of(call)):
            return False
        text = f"partition {self._region.name} misses {self._context.bounds} by rounding alone: {kind.explanation}"
        self._context.notes.append(text)
        self._is_explained = True
        return True

    def _is_another_right_answer(self, call: RecordedCall) -> bool:
        """Return if a partition has torch's results for another right answer of its operators, e.g. with equal ones."""
        eager = EagerRegion(self._region)
        if not self._entry.is_wrong or not eager.choices:
            return False
        known = self.values(call)
        results = {name: known[name] for name in eager.choices if name in known}
        results |= dict(zip((n.name for n in self._region.outputs), call.actual, strict=True))
        if excess_of(self._context.bounds, difference(*eager.compare(call.inputs, results))) > 1:
            return False
        self._entry.is_another_answer = True
        return True

    def _fault(self, trial: RegionTrial, search: Minimization, symptom: _WrongResults) -> Fault:
        """Describe a smallest set of operators, and write its reproduction."""
        part = part_of(self._region, search.found)
        call = _run(trial, part) if self._entry.failure is None else _reference(trial, part)
        rest = [unit for unit in units_of(self._region) if unit not in search.found]
        kind = self._kind(call, part)
        fault = _minimal_fault(
            self._entry.method, self._backend, self._region, search, symptom, rest, kind, figures_of(call)
        )
        return replace(fault, reproduction=self._context.reproduce(fault, part, call))

    def _whole_partition(self, call: RecordedCall, text: str) -> Fault:
        """Return the fault of a partition that was wrong in the program; `text` has the reason to name no operator."""
        nodes = operators_of(self._region.calls)
        kind = self._kind(call, self._region)
        kind = replace(kind, explanation="; ".join(filter(None, (kind.explanation, text))))
        faulty = tuple(map(faulty_node, nodes))
        method, name, figures = self._entry.method, self._entry.name, figures_of(call)
        fault = Fault(method, self._backend, name, faulty, kind, figures, len(nodes), is_minimal=False)
        self._context.note_no_reproduction(fault, text)
        return fault

    def _kind(self, call: RecordedCall, part: Region) -> FaultKind:
        """Return the kind of the fault that some of the operators show in a call."""
        if not self._entry.is_stable:
            return FaultKind("non-determinism", "two executions on the same inputs return different values")
        return failure_of(self._entry) or kind_of(call, EagerRegion(part))


class _Symptom:
    """The test of a minimization: some units of a region show its symptom if they are tried alone."""

    def __init__(self, context: SearchContext) -> None:
        self._context = context
        self.rejected = 0  # sub-regions that the library did not run, in the last search

    def __call__(self, units: Sequence[Unit]) -> bool:
        """Return whether these units show the symptom; raises OutOfTime."""
        self._context.require_time()
        try:
            return self._shows(units)
        except Exception:  # a library that accepts the region may reject a part of it with any error
            self.rejected += 1
            return False

    def _shows(self, units: Sequence[Unit]) -> bool:
        raise NotImplementedError

    def minimize(self, units: Sequence[Unit]) -> Minimization:
        """Return a smallest set of units that show the symptom."""
        self.rejected = 0
        return Minimization(units, self)


class _WrongResults(_Symptom):
    """Units that miss the bounds, fail, or return different results for the same inputs, as their partition does."""

    def __init__(self, trial: RegionTrial, entry: DebuggedInstruction, context: SearchContext) -> None:
        super().__init__(context)
        self._trial = trial
        self._fails, self._differs = entry.failure is not None, not entry.is_stable

    def _shows(self, units: Sequence[Unit]) -> bool:
        part = part_of(self._trial.region, units)
        try:
            results = _run_with_choices(self._trial, part)
            again = self._trial.run(part) if self._differs else results
        except DelegateError:
            return self._fails
        if self._fails:
            return False
        if self._differs:
            return not same(*([r[node.name] for node in part.outputs] for r in (results, again)))
        forms = EagerRegion(part).compare([*_list_tried(self._trial, part.inputs)], results)
        return excess_of(self._context.bounds, difference(*forms)) > 1


class _DoesNotCompile(_Symptom):
    """Units that a backend rejects without naming nodes, or fails at."""

    def __init__(self, backend: str, region: Region, context: SearchContext) -> None:
        super().__init__(context)
        self._backend, self._region = backend, region
        self.kind: type[RegionFailed] = RegionFailed  # parts that are rejected do not show a crash
        self.errors: dict[int, RegionFailed] = {}  # by number of units

    def _shows(self, units: Sequence[Unit]) -> bool:
        try:
            self._context.artifacts.attempt(self._backend, part_of(self._region, units))
        except RegionFailed as error:
            self.errors[len(units)] = error
            return isinstance(error, self.kind)
        return False


def continue_after_errors(compiler: Compiler) -> None:
    """Let a compiler treat any error of a backend as a region that fails, and go on without the nodes at fault."""
    compilers = compiler.artifacts.compilers.items()
    compiler.artifacts.compilers = {name: partial(_fail_by_region, preprocess) for name, preprocess in compilers}


def _fail_by_region(preprocess: Callable[[Region], PreprocessResult], region: Region) -> PreprocessResult:
    try:
        return preprocess(region)
    except RegionGivenUp as refusal:
        if not isinstance(refusal.__cause__, DelegateError):  # the compiler was too slow
            raise
        raise RegionCrashed(refusal.__cause__.what) from refusal
    except DelegateError as error:
        raise RegionCrashed(error.what) from error


def all_compile_faults(context: SearchContext, failures: Iterable[CompileFailure]) -> Iterator[Fault]:
    """Yield the faults of all regions that are not compiled, each set of operators once.

    The plans that a measured placement tries have regions in common.
    """
    seen = set[tuple[str, str, tuple[FaultyNode, ...]]]()
    for failure in failures:
        for fault, part in _compile_faults(context, failure):
            key = fault.method, fault.place, fault.nodes
            if key not in seen:
                seen.add(key)
                yield replace(fault, reproduction=context.reproduce_compilation(fault, part))


def _compile_faults(context: SearchContext, failure: CompileFailure) -> Iterator[tuple[Fault, Region]]:
    """Yield the smallest operator sets of a region that its backend rejects, or fails at, each with its region."""
    region, remaining = failure.region, units_of(failure.region)
    symptom = _DoesNotCompile(failure.backend, region, context)
    try:
        while remaining and symptom(remaining):
            symptom.kind = type(symptom.errors[len(remaining)])
            context.report(f"partition {region.name}: {len(remaining)} operators, which do not compile")
            search = symptom.minimize(remaining)
            remaining = [unit for unit in remaining if unit not in search.found]
            error = symptom.errors[len(search.found)]
            if isinstance(error, RegionCrashed):
                kind = FaultKind("failure", f"they do not compile: {error.reason}")
            else:
                kind = FaultKind(REFUSAL, f"the backend refuses them, so they run elsewhere: {error.reason}")
            fault = _minimal_fault(failure.method, failure.backend, region, search, symptom, remaining, kind, None)
            yield fault, part_of(region, search.found)
            symptom.kind = RegionFailed
    except OutOfTime:
        context.end_early(region.name)


def record_unopened(
    context: SearchContext, recorder: ThoroughRecorder, values: Mapping[str, Mapping[str, torch.Tensor]]
) -> None:
    """Record the partitions that their backends do not open as instructions that fail, with the inputs of torch.

    Args:
        context: opens artifacts.
        recorder: gets the records.
        values: torch's values in the first call, by method and node.
    """
    for method in context.run.lowered:
        known = values.get(method.program.name, {})
        for name, delegate in method.delegates.items():
            try:
                with closing(context.open(delegate.backend, delegate.result)):
                    continue
            except DelegateError as error:
                entry = recorder.add_unopened(method.program.name, name, error)
            inputs = [node.name for node in delegate.region.inputs]
            if all(name in known for name in inputs):
                entry.worst = RecordedCall(tuple(known[name] for name in inputs))
            else:
                context.notes.append(
                    f"partition {name} is not opened, and not searched: torch's values before it are unknown"
                )


def _minimal_fault(
    method: str,
    backend: str,
    region: Region,
    search: Minimization,
    symptom: _Symptom,
    rest: Sequence[Unit],
    kind: FaultKind,
    figures: Accuracy | None,
) -> Fault:
    """Return the fault of a smallest operator set in a region; `rest` should be right without them."""
    nodes, rejected = operators_of(nodes_of(search.found)), symptom.rejected
    try:
        is_confirmed = not rest or not symptom(rest)
    except OutOfTime:
        is_confirmed = False
    return Fault(
        method,
        backend,
        region.name,
        tuple(map(faulty_node, nodes)),
        kind,
        figures,
        len(operators_of(region.calls)),
        search.tests,
        rejected,
        search.is_minimal,
        is_confirmed,
        remedy=pins(nodes),
    )


def operators_of(nodes: Iterable[Node]) -> list[Node]:
    """Return the nodes without those that pick a result of another."""
    return [node for node in nodes if node.target is not operator.getitem]


def pins(nodes: Iterable[Node]) -> str:
    """Return the configuration that runs nodes on portable kernels."""
    return "partitioning:\n  node_pins:" + "".join(f"\n    {node.name}: portable" for node in nodes)


def failure_of(entry: DebuggedInstruction) -> FaultKind | None:
    """Return the kind of an instruction that failed; None for another."""
    return None if entry.failure is None else FaultKind("failure", entry.failure.what)


def figures_of(call: RecordedCall) -> Accuracy | None:
    """Return the error of a call; None if it failed."""
    return difference(call.actual, call.expected) if call.actual else None


def _border(region: Region) -> tuple[list[str], ...]:
    """Return the names of the inputs, operators and outputs of a region."""
    return tuple([node.name for node in nodes] for nodes in (region.inputs, region.calls, region.outputs))


def _run_with_choices(trial: RegionTrial, part: Region) -> dict[str, torch.Tensor]:
    """Run a part on its backend; return its outputs, and the results of its choices unless the library rejects that."""
    outputs, names = list(part.outputs), {node.name for node in part.outputs}
    hidden = [node for node in part.calls if node.name in {*EagerRegion(part).choices} - names]
    try:
        return trial.run(part.with_outputs([*outputs, *hidden]) if hidden else part)
    except Exception:  # a library that accepts the part may reject further results with any error
        if not hidden:
            raise
        return trial.run(part)


def _list_tried(trial: RegionTrial, nodes: Iterable[Node]) -> Iterator[torch.Tensor]:
    return (trial.known[node.name] for node in nodes)


def _reference(trial: RegionTrial, part: Region) -> RecordedCall:
    """Return a call of a part with the results of torch alone."""
    return RecordedCall(tuple(_list_tried(trial, part.inputs)), expected=tuple(_list_tried(trial, part.outputs)))


def _read_values(trial: RegionTrial) -> dict[str, torch.Tensor]:
    """Return all values of a region on its backend, by node; empty if the library rejects so many results."""
    taps = [n for n in trial.region.calls if isinstance(n.meta.get(META_VALUE), torch.Tensor)]
    try:
        values = trial.run(trial.region.with_outputs(taps))
    except Exception:  # a library that accepts the region may reject further results with any error
        return {}
    return dict(zip((n.name for n in trial.region.inputs), trial.inputs, strict=True)) | values


def _run(trial: RegionTrial, part: Region) -> RecordedCall:
    """Run a part on its backend, and return the call; raises as `RegionTrial.run` does."""
    results = trial.run(part)
    return replace(_reference(trial, part), actual=tuple(results[node.name] for node in part.outputs))
