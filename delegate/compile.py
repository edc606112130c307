"""to_backend: the ahead-of-time path from an exported program to a compiled one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.export import ExportedProgram

from delegate.accuracy.layer_accuracy import layer_accuracies
from delegate.accuracy.verification import MeasuredAccuracy, Verification, verification
from delegate.cache.aot.programs import CompilationResult, ProgramCache
from delegate.compiled import CompiledProgram
from delegate.edge.control_flow import CONTROL_FLOW
from delegate.edge.decompose import CannotDecompose
from delegate.edge.keys import fingerprints
from delegate.edge.sources import Model, exported_programs
from delegate.edge.training import warn_of_training
from delegate.emit.device_memory import with_device_copies
from delegate.errors import ConfigError, DelegateError
from delegate.kernels.libraries import KernelRequest
from delegate.kernels.selection import kernels_of
from delegate.listeners import stage
from delegate.lowering.compiler import Compiler, portable_message
from delegate.lowering.quantized import blamed, quantized
from delegate.lowering.weights import with_own_weights
from delegate.option_rules import rules_to_json
from delegate.partitioner.extraction import LoweredProgram
from delegate.partitioner.saved import SavedPlan
from delegate.placement.locked import LockedStrategy, lock_of
from delegate.placement.plans import partition_options
from delegate.placement.policy import PlacementRequest
from delegate.placement.strategies import create_strategy
from delegate.placement.strategy import Strategy
from delegate.plugins import PORTABLE
from delegate.program.model import Program
from delegate.registry import Registry, default_registry
from delegate.report import Report
from delegate.request import LoweringRequest, RepeatedRequest
from delegate.runtime.loaded import with_load_options
from delegate.selection import ConfigSource, Request, Selection, open_artifact_cache, select
from delegate.user_warnings import warn_user

if TYPE_CHECKING:
    from delegate.devtools.debugger.diagnosis import Diagnosis
    from delegate.devtools.debugger.saved_program import SavedProgram

PathLike = str | os.PathLike[str]


@stage("lower")
def to_backend(
    model: Model,
    backends: Request = None,
    *,
    config: ConfigSource = None,
    kernels: KernelRequest | None = None,
    placement: PlacementRequest | None = None,
    verify: Any = None,
    cache: bool | None = None,
    progress: Callable[[str], None] | None = None,
) -> CompiledProgram:
    """Partition a model among backends, compile the partitions, and run the other nodes on portable kernels.

    The program has copies of the weights, so that training may continue.

    Example::

        exported = torch.export.export(model.eval(), example_inputs)
        program = delegate.to_backend(exported, ["dsp", "xnnpack"])
        print(program.report)
        program.save("model.dlg")

    Args:
        model: an ExportedProgram, the path of a .pt2 file, or a dict of these by method name. `delegate.export` makes
            one of a module.
        backends: a name, a `Partitioner`, or a list of these in order of preference; [] for portable kernels alone.
            By default all backends that are available on this machine are used.
        config: path of a YAML file, the same as a dict, or a `Config`.
        kernels: kernel libraries for portable nodes, in order of preference; see `delegate.load`. A saved program does
            not name them. torch's own ("aten") do not influence compilation: the program runs without them.
        placement: the choice among the backends that support a node. `delegate.ByPreference()` takes the first.
            `delegate.Measured()` runs plans on this machine and takes the best. `delegate.Remote(bundle, costs)` uses
            measurements of another machine. `delegate.Replay(lockfile)` applies a lockfile, and a `delegate.SavedPlan`
            the plan of another lowering. A `delegate.PlacementPolicy` is a choice of your own.
            Default: as configured; else `delegate.ByPreference()` if backends are named, and `delegate.Estimated()` if
            not. See docs/how-to/placement.md.
        verify: inputs to run the program on: a tuple of arguments, a dict of keyword arguments, or a list of these; for
            several methods a dict of these by method. Or a `delegate.Verify`, which has a reference and bounds too. The
            report then has the errors of partitions and results against torch. If the configuration has bounds, the
            default is the example inputs of the export. See docs/reference/accuracy.md.
        cache: use the compile cache on disk. Default: as configured, which is True unless changed. See
            docs/reference/compile-cache.md.
        progress: called with short progress texts while placements are measured.

    Raises:
        ExportError: the model is none of these, or cannot be brought to core ATen.
        ConfigError: the configuration or the placement is wrong.
        KernelError: a kernel library cannot be used.
        BackendError: a requested backend cannot be used.
        PartitionError: nodes stay portable and the policy forbids it, or the plan or the lock cannot be applied.
        LoweringError: no kernel runs an operator that stays portable.
        InputError: the inputs to verify do not fit.
        AccuracyError: results are farther off than the bounds allow, or cannot be compared.
    """
    request = LoweringRequest.of(
        model, backends, config, kernels=kernels, placement=placement, verify=verify, cache=cache, progress=progress
    )
    return _lower(request, model, is_cacheable=verify is None, is_owned=False)


@stage("lower")
def lower_owned(model: Model, backends: Request = None, *, verify: Any = None, **options: Any) -> CompiledProgram:
    """Lower as `to_backend` does, but use the memory of the model's weights, which nothing may change from now on."""
    request = LoweringRequest.of(model, backends, verify=verify, **options)
    return _lower(request, model, is_cacheable=verify is None, is_owned=True)


