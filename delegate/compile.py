"""to_backend: the ahead-of-time path, from an exported program to a compiled one, on one screen."""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from torch.export import ExportedProgram
from torch.fx import Node
from torch.nn import Module

from delegate.accuracy.verification import Moved, verification
from delegate.backends.aot import RegionRefused
from delegate.cache.folder import CHOICES
from delegate.cache.store import Store
from delegate.compiled import CompiledProgram
from delegate.config import Quantization
from delegate.edge.control_flow import CONTROL_FLOW
from delegate.edge.export import to_edge
from delegate.edge.identity import identify
from delegate.edge.passes.pipeline import optimize
from delegate.edge.program import EdgeProgram
from delegate.edge.sources import exported_programs
from delegate.edge.training import warn_of_training
from delegate.edge.undisturbed import undisturbed
from delegate.emit.device_copies import with_device_copies
from delegate.emit.emitting import emit
from delegate.emit.runnable import has_kernel
from delegate.errors import ConfigError, PartitionError
from delegate.kept import KeptPrograms, Made
from delegate.kernels.libraries import Wanted
from delegate.partitioner.candidates import Artifacts, Candidate, candidates, refused_parts
from delegate.partitioner.cut import LoweredDelegate, LoweredProgram, lower
from delegate.partitioner.forms import Forms
from delegate.partitioner.kept import KeptArtifacts
from delegate.partitioner.partitioner import Partitioner
from delegate.partitioner.plan import Plan
from delegate.partitioner.planning import plan as plan_graph
from delegate.partitioner.reporting import make_report
from delegate.partitioner.saved import SavedPlan
from delegate.placement.kept import MOST_BYTES
from delegate.placement.lock import Lock, fingerprints, machine, versions_of
from delegate.placement.placing import (
    MEASURED,
    Base,
    Circumstances,
    Outcome,
    named_candidates,
    placed,
    samples_to_place,
)
from delegate.plugins import PORTABLE, one_line
from delegate.program.model import Program
from delegate.registry import Registry, default_registry
from delegate.report import Report
from delegate.runtime.kernels import Kernels, kernels_of
from delegate.runtime.load_options import with_load_options
from delegate.selection import ConfigSource, Request, Selection, kept_artifacts, kept_folder, select
from delegate.verdict import Reason, Verdict, no

# Writes of a part that torch would decompose into work on the whole tensor; the kernels of these write the part alone.
_WRITES = frozenset({"aten.select_scatter.default"})
_PATIENCE = 20  # rounds of planning again without what a library refused, before its partitions are given up whole

Exported = ExportedProgram | str | os.PathLike[str]
Model = Exported | Mapping[str, Exported] | Module


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
        original: what `model` was made of, e.g. the program in float of a quantized one, in a form that `model` may
            have: the report compares results with its, too.
        cache: whether compiled partitions are taken from the cache on disk and kept there; without it, as the
            configuration says, which is yes by default. See docs/compile-cache.md.
        progress: is told in a few words what is being done, while places are measured.
        lock: path of a lockfile to write: where nodes run, and what that was measured to cost. See docs/placement.md.
        locked: path of a lockfile to keep: nothing is measured, whatever else is said.

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
    selection = select(backends, config, registry, kernels)
    given = exported_programs(model, example_inputs)
    keeping = None if locked is None else _keeping(locked, given, plan)
    saved = _saved_plan(plan) if keeping is None else keeping.plan
    is_measured = keeping is None and _is_measured(place, selection, saved)
    kept = kept_artifacts(selection, registry, cache)
    compiler = _Compiler(selection, kernels_of(registry, selection.kernels), saved, kept)
    measures = is_measured or any(x is not None for x in (verify, original, lock, locked))
    programs = None if kept is None or measures else KeptPrograms(kept, selection, registry)
    key = None if programs is None else programs.key(given, saved)
    if programs is not None and key is not None and (found := programs.find(key)) is not None:
        for name, ep in given.items():
            warn_of_training(ep.graph, name)
        return _result(found, Report.from_json(found.program.report), given, selection, registry)
    exported = _as_locked(_quantized(given, selection, registry), keeping, selection, registry)
    source = exported_programs(original) if original is not None else given
    compiler.take(exported)
    outcome = None
    if is_measured:
        outcome = _placed(compiler, exported, verify, registry, cache, progress)
        compiler, exported = cast(_Compiler, outcome.base.compiler), dict(outcome.base.exported)
        compiler.partitioners = outcome.plan.partitioners(compiler.partitioners, MEASURED)
    originals = {} if source is exported else source
    verifying = verification(verify, exported, selection, registry, originals)
    program, lowered = compiler.emitted()
    measured = None
    while verifying is not None:
        measured = verifying.measure(program, lowered)
        moved = verifying.to_move(measured, lowered, compiler.artifacts)
        if not moved:
            break
        compiler.move(moved)
        program, lowered = compiler.emitted()
    if saved is not None:
        saved.require_kept(compiler.plans)
    report, said = compiler.report(), outcome or keeping
    if said is not None:
        report = replace(report, placements=said.placements)
        program = with_load_options(program, _of_partitions(said.options, program), registry)
    if lock is not None or keeping is not None:
        report = _locked(report, _locking(given, compiler, registry, said), keeping, lock)
    report = with_device_copies(report, program, lowered)
    report = report if measured is None else measured.stated(report)
    made = Made(program._replace(report=report.to_json()), SavedPlan.of(compiler.plans), tuple(compiler.told))
    if programs is not None and key is not None and not compiler.artifacts.has_failed:
        programs.keep(key, made, lowered)
    return _result(made, report, exported, selection, registry)


