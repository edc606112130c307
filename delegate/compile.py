"""to_backend: the ahead-of-time path from an exported program to a compiled one."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, cast

from torch.export import ExportedProgram

from delegate.accuracy.verification import Measured, Verification, verification
from delegate.compiled import CompiledProgram
from delegate.edge.control_flow import CONTROL_FLOW
from delegate.edge.restore_torch_on_error import restore_torch_on_error
from delegate.edge.sources import Model, exported_programs
from delegate.edge.training import warn_of_training
from delegate.emit.device_copies import with_device_copies
from delegate.errors import DelegateError, PartitionError
from delegate.kernels.libraries import KernelRequest
from delegate.lowering.compiler import Compiler, portable_message
from delegate.lowering.locking import (
    lock_of,
    lock_to_apply,
    quantize_as_locked,
    require_applied,
    require_lock_matches,
    with_lock,
)
from delegate.lowering.measuring import RAY, measured_places, to_measure
from delegate.lowering.program_cache import CompilationResult, ProgramCache
from delegate.lowering.quantized import blamed, quantized
from delegate.partitioner.extraction import LoweredProgram
from delegate.partitioner.saved import SavedPlan
from delegate.placement.plans import partition_options
from delegate.placement.program_placement import MEASURED
from delegate.placement.remote_placement import open_remote_placement
from delegate.plugins import PORTABLE
from delegate.program.model import Program
from delegate.registry import Registry, default_registry
from delegate.report import Report
from delegate.runtime.kernels import kernels_of
from delegate.runtime.load_options import with_load_options
from delegate.selection import ConfigSource, Request, Selection, open_artifact_cache, select


@restore_torch_on_error()
def to_backend(
    model: Model,
    backends: Request = None,
    *,
    config: ConfigSource = None,
    kernels: KernelRequest | None = None,
    example_inputs: tuple[Any, ...] | None = None,
    plan: SavedPlan | str | os.PathLike[str] | None = None,
    place: Literal["preference", "measured"] | None = None,
    verify: Any = None,
    original: Model | None = None,
    cache: bool | None = None,
    progress: Callable[[str], None] | None = None,
    lock: str | os.PathLike[str] | None = None,
    locked: str | os.PathLike[str] | None = None,
    bundle: str | os.PathLike[str] | None = None,
    costs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    ray: str | None = None,
) -> CompiledProgram:
    """Partition a model among backends, compile the partitions, and run the other nodes on portable kernels.

    Args:
        model: an ExportedProgram, the path of a .pt2 file, or a dict of these by method name; with `example_inputs` a
            module, traced, scripted or eager, or the path of a TorchScript file.
        backends: a name, a `Partitioner`, or a list of these in order of preference; [] for portable kernels alone.
            By default all backends that are available on this machine are used.
        config: path of a YAML file, the same as a dict, or a `Config`.
        kernels: kernel libraries for portable nodes, in order of preference; see `delegate.load`. A saved program does
            not name them. torch's own ("aten") do not influence compilation: the program runs without them.
        example_inputs: positional arguments of a module, whose sizes the program will have; for dynamic sizes, export
            the module yourself.
        plan: the backend of each node, as `CompiledProgram.plan` of another lowering or the path of a saved plan.
            Without it, the first backend that supports a node runs it.
        place: "measured": run single-backend and mixed plans on this machine and take the best; see docs/placement.md.
            "preference": take the first backend. Default: `placement.policy` of the configuration.
        verify: inputs to run the program on: a tuple of arguments, a dict of keyword arguments, or a list of these; for
            several methods a dict of these by method. The report then has the errors of partitions and results against
            torch. `verify` of the configuration sets bounds; see docs/accuracy.md. If it does, the default is the
            example inputs of the export.
        original: the float reference of `model`, in any form that `model` may have, e.g. the program that was quantized
            to `model`. The bounds of `verify` are then for results against this reference. A model that is quantized
            here has its own float program as reference.
        cache: use the compile cache on disk. Default: as configured, which is True unless changed. See
            docs/compile-cache.md.
        progress: called with short progress texts while placements are measured.
        lock: path of a lockfile to write, with the backend of each node and its measured cost. See docs/placement.md.
        locked: path of a lockfile to apply; nothing is measured then.
        bundle: path of a file to write for another machine, with the candidates' programs and inputs, which
            `delegate measure` runs there. Nothing is measured here, and the first candidate's plan is used meanwhile.
            With `costs` it has the plans that are promising by these.
        costs: path of the results of `delegate measure`, or a list, one for each bundle. They decide the placement, and
            nothing is measured here.
        ray: address of a Ray cluster, as for `ray.init`. Candidates are measured on its nodes that have the backends as
            resources.

    Raises:
        ExportError: the model is none of these, or cannot be brought to core ATen.
        ConfigError: the configuration is wrong.
        KernelError: a kernel library cannot be used.
        BackendError: a requested backend cannot be used.
        PartitionError: nodes stay portable and the policy forbids it, or the plan or the lock cannot be applied.
        LoweringError: no kernel runs an operator that stays portable.
        InputError: the inputs to verify do not fit.
        AccuracyError: results are farther off than the configuration allows, or cannot be compared.
    """
    registry = default_registry()
    remote_arguments = {"a bundle": bundle, "costs": costs, RAY: ray}
    keeping = lock_to_apply(locked, lock, {"a plan": plan, **remote_arguments})
    remote = open_remote_placement(bundle, costs)
    selection = select(backends, config, registry, kernels, () if keeping is None else keeping.plan.backends, cache)
    sources = require_lock_matches(exported_programs(model, example_inputs), keeping, locked, selection)
    saved = _saved_plan(plan) if keeping is None else keeping.plan
    placing = to_measure(place, selection, saved, remote_arguments) if keeping is None else None
    artifacts = open_artifact_cache(selection, registry, cache)
    is_cacheable = all(x is None for x in (verify, original, lock, *remote_arguments.values()))
    programs = ProgramCache(artifacts, selection, registry) if artifacts is not None and is_cacheable else None
    key = None if programs is None else programs.key(sources, saved, keeping, placing)
    if programs is not None and key is not None and (cached := programs.get(key)) is not None:
        for name, ep in sources.items():
            warn_of_training(ep.graph, name)
        return _result(cached, Report.from_json(cached.program.report), sources, selection, registry)
    exported, selection = quantized(sources, selection, registry, verify, progress)
    exported = quantize_as_locked(exported, keeping, locked, selection, registry)
    references = exported_programs(original) if original is not None else sources
    compiler = Compiler(selection, kernels_of(registry, selection.kernels), saved, artifacts)
    compiler.add_methods(exported)
    outcome = None
    if placing is not None:
        outcome = measured_places(compiler, exported, references, verify, registry, cache, progress, remote, ray)
        compiler, exported = cast(Compiler, outcome.base.compiler), dict(outcome.base.exported)
        compiler.partitioners = outcome.plan.partitioners(compiler.partitioners, MEASURED)
        compiler.concurrency_plan = outcome.plan
    floats = {name: ep for name, ep in references.items() if ep is not exported.get(name)}
    blame = partial(blamed, exported, floats, verify, selection, registry)
    verifying = verification(verify, exported, selection, registry, floats, blame)
    program, lowered, measured = _compile_and_verify(compiler, verifying)
    require_applied(saved, keeping, locked, compiler.plans)
    report, placement_source = compiler.report(), outcome or keeping
    if placement_source is not None:
        report = replace(report, placements=placement_source.placements)
        program = with_load_options(program, partition_options(placement_source.options, program), registry)
    if lock is not None or keeping is not None:
        report = with_lock(report, lock_of(sources, compiler, registry, placement_source), keeping, lock)
    report = with_device_copies(report, program, lowered)
    report = report if measured is None else measured.add_to(report)
    result = CompilationResult(
        program._replace(report=report.to_json()), SavedPlan.of(compiler.plans), tuple(compiler.warnings)
    )
    if programs is not None and key is not None and not compiler.artifacts.has_failed:
        to_cache = result if outcome is None else result.as_cached(report)
        programs.put(key, to_cache, lowered)
    return _result(result, report, exported, selection, registry)


def _compile_and_verify(
    compiler: Compiler, verifying: Verification | None
) -> tuple[Program, Sequence[LoweredProgram], Measured | None]:
    """Compile, and again without the nodes that verification moves; return the measurements of the last program."""
    program, lowered = compiler.compile()
    while verifying is not None:
        measured = verifying.measure(program, lowered)
        moved = verifying.to_move(measured, lowered, compiler.artifacts)
        if not moved:
            return program, lowered, measured
        compiler.move(moved)
        program, lowered = compiler.compile()
    return program, lowered, None


def _saved_plan(plan: SavedPlan | str | os.PathLike[str] | None) -> SavedPlan | None:
    """Return the plan to apply, if any; raises PartitionError for another value."""
    saved = SavedPlan.load(plan) if isinstance(plan, str | os.PathLike) else plan
    if not isinstance(saved, SavedPlan | None):
        remedy = "give `program.plan` of another lowering, or the path of one that was saved"
        raise PartitionError(f"plan cannot be a {type(plan).__name__}", where="to_backend", remedy=remedy)
    return saved


def _result(
    result: CompilationResult,
    report: Report,
    exported: Mapping[str, ExportedProgram],
    selection: Selection,
    registry: Registry,
) -> CompiledProgram:
    """Return the compiled program for the user, and warn about it."""
    for sentence in result.warnings:
        warnings.warn(sentence, stacklevel=4)
    _warn_of_portable(report, selection)
    specs = {name: (ep.call_spec.in_spec, ep.call_spec.out_spec) for name, ep in exported.items()}
    return CompiledProgram(result.program, specs, report, registry, selection.kernels, plan=result.plan)


def explain(
    model: Model, backends: Request = None, *, config: ConfigSource = None, kernels: KernelRequest | None = None
) -> Report:
    """Return the report of `to_backend` without compiling: the operators that each backend supports.

    Raises the errors of `to_backend`, except those of the backends' compilers and of results that are less accurate
    than requested.
    """
    report, refusal = plan_and_check(model, backends, config=config, kernels=kernels)
    if refusal is not None:
        raise refusal
    return report


@restore_torch_on_error()
def plan_and_check(
    model: Model, backends: Request = None, *, config: ConfigSource = None, kernels: KernelRequest | None = None
) -> tuple[Report, DelegateError | None]:
    """Return the report of `explain`, and the error of `to_backend` if lowering refuses the planned program.

    Raises the errors that leave no plan to report.
    """
    registry = default_registry()
    selection = select(backends, config, registry, kernels)
    placing = to_measure(None, selection, None, {})
    exported, selection = quantized(exported_programs(model), selection, registry)
    compiler = Compiler(selection, kernels_of(registry, selection.kernels))
    compiler.add_methods(exported)
    compiler.plan()
    refusal = None
    try:
        verification(None, exported, selection, registry, {})
        compiler.check()
    except DelegateError as error:
        refusal = error
    report = compiler.report()
    if placing is not None:
        note = "places are by preference here: they are measured when it is lowered"
        report = replace(report, notes=(note, *report.notes))
    return report, refusal


def _warn_of_portable(report: Report, selection: Selection) -> None:
    """Warn about portable nodes if the policy asks for a warning.

    Control-flow nodes do not count, since the runtime runs them without kernels.
    """
    names = [n.name for n in report.nodes if n.backend == PORTABLE and n.op not in CONTROL_FLOW]
    if selection.on_portable == "warn" and names and selection.backends:
        warnings.warn(portable_message(names), RuntimeWarning, stacklevel=5)
