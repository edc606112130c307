"""to_backend: the ahead-of-time path, from an exported program to a compiled one, on one screen."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, cast

from torch.export import ExportedProgram

from delegate.accuracy.verification import verification
from delegate.compiled import CompiledProgram
from delegate.edge.control_flow import CONTROL_FLOW
from delegate.edge.sources import Model, exported_programs
from delegate.edge.training import warn_of_training
from delegate.edge.undisturbed import undisturbed
from delegate.emit.device_copies import with_device_copies
from delegate.errors import DelegateError, PartitionError
from delegate.kernels.libraries import Wanted
from delegate.lowering.compiler import Compiler, portable_message
from delegate.lowering.kept import KeptPrograms, Made
from delegate.lowering.locking import as_locked, lock_of, lock_to_keep, of_lock, require_kept, with_lock
from delegate.lowering.measuring import RAY, measured_places, to_measure
from delegate.lowering.quantized import blamed, quantized
from delegate.partitioner.saved import SavedPlan
from delegate.placement.placing import MEASURED
from delegate.placement.plans import of_partitions
from delegate.placement.replaying import elsewhere_of
from delegate.plugins import PORTABLE
from delegate.registry import Registry, default_registry
from delegate.report import Report
from delegate.runtime.kernels import kernels_of
from delegate.runtime.load_options import with_load_options
from delegate.selection import ConfigSource, Request, Selection, kept_artifacts, select


@undisturbed()
def to_backend(
    model: Model,
    backends: Request = None,
    *,
    config: ConfigSource = None,
    kernels: Wanted | None = None,
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
    """Find for every operator which backend can run it, lower the partitions, and compile what is left.

    Args:
        model: an ExportedProgram, the path of a .pt2 file, or a dict of these by method name; with `example_inputs` a
            module, traced, scripted or eager, or the path of a TorchScript file.
        backends: a name, a `Partitioner`, or a list of these in order of preference; [] for portable kernels alone.
            If neither this nor a configuration names backends, all that are available on this machine are used.
        config: path of a YAML file, the same as a dict, or a `Config`.
        kernels: kernel libraries for what no backend takes, in order of preference; see `delegate.load`. A saved
            program does not hold them; torch's own ("aten") have no say in how it is compiled: it runs without them.
        example_inputs: positional arguments of a module, whose sizes the program will take; for dynamic sizes, export
            the module yourself.
        plan: where nodes run, as `CompiledProgram.plan` of another lowering said, or the path of one that was saved.
            Without it a node goes to the first backend that takes it.
        place: "measured": plans of each backend, and such as mix them, are run on this machine, and the best is taken;
            see docs/placement.md. Without it as `placement.policy` of the configuration says: by preference.
        verify: inputs to run the program on: a tuple of arguments, a dict of keyword arguments, or a list of these; for
            several methods a dict of these by method. The report says how far partitions and results are from torch's,
            and `verify` of the configuration what happens where that is too far; see docs/accuracy.md. Without it the
            example inputs of the export are taken where the configuration asks for anything.
        original: the float reference of `model`, in a form that `model` may have, e.g. the program that a quantized one
            was made of: the bounds of `verify` are then for results against this reference. A model that is quantized
            here has its own float program as reference.
        cache: whether compiled partitions are taken from the cache on disk and kept there; without it, as the
            configuration says, which is yes by default. See docs/compile-cache.md.
        progress: is told in a few words what is being done, while places are measured.
        lock: path of a lockfile to write: where nodes run, and what that was measured to cost. See docs/placement.md.
        locked: path of a lockfile to keep: nothing is measured, whatever else is said.
        bundle: path of a file to write for another machine: the candidates' programs and inputs, which
            `delegate measure` runs there. Nothing is measured here, and the first candidate's plan is taken meanwhile.
            With `costs` it has the plans that promise more by them.
        costs: path of what `delegate measure` found there, or a list, one for each bundle: places are chosen by that,
            and nothing is measured here.
        ray: address of a Ray cluster, as `ray.init` takes it: candidates are measured on those of its nodes that carry
            the backends as resources.

    Raises:
        ExportError: the model is none of these, or cannot be brought to core ATen.
        ConfigError: the configuration is wrong.
        KernelError: a kernel library cannot be used.
        BackendError: a backend that was asked for cannot be used.
        PartitionError: nodes stay portable and the policy forbids it, or the plan or the lock cannot be kept.
        LoweringError: an operator is left that no kernel runs.
        InputError: the inputs to verify do not fit.
        AccuracyError: results are farther off than the configuration allows, or cannot be compared.
    """
    registry = default_registry()
    elsewhere = {"a bundle": bundle, "costs": costs, RAY: ray}
    keeping = lock_to_keep(locked, lock, {"a plan": plan, **elsewhere})
    asked = elsewhere_of(bundle, costs)
    selection = select(backends, config, registry, kernels, () if keeping is None else keeping.plan.backends, cache)
    given = of_lock(exported_programs(model, example_inputs), keeping, locked, selection)
    saved = _saved_plan(plan) if keeping is None else keeping.plan
    placing = to_measure(place, selection, saved, elsewhere) if keeping is None else None
    kept = kept_artifacts(selection, registry, cache)
    has_say = any(x is not None for x in (verify, original, lock, *elsewhere.values()))
    programs = None if kept is None or has_say else KeptPrograms(kept, selection, registry)
    key = None if programs is None else programs.key(given, saved, keeping, placing)
    if programs is not None and key is not None and (found := programs.find(key)) is not None:
        for name, ep in given.items():
            warn_of_training(ep.graph, name)
        return _result(found, Report.from_json(found.program.report), given, selection, registry)
    exported, selection = quantized(given, selection, registry, verify, progress)
    exported = as_locked(exported, keeping, locked, selection, registry)
    source = exported_programs(original) if original is not None else given
    compiler = Compiler(selection, kernels_of(registry, selection.kernels), saved, kept)
    compiler.take(exported)
    outcome = None
    if placing is not None:
        outcome = measured_places(compiler, exported, source, verify, registry, cache, progress, asked, ray)
        compiler, exported = cast(Compiler, outcome.base.compiler), dict(outcome.base.exported)
        compiler.partitioners = outcome.plan.partitioners(compiler.partitioners, MEASURED)
        compiler.beside = outcome.plan
    floats = {name: ep for name, ep in source.items() if ep is not exported.get(name)}
    verifying = verification(verify, exported, selection, registry, floats, partial(blamed, exported, floats, verify))
    program, lowered = compiler.emitted()
    measured = None
    while verifying is not None:
        measured = verifying.measure(program, lowered)
        moved = verifying.to_move(measured, lowered, compiler.artifacts)
        if not moved:
            break
        compiler.move(moved)
        program, lowered = compiler.emitted()
    require_kept(saved, keeping, locked, compiler.plans)
    report, said = compiler.report(), outcome or keeping
    if said is not None:
        report = replace(report, placements=said.placements)
        program = with_load_options(program, of_partitions(said.options, program), registry)
    if lock is not None or keeping is not None:
        report = with_lock(report, lock_of(given, compiler, registry, said), keeping, lock)
    report = with_device_copies(report, program, lowered)
    report = report if measured is None else measured.stated(report)
    made = Made(program._replace(report=report.to_json()), SavedPlan.of(compiler.plans), tuple(compiler.told))
    if programs is not None and key is not None and not compiler.artifacts.has_failed:
        known = made if outcome is None else made.measured_earlier(report)
        programs.keep(key, known, lowered)
    return _result(made, report, exported, selection, registry)


def _saved_plan(plan: SavedPlan | str | os.PathLike[str] | None) -> SavedPlan | None:
    """The plan to apply; raises PartitionError where it is none."""
    saved = SavedPlan.load(plan) if isinstance(plan, str | os.PathLike) else plan
    if not isinstance(saved, SavedPlan | None):
        remedy = "give `program.plan` of another lowering, or the path of one that was saved"
        raise PartitionError(f"plan cannot be a {type(plan).__name__}", where="to_backend", remedy=remedy)
    return saved


def _result(
    made: Made, report: Report, exported: Mapping[str, ExportedProgram], selection: Selection, registry: Registry
) -> CompiledProgram:
    """What was made of exported programs, for the user, who is told what there is to say of it."""
    for sentence in made.told:
        warnings.warn(sentence, stacklevel=4)
    _warn_of_portable(report, selection)
    specs = {name: (ep.call_spec.in_spec, ep.call_spec.out_spec) for name, ep in exported.items()}
    return CompiledProgram(made.program, specs, report, registry, selection.kernels, plan=made.plan)


def explain(
    model: Model, backends: Request = None, *, config: ConfigSource = None, kernels: Wanted | None = None
) -> Report:
    """Return the report of `to_backend` without compiling: the operators that each backend supports.

    Raises the errors of `to_backend`, except those of the backends' compilers and of results that are less accurate
    than requested.
    """
    report, refusal = plan_and_check(model, backends, config=config, kernels=kernels)
    if refusal is not None:
        raise refusal
    return report


@undisturbed()
def plan_and_check(
    model: Model, backends: Request = None, *, config: ConfigSource = None, kernels: Wanted | None = None
) -> tuple[Report, DelegateError | None]:
    """Return the report of `explain`, and the error of `to_backend` if lowering refuses the planned program.

    Raises the errors that leave no plan to report.
    """
    registry = default_registry()
    selection = select(backends, config, registry, kernels)
    placing = to_measure(None, selection, None, {})
    exported, selection = quantized(exported_programs(model), selection, registry)
    compiler = Compiler(selection, kernels_of(registry, selection.kernels))
    compiler.take(exported)
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
    """What the policy says of nodes that stay portable, where it is no error.

    Control flow itself is no such node: the runtime runs it, and no kernel does.
    """
    names = [n.name for n in report.nodes if n.backend == PORTABLE and n.op not in CONTROL_FLOW]
    if selection.on_portable == "warn" and names and selection.backends:
        warnings.warn(portable_message(names), RuntimeWarning, stacklevel=5)