def _saved_plan(plan: SavedPlan | str | os.PathLike[str] | None) -> SavedPlan | None:
    """The plan to apply; raises PartitionError where it is none."""
    saved = SavedPlan.load(plan) if isinstance(plan, str | os.PathLike) else plan
    if not isinstance(saved, SavedPlan | None):
        remedy = "give `program.plan` of another lowering, or the path of one that was saved"
        raise PartitionError(f"plan cannot be a {type(plan).__name__}", where="to_backend", remedy=remedy)
    return saved


def _keeping(locked: str | os.PathLike[str], exported: Mapping[str, ExportedProgram], plan: object) -> Lock:
    """The lock to keep; raises PartitionError where it is of another model."""
    if plan is not None:
        what = "a plan and a lock both say where nodes run"
        raise ConfigError(what, where="to_backend", remedy="give one of both")
    found = Lock.load(locked)
    found.require_model(exported)
    return found


def _as_locked(
    exported: dict[str, ExportedProgram], keeping: Lock | None, selection: Selection, registry: Registry
) -> dict[str, ExportedProgram]:
    """The programs, quantized as the candidate was that is locked."""
    if keeping is None or keeping.quantization is None:
        return exported
    try:
        section = Quantization.model_validate(keeping.quantization)
    except ValueError as error:
        raise PartitionError(f"the lock's quantization makes no sense: {one_line(error)}", where="locked") from error
    return configured()(exported, section, tuple(selection.backends), registry)


def _locked(report: Report, made: Lock, keeping: Lock | None, lock: str | os.PathLike[str] | None) -> Report:
    """The report, with what is another here than where the lock was made that is kept; the new one is written."""
    if lock is not None:
        made.save(lock)
    return report if keeping is None else replace(report, notes=(*report.notes, *keeping.notes(made)))


def _locking(
    given: Mapping[str, ExportedProgram], compiler: _Compiler, registry: Registry, said: Outcome | Lock | None
) -> Lock:
    """The lock of a program that was compiled, as measuring or another lock had it."""
    versions = versions_of(compiler.selection.backends, registry)
    made = Lock(fingerprints(given), machine(), versions, SavedPlan.of(compiler.plans))
    if said is None:
        return made
    quantization = said.quantization if isinstance(said, Lock) else said.base.quantization
    return replace(made, options=said.options, quantization=quantization, placements=said.placements)


def check_locked(
    model: Model,
    locked: str | os.PathLike[str],
    backends: Request = None,
    *,
    config: ConfigSource = None,
) -> tuple[str, ...]:
    """Whether a lock can be kept, without compiling; gives notes of what is another here than where it was measured.

    Raises:
        PartitionError: it is of another model, or nodes cannot run where it has them; and as `explain` does.
    """
    registry = default_registry()
    selection = select(backends, config, registry)
    given = exported_programs(model)
    keeping = _keeping(locked, given, None)
    exported = _as_locked(_quantized(given, selection, registry), keeping, selection, registry)
    compiler = _Compiler(selection, kernels_of(registry, selection.kernels), keeping.plan)
    compiler.take(exported)
    compiler.plan()
    keeping.plan.require_kept(compiler.plans)
    return keeping.notes(_locking(given, compiler, registry, None))


