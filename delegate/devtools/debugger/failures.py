"""Regions that are not compiled, since backends refuse them or fail, and artifacts that are not opened."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

from delegate.backends.aot import PreprocessResult, Region, RegionCrashed, RegionFailed, RegionGivenUp
from delegate.backends.guilty import Minimization, OutOfTime, Unit, nodes_of, part_of, units_of
from delegate.devtools.debugger.diagnosis import REFUSAL, Fault, FaultKind, FaultyNode
from delegate.devtools.debugger.faults import faulty_node
from delegate.devtools.debugger.program_run import ProgramRun
from delegate.devtools.debugger.recording import RecordedCall, RecordedInstruction
from delegate.devtools.debugger.search import SearchContext, operators_of, pins
from delegate.errors import DelegateError
from delegate.lowering.compiler import CompileFailure, Compiler


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
    """Yield the smallest sets of operators of a region that its backend refuses, or fails at, each with its region."""
    region, units, found = failure.region, units_of(failure.region), set[Unit]()
    errors: dict[int, RegionFailed] = {}  # by number of operators
    symptom: type[RegionFailed] = RegionFailed
    rejected = 0

    def fails(some: Sequence[Unit]) -> bool:
        nonlocal rejected
        context.require_time()
        try:
            context.artifacts.attempt(failure.backend, part_of(region, some))
        except RegionFailed as error:
            errors[len(some)] = error
            return isinstance(error, symptom)
        except Exception:  # a library that names nodes of a part, or any other
            rejected += 1
        return False

    try:
        while remaining := [unit for unit in units if unit not in found]:
            symptom = RegionFailed
            if not fails(remaining):
                break
            symptom, rejected = type(errors[len(remaining)]), 0  # parts that are refused do not show a crash
            context.report(f"partition {region.name}: {len(remaining)} operators, which do not compile")
            search = Minimization(remaining, fails)
            found.update(search.found)
            nodes = operators_of(nodes_of(search.found))
            fault = Fault(
                failure.method,
                failure.backend,
                region.name,
                tuple(map(faulty_node, nodes)),
                _kind_of(errors[len(search.found)]),
                None,
                len(operators_of(region.calls)),
                search.tests,
                rejected,
                search.is_minimal,
                is_confirmed=not (rest := [unit for unit in units if unit not in found]) or not fails(rest),
                remedy=pins(nodes),
            )
            yield fault, part_of(region, search.found)
    except OutOfTime:
        context.end_early(region.name)


def _kind_of(error: RegionFailed) -> FaultKind:
    if isinstance(error, RegionCrashed):
        return FaultKind("failure", f"they do not compile: {error.reason}")
    return FaultKind(REFUSAL, f"the backend refuses them, so they run elsewhere: {error.reason}")


def record_unopened(context: SearchContext, run: ProgramRun) -> None:
    """Record the partitions that their backends do not open as instructions that fail, with the inputs of torch."""
    for method in run.lowered:
        values = run.values.get(method.program.name, {})
        for name, delegate in method.delegates.items():
            try:
                with closing(context.open(delegate.backend, delegate.result)):
                    continue
            except DelegateError as error:
                entry = run.recorder.entry(RecordedInstruction(method.program.name, name, region=delegate.region))
                entry.failure = error
            inputs = [node.name for node in delegate.region.inputs]
            if all(name in values for name in inputs):
                entry.worst = RecordedCall(tuple(values[name] for name in inputs))
            else:
                run.notes.append(
                    f"partition {name} is not opened, and not searched: torch's values before it are unknown"
                )
