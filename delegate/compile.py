"""to_backend: the ahead-of-time path from an exported program to a compiled one."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from delegate.accuracy.verification import MeasuredAccuracy, Verification
from delegate.cache.aot.artifacts import ArtifactCache
from delegate.cache.aot.programs import CompilationResult, get_or_lower
from delegate.common.user_warnings import warn_user
from delegate.compiled import CompiledProgram
from delegate.edge.control_flow import CONTROL_FLOW
from delegate.edge.decompose import CannotDecompose
from delegate.edge.keys import fingerprints
from delegate.edge.sources import Model, read_programs
from delegate.emit.device_memory import with_device_copies
from delegate.errors import DelegateError
from delegate.events import stage
from delegate.kernels.libraries import KernelRequest
from delegate.kernels.selection import kernels_of
from delegate.lowering.compiler import Compiler, portable_message
from delegate.lowering.quantized import find_blamed, quantize_programs
from delegate.lowering.weights import with_own_weights
from delegate.partitioner.extraction import LoweredProgram
from delegate.partitioner.saved import SavedPlan
from delegate.placement.locked import Replay, lock_of
from delegate.placement.plans import partition_options
from delegate.plugins import PORTABLE, load_developer_tool
from delegate.program.model import Program
from delegate.report import Report
from delegate.request import LoweringRequest, PlacementRequest
from delegate.runtime.loaded import with_load_options
from delegate.runtime.option_rules import rules_to_json
from delegate.selection import ConfigSource, Request, Selection, open_artifact_cache

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
    return _lower(request, is_owned=False)


@stage("lower")
def lower_owned(model: Model, backends: Request = None, *, verify: Any = None, **options: Any) -> CompiledProgram:
    """Lower as `to_backend` does, but use the memory of the model's weights, which nothing may change from now on."""
    request = LoweringRequest.of(model, backends, verify=verify, **options)
    return _lower(request, is_owned=True)


def _lower(request: LoweringRequest, *, is_owned: bool) -> CompiledProgram:
    """Lower a model, or take its program from the cache.

    Args:
        request: the arguments of `to_backend`.
        is_owned: nothing else changes the weights of the model, so the program needs no copies of them.
    """
    selection = request.selection
    artifacts = open_artifact_cache(selection, request.registry, request.cache)
    result = get_or_lower(request, artifacts, lambda: _run_stages_until_decomposed(request, artifacts, is_owned))
    for sentence in result.warnings:
        warn_user(sentence, UserWarning)
    _warn_of_portable(result.report, selection)
    specs = {name: tuple(ep.call_spec) for name, ep in request.sources.items()}
    debugger = partial(_debug, request.forget_model(result.repetition))
    return CompiledProgram(
        result.program, specs, result.report, request.registry, selection.kernels, plan=result.plan, debugger=debugger
    )


def _run_stages_until_decomposed(
    request: LoweringRequest, artifacts: ArtifactCache | None, is_owned: bool
) -> CompilationResult:
    """Run all stages, and again without preserving a compound operator that torch cannot decompose alone."""
    while True:
        try:
            return _run_stages(request, artifacts, is_owned)
        except CannotDecompose as error:  # torch may be able to do it while it converts the whole program
            if error.operator in request.decomposed:
                raise
            request = replace(request, decomposed=request.decomposed | {error.operator})