def _result(
    made: Made, report: Report, exported: Mapping[str, ExportedProgram], selection: Selection, registry: Registry
) -> CompiledProgram:
    """What was made of exported programs, for the user, who is told what there is to say of it."""
    for sentence in made.told:
        warnings.warn(sentence, stacklevel=4)
    _warn_of_portable(report, selection)
    specs = {name: (ep.call_spec.in_spec, ep.call_spec.out_spec) for name, ep in exported.items()}
    return CompiledProgram(made.program, specs, report, registry, selection.kernels, plan=made.plan)


@undisturbed()
def explain(
    model: Model, backends: Request = None, *, config: ConfigSource = None, kernels: Wanted | None = None
) -> Report:
    """The report of `to_backend` without lowering: what each backend says it can run. Raises as `to_backend` does."""
    registry = default_registry()
    selection = select(backends, config, registry, kernels)
    compiler = _Compiler(selection, kernels_of(registry, selection.kernels))
    compiler.take(_quantized(exported_programs(model), selection, registry))
    compiler.plan()
    report = compiler.report()
    if selection.placement.policy == "preference":
        return report
    return replace(report, notes=("places are by preference here: they are measured when it is lowered", *report.notes))


def _is_measured(place: str | None, selection: Selection, saved: SavedPlan | None) -> bool:
    """Whether places are to be measured; raises ConfigError where that cannot be."""
    if place not in (None, "preference", "measured"):
        raise ConfigError(f"{place!r} is no policy of placement", remedy='give "preference" or "measured"')
    if (place or selection.placement.policy) != "measured":
        return False
    if saved is not None:
        what = "places are to be measured, and a plan says where nodes run"
        raise ConfigError(what, where="to_backend", remedy="give one of both")
    if not selection.backends:
        raise ConfigError("places are to be measured, and there is no backend", remedy="name some")
    return True


def _placed(
    compiler: _Compiler,
    exported: Mapping[str, ExportedProgram],
    verify: Any,
    registry: Registry,
    cache: bool | None,
    progress: Callable[[str], None] | None,
) -> Outcome:
    """What measuring has chosen, for a compiler that has taken the methods."""
    selection = compiler.selection
    settings = selection.placement
    bases = [Base(compiler, exported, named_candidates(settings, tuple(selection.backends)))]
    for candidate in settings.candidates or ():
        if candidate.quantization is not None:
            section = candidate.quantization.model_copy(update={"backend": candidate.name})
            quantized = configured()(exported, section, tuple(selection.backends), registry)
            other = _Compiler(selection, compiler.kernels, None, compiler.kept)
            other.take(quantized)
            name = f"{candidate.name} {section.scheme or 'quantized'}"
            bases.append(Base(other, quantized, {name: candidate.name}, section.model_dump(mode="json")))
    kept = compiler.kept
    identities = {} if kept is None else {name: kept.identity(name) for name in selection.backends}
    folder = kept_folder(selection, cache)
    return placed(
        bases,
        Circumstances(
            settings=settings,
            samples=samples_to_place(settings, verify, exported),
            registry=registry,
            kernels=_names(selection.kernels),
            identities={name: text for name, text in identities.items() if text is not None},
            rules=repr(selection.rules),
            store=None if folder is None else Store(folder / CHOICES, MOST_BYTES),
            progress=progress or (lambda text: None),
        ),
    )


def _names(kernels: Wanted | None) -> list[str] | None:
    """The kernel libraries that another process can find: those that are named."""
    wanted = [kernels] if isinstance(kernels, str) else kernels
    return None if wanted is None else [k for k in wanted if isinstance(k, str)]


def _of_partitions(options: Mapping[str, Any], program: Program) -> dict[str, Any]:
    """The options of backends that a program has partitions of."""
    used = {spec.backend for spec in program.delegates}
    return {name: given for name, given in options.items() if name in used}


def _quantized(
    programs: dict[str, ExportedProgram], selection: Selection, registry: Registry
) -> dict[str, ExportedProgram]:
    """The programs, quantized where the configuration says so."""
    if selection.quantization is None:
        return programs
    return configured()(programs, selection.quantization, tuple(selection.backends), registry)


def configured() -> Callable[..., dict[str, ExportedProgram]]:
    """What carries out the `quantization` section; raises ConfigError where torchao is absent."""
    try:
        from delegate.quantization.configured import quantized_as_configured
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torchao":
            raise
        what = "quantization takes torchao, which is not installed"
        raise ConfigError(what, remedy="pip install 'delegate[quantization]'") from error
    return quantized_as_configured