def _lower(request: LoweringRequest, model: Model, *, is_cacheable: bool, is_owned: bool) -> CompiledProgram:
    """Lower a model.

    Args:
        request: the arguments of `to_backend`.
        model: the model of the request as the user gave it.
        is_cacheable: the program may come from the cache, and go there.
        is_owned: nothing else changes the weights of the model, so the program needs no copies of them.
    """
    while True:
        try:
            return _lower_once(request, model, is_cacheable=is_cacheable, is_owned=is_owned)
        except CannotDecompose as error:  # of one node. Torch may be able to do it while it converts the whole program
            if error.operator in request.decomposed:
                raise
            request = replace(request, decomposed=request.decomposed | {error.operator})


def _lower_once(request: LoweringRequest, model: Model, *, is_cacheable: bool, is_owned: bool) -> CompiledProgram:
    """Lower a model, without preserving the compound operators in `request.decomposed`; see `_lower`."""
    sources, selection, strategy, registry = request.sources, request.selection, request.strategy, request.registry

    artifacts = open_artifact_cache(selection, registry, request.cache)
    is_cacheable = is_cacheable and strategy.is_cacheable
    programs = ProgramCache(artifacts, selection, registry) if artifacts is not None and is_cacheable else None
    key = None if programs is None else programs.key(sources, strategy.cache_key)
    if programs is not None and key is not None and (cached := programs.get(key)) is not None:
        for name, ep in sources.items():
            warn_of_training(ep.graph, name)
        with stage("program from the cache"):
            report = Report.from_json(cached.program.report)
            repeated = RepeatedRequest.of(request, model, Strategy(plan=cached.plan))
            return _result(cached, report, sources, selection, registry, repeated)

    placed = request.place(artifacts)
    selection = placed.compiler.selection
    blame = partial(blamed, placed.exported, placed.floats, request.check.inputs, selection, registry)
    verifying = verification(request.check.inputs, placed.exported, selection, registry, placed.floats, blame)
    program, lowered, measured = _compile_and_verify(placed.compiler, verifying)
    strategy.require_applied(placed.compiler.plans)
    program = with_load_options(program, partition_options(placed.options, program), registry)
    if not is_owned:
        program = with_own_weights(program, sources.values())

    known = fingerprints(placed.exported)
    report = replace(placed.compiler.report(), placements=placed.placements, fingerprints=known)
    lock = lock_of(sources, placed, registry)
    report = strategy.finish(report, lock)
    report = with_device_copies(report, program, lowered)
    if verifying is not None and measured is not None:
        report = replace(measured.add_to(report), layers=tuple(layer_accuracies(verifying, measured)))
    result = CompilationResult(
        program._replace(report=report.to_json(), load_rules=rules_to_json(placed.compiler.load_rules())),
        SavedPlan.of(placed.compiler.plans),
        tuple(placed.compiler.warnings),
    )
    is_stored = strategy.is_cacheable and not placed.compiler.artifacts.has_failed
    if programs is not None and key is not None and is_stored:
        programs.put(key, result.as_cached(report), lowered)
    repeated = RepeatedRequest.of(request, model, LockedStrategy(lock, "the program"))
    return _result(result, report, placed.exported, selection, registry, repeated)


def _compile_and_verify(
    compiler: Compiler, verifying: Verification | None
) -> tuple[Program, Sequence[LoweredProgram], MeasuredAccuracy | None]:
    """Compile, and again without the nodes that verification moves; return the measurements of the last program."""
    program, lowered = compiler.compile()
    while verifying is not None:
        with stage("verify"):
            measured = verifying.measure(program, lowered, compiler.artifacts)
        moved = verifying.to_move(measured, lowered, compiler.artifacts)
        if not moved:
            return program, lowered, measured
        compiler.move(moved)
        program, lowered = compiler.compile()
    return program, lowered, None


def _result(
    result: CompilationResult,
    report: Report,
    exported: Mapping[str, ExportedProgram],
    selection: Selection,
    registry: Registry,
    repeated: RepeatedRequest,
) -> CompiledProgram:
    """Return the compiled program for the user, and warn about it; the debugger repeats the request."""
    for sentence in result.warnings:
        warn_user(sentence, UserWarning)
    _warn_of_portable(report, selection)
    specs = {name: (ep.call_spec.in_spec, ep.call_spec.out_spec) for name, ep in exported.items()}
    return CompiledProgram(
        result.program, specs, report, registry, selection.kernels, plan=result.plan, debugger=partial(_debug, repeated)
    )