def _run_stages(request: LoweringRequest, artifacts: ArtifactCache | None, is_owned: bool) -> CompilationResult:
    """Run the stages: request -> quantized -> edge -> plan -> lowered -> verified -> program."""
    placed = request.place(artifacts)  # quantized, edge, plan
    strategy, registry, compiler = request.strategy, request.registry, placed.compiler

    inputs, selection = request.check.inputs, compiler.selection
    blame = partial(find_blamed, placed.exported, placed.floats, inputs, selection, registry)
    verifying = Verification.of(inputs, placed.exported, selection, registry, placed.floats, blame)
    program, lowered, measured = _compile_and_verify(compiler, verifying)
    strategy.require_applied(compiler.plans)

    program = with_load_options(program, partition_options(placed.options, program), registry)
    if not is_owned:
        program = with_own_weights(program, request.sources.values())
    lock = lock_of(request.sources, placed, registry)
    known = fingerprints(placed.exported)
    report = replace(compiler.report(), placements=placed.placements, fingerprints=known)
    report = with_device_copies(strategy.finish(report, lock), program, lowered)
    if verifying is not None and measured is not None:
        report = verifying.add_to_report(report, measured)
    program = program._replace(report=report.to_json(), load_rules=rules_to_json(compiler.load_rules()))
    return CompilationResult(
        program,
        report,
        SavedPlan.of(compiler.plans),
        tuple(compiler.warnings),
        Replay.of(lock),
        lowered,
        is_cacheable=strategy.is_cacheable and not compiler.artifacts.has_failed,
    )


def _compile_and_verify(
    compiler: Compiler, verifying: Verification | None
) -> tuple[Program, Sequence[LoweredProgram], MeasuredAccuracy | None]:
    """Compile, and again without the nodes that verification moves; return the measurements of the last program."""
    program, lowered = compiler.compile()
    while verifying is not None:
        with stage("verify"):
            measured = verifying.measure(program, lowered)
        moved = verifying.to_move(measured, lowered, compiler.artifacts)
        if not moved:
            return program, lowered, measured
        compiler.move(moved)
        program, lowered = compiler.compile()
    return program, lowered, None


def _debug(request: LoweringRequest, model: Model, inputs: Any = None, **options: Any) -> Any:
    """Call the debugger, which is another package, for a program that is lowered again; see `CompiledProgram.debug`."""
    search = load_developer_tool("debugger", "debug")
    sources = read_programs(model)
    request.strategy.require_model(sources, request.selection)
    return search(replace(request, sources=sources), inputs, **options)


def explain(
    model: Model, backends: Request = None, *, config: ConfigSource = None, kernels: KernelRequest | None = None
) -> Report:
    """Return the report of `to_backend` without compiling: the operators that each backend supports.

    Example::

        report = delegate.explain(exported, "xnnpack")
        print(report)

    Raises the errors of `to_backend`, except for the backends' compilers and for results that are less accurate
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
    request = LoweringRequest.of(model, backends, config, kernels=kernels)
    strategy, registry = request.strategy, request.registry
    exported, selection = quantize_programs(request.sources, request.selection, registry)
    selection = replace(selection, notes=(*selection.notes, *strategy.estimate_notes))
    compiler = Compiler(selection, kernels_of(registry, selection.kernels))
    compiler.costs = strategy.estimates(selection)
    compiler.add_methods(exported)
    compiler.plan()
    refusal = None
    try:
        Verification.of(None, exported, selection, registry, {})
        compiler.check()
    except DelegateError as error:
        refusal = error
    report = compiler.report()
    if selection.placement.policy == "measured":
        note = "nodes are placed by estimates here: the plans are measured when the model is lowered"
        report = replace(report, notes=(note, *report.notes))
    return report, refusal


def check_locked(
    model: Model, locked: PathLike, backends: Request = None, *, config: ConfigSource = None
) -> tuple[str, ...]:
    """Check that a lock can be applied, without compiling, and return notes on differences from its machine.

    Raises:
        PartitionError: the lock is of another model, or nodes cannot run where it places them; and as `explain`.
    """
    request = LoweringRequest.of(model, backends, config, placement=Replay(locked))
    placed = request.place(None)
    placed.compiler.plan()
    strategy = request.strategy
    assert isinstance(strategy, Replay)
    strategy.require_applied(placed.compiler.plans)
    return strategy.lock.notes(lock_of(request.sources, placed, request.registry))


def _warn_of_portable(report: Report, selection: Selection) -> None:
    """Warn about portable nodes if the policy asks for a warning.

    Control-flow nodes do not count, since the runtime runs them without kernels.
    """
    names = [n.name for n in report.nodes if n.backend == PORTABLE and n.op not in CONTROL_FLOW]
    if selection.on_portable == "warn" and names and selection.backends:
        warn_user(portable_message(names))