@dataclass
class _Method:
    """A method on its way.

    Args:
        edge: its program, where operators are whole that anybody wants so.
        refusals: backend -> nodes that it does not take after all -> why.
        plan: where its nodes run.
        origins: name of a partition -> name of a node of its region -> the node of the plan that it comes of.
        candidates: of the plans so far, over the graph as it is now.
        lowered: with its partitions cut out; None where that is to be done, again.
    """

    edge: EdgeProgram
    refusals: dict[str, dict[Node, Verdict]] = field(default_factory=dict)
    plan: Plan | None = None
    origins: Mapping[str, Mapping[str, Node]] = field(default_factory=dict)
    candidates: dict[Hashable, Candidate] = field(default_factory=dict)
    lowered: LoweredProgram | None = None

    def refuse(self, backend: str, verdicts: Mapping[Node, Verdict]) -> None:
        """Have it planned again without these nodes on a backend."""
        self.refusals.setdefault(backend, {}).update(verdicts)
        self.lowered = None


@dataclass
class _Compiler:
    """Lowers the methods of one program; partition names are unique among them.

    A method goes from its edge program to a plan, from that to candidates, from these to artifacts; then the partitions
    are cut out.
    """

    selection: Selection
    kernels: Kernels
    saved: SavedPlan | None = None
    kept: KeptArtifacts | None = None
    methods: dict[str, _Method] = field(default_factory=dict)
    notes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)
    artifacts: Artifacts = field(init=False)
    partitioners: Sequence[Partitioner] = field(init=False)

    def __post_init__(self) -> None:
        given = self.selection.partitioners
        self.partitioners = given if self.saved is None else self.saved.partitioners(given)
        self.artifacts = Artifacts({name: b.preprocess for name, b in self.selection.backends.items()}, self.kept)

    @property
    def preserve_ops(self) -> frozenset[str]:
        """The compound operators that a backend, or a kernel, wants whole. Each is asked in the form that suits it.

        A saved plan says which were when it was made: its nodes are those.
        """
        if self.saved is not None and self.saved.whole is not None:
            return frozenset((*self.saved.whole, *_WRITES))
        wanted = (op for c in self.selection.capabilities.values() for op in c.preserve_ops)
        return frozenset((*wanted, *self.kernels.torch_free.whole_ops, *_WRITES))

    @property
    def plans(self) -> list[Plan]:
        """The plan of every method that has one."""
        return [m.plan for m in self.methods.values() if m.plan is not None]

    def take(self, exported: Mapping[str, ExportedProgram]) -> None:
        """Begin with these methods: bring them to edge dialect."""
        for name, ep in exported.items():
            self.methods[name] = _Method(identify(optimize(to_edge(ep, name=name, preserve_ops=self.preserve_ops))))

    def another(self, method: str, partitioners: Sequence[Partitioner], *, keep_all: bool = False) -> _Compiler:
        """One for a method alone, as it is here, with other partitioners; each partition is compiled once for both.

        Args:
            method: its name.
            partitioners: in order of preference.
            keep_all: partitions stand however small they are.
        """
        rules = self.selection.rules
        rules = replace(rules, min_partition_size=0) if keep_all else rules
        made = _Compiler(replace(self.selection, rules=rules), self.kernels, None, self.kept)
        made.methods[method] = _Method(self.methods[method].edge)
        made.partitioners, made.artifacts = tuple(partitioners), self.artifacts
        return made

    def plan(self) -> None:
        """Plan all methods."""
        for method in self.methods.values():
            self._plan(method)

    def emitted(self) -> tuple[Program, list[LoweredProgram]]:
        """The program, and its methods, those lowered that are not yet.

        Raises:
            PartitionError: nodes stay portable, and the policy forbids that.
        """
        lowered = [method.lowered or self._lower(method) for method in self.methods.values()]
        keep, policy = self.selection.fallback.keep, self.selection.fallback.policy
        self.told = []
        tell = self.told.append
        return emit(lowered, self.kernels, keep_fallbacks=keep, on_fallback=policy, tell=tell), lowered

    def move(self, moved: Mapping[str, Moved]) -> None:
        """Have nodes of partitions run elsewhere, when the program is next emitted."""
        for method in self.methods.values():
            assert method.lowered is not None
            for name, delegate in method.lowered.delegates.items():
                if name in moved:
                    verdict, origins = no(Reason.INACCURATE, moved[name].why), method.origins[name]
                    method.refuse(delegate.backend, {origins[n]: verdict for n in moved[name].nodes if n in origins})

    def report(self) -> Report:
        """Who runs what, and why not elsewhere."""
        return make_report(self.plans, self.notes, self.selection.notes)

    def _lower(self, method: _Method) -> LoweredProgram:
        """Plan a method and compile its partitions, planning again without the nodes that a library turns down."""
        for turn in itertools.count():
            made = self._plan(method)
            _refuse_portable(made, self.selection)
            found = candidates(made, self.selection.capabilities, method.candidates)
            delegates, refused = self._compile(found, whole=turn >= _PATIENCE)
            if not refused:
                break
            for backend, reasons in refused.items():
                method.refuse(backend, {node: no(Reason.REFUSED, why) for node, why in reasons.items()})
        self.notes.update((name, d.result.notes) for name, d in delegates.items())
        method.origins = {c.partition.name: c.origins for c in found}
        method.lowered = lower(made, delegates)
        return method.lowered

    def _plan(self, method: _Method) -> Plan:
        """The plan of a method. Compound operators that nobody runs, whole or in parts, are taken apart first."""
        forms = Forms(self.preserve_ops)
        while True:
            made = self._planned(method)
            apart = [node for part in made.walk() for node in part.to_take_apart]
            if not apart:
                method.plan = made
                return made
            method.edge = identify(optimize(forms.apart(method.edge, apart)))
            method.candidates.clear()

    def _planned(self, method: _Method) -> Plan:
        made = self._planned_alone(method)
        return made if self.saved is None else self.saved.grouped(made)

    def _planned_alone(self, method: _Method) -> Plan:
        others = (m.plan for m in self.methods.values() if m is not method and m.plan is not None)
        return plan_graph(
            method.edge,
            self.partitioners,
            self.selection.capabilities,
            self.selection.rules,
            refusals=method.refusals,
            taken=[p.name for plan in others for part in plan.walk() for p in part.partitions],
            has_kernel=lambda node: has_kernel(node, self.kernels),
        )

    def _compile(
        self, found: list[Candidate], *, whole: bool
    ) -> tuple[dict[str, LoweredDelegate], dict[str, dict[Node, str]]]:
        """The compiled partitions by name, and what backends refused: backend -> node -> reason.

        Args:
            found: the candidates of a plan.
            whole: a partition of which a node is refused is given up with all its nodes.
        """
        delegates: dict[str, LoweredDelegate] = {}
        refused: dict[str, dict[Node, str]] = {}
        for candidate in found:
            partition = candidate.partition
            reasons = refused_parts(candidate, self.selection.capabilities[partition.backend])
            if not reasons:
                try:
                    delegates[partition.name] = self.artifacts.delegate(candidate)
                    continue
                except RegionRefused as refusal:
                    reasons = candidate.of_the_plan(refusal.reasons)
                    if whole or not reasons:
                        reasons = dict.fromkeys(partition.nodes, str(refusal)) | reasons
            refused.setdefault(partition.backend, {}).update(reasons)
        return delegates, refused


def _refuse_portable(made: Plan, selection: Selection) -> None:
    """Before anything is compiled: what the policy says of nodes that stay portable though backends were asked for."""
    nodes = [n for part in made.walk() for n in part.nodes if n.backend is None and n.op not in CONTROL_FLOW]
    if selection.on_portable == "error" and nodes and selection.backends:
        remedy = "`delegate explain` says why; or set policy.portable to allow"
        raise PartitionError(_portable_message([n.node.name for n in nodes]), where=made.program.name, remedy=remedy)


def _warn_of_portable(report: Report, selection: Selection) -> None:
    """What the policy says of nodes that stay portable, where it is no error.

    Control flow itself is no such node: the runtime runs it, and no kernel does.
    """
    names = [n.name for n in report.nodes if n.backend == PORTABLE and n.op not in CONTROL_FLOW]
    if selection.on_portable == "warn" and names and selection.backends:
        warnings.warn(_portable_message(names), RuntimeWarning, stacklevel=5)


def _portable_message(names: list[str]) -> str:
    return f"{len(names)} nodes stay on portable kernels: {', '.join(names[:3])}{' ...' if len(names) > 3 else ''}"