def debug(
    model: Model,
    backends: Request = None,
    *,
    inputs: Any = None,
    config: ConfigSource = None,
    kernels: KernelRequest | None = None,
    placement: PlacementRequest | None = None,
    cache: bool | None = None,
    budget: float = 60.0,
    output: PathLike | None = None,
    program_file: PathLike | None = None,
    trust_code: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Diagnosis:
    """Find the operators that return wrong values: run a model beside torch, and reduce each wrong partition.

    Example::

        print(delegate.debug(exported, "dsp", output="reproduction"))

    Args:
        model, backends, config, kernels, placement, cache: see `to_backend`.
        inputs: as `verify` of `to_backend`, which may be a `delegate.Verify`; None: the example inputs of the export.
            Bounds of `Verify` or of the configuration define which results are wrong. Otherwise the default bound of
            the precision does.
        budget: seconds after which no further sub-region is tried.
        output: folder for scripts that show the faults with the vendor's library alone; None: no scripts.
        program_file: a program of this model, saved with debug info. Its placement and its compiled partitions are
            debugged, in place of a new lowering. The default of `backends` is then the backends of the file.
        trust_code: run partitions of that file that are machine code; see `delegate.load`.
        progress: called with short progress texts.

    Raises:
        the errors of `to_backend`, except those of verification. InputError if the folder cannot be written, or the
        program file is of another model. ProgramError if it cannot be read, or has no debug info. BackendFailed if it
        has machine code that is not trusted.
    """
    if program_file is not None:
        from delegate.devtools.debugger.saved_program import FromSavedProgram, SavedProgram

        saved = SavedProgram.load(program_file, default_registry(), trust_code=trust_code)
        backends = saved.backends if backends is None and config is None else backends
    request = LoweringRequest.of(
        model, backends, config, kernels=kernels, placement=placement, verify=None, cache=cache, progress=progress
    )
    if program_file is None:
        return _debug(request, inputs, budget=budget, output=output, progress=progress)
    if placement is not None:
        raise ConfigError("the file has a placement of its own", where="debug", remedy="leave out `placement`")
    request = replace(request, strategy=FromSavedProgram(saved))
    return _debug(request, inputs, budget=budget, output=output, progress=progress, saved=saved)


def _debug(
    request: LoweringRequest | RepeatedRequest,
    inputs: Any = None,
    *,
    budget: float = 60.0,
    output: PathLike | None = None,
    progress: Callable[[str], None] | None = None,
    saved: SavedProgram | None = None,
) -> Diagnosis:
    from delegate.devtools.debugger.debug import run_debugger  # most programs are right

    return run_debugger(request.with_inputs(inputs, progress), budget, None if output is None else Path(output), saved)


def explain(
    model: Model, backends: Request = None, *, config: ConfigSource = None, kernels: KernelRequest | None = None
) -> Report:
    """Return the report of `to_backend` without compiling: the operators that each backend supports.

    Example::

        report = delegate.explain(exported, "xnnpack")
        print(report)

    Raises the errors of `to_backend`, except those of the backends' compilers and of results that are less accurate
    than requested.
    """
    report, refusal = plan_and_check(model, backends, config=config, kernels=kernels)
    if refusal is not None:
        raise refusal
    return report


def plan_and_check(
    model: Model, backends: Request = None, *, config: ConfigSource = None, kernels: KernelRequest | None = None
) -> tuple[Report, DelegateError | None]:
    """Return the report of `explain`, and the error of `to_backend` if lowering refuses the planned program.

    Raises the errors that leave no plan to report.
    """
    registry = default_registry()
    selection = select(backends, config, registry, kernels)
    strategy = create_strategy(None, selection.placement, is_named=selection.is_named)
    sources = exported_programs(model)
    strategy.require_model(sources, selection)
    strategy.calibrate(selection)
    exported, selection = quantized(sources, selection, registry)
    selection = replace(selection, notes=(*selection.notes, *strategy.estimate_notes))
    compiler = Compiler(selection, kernels_of(registry, selection.kernels))
    compiler.costs = strategy.costs(selection)
    compiler.add_methods(exported)
    compiler.plan()
    refusal = None
    try:
        verification(None, exported, selection, registry, {})
        compiler.check()
    except DelegateError as error:
        refusal = error
    report = compiler.report()
    if selection.placement.policy == "measured":
        note = "nodes are placed by estimates here: the plans are measured when the model is lowered"
        report = replace(report, notes=(note, *report.notes))
    return report, refusal


def _warn_of_portable(report: Report, selection: Selection) -> None:
    """Warn about portable nodes if the policy asks for a warning.

    Control-flow nodes do not count, since the runtime runs them without kernels.
    """
    names = [n.name for n in report.nodes if n.backend == PORTABLE and n.op not in CONTROL_FLOW]
    if selection.on_portable == "warn" and names and selection.backends:
        warn_user(portable_message(names))
