"""The strategies that place nodes: by preference, by a saved plan, by a lockfile, by measurement.

A strategy is made from the argument `placement` of `to_backend` and the configuration. Its methods are called in the
order of the file, each once. The lockfile to apply is read when the strategy is created. The lockfile to write is
written at the end.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree
from pydantic import ValidationError
from torch._subclasses import FakeTensor
from torch.export import ExportedProgram

from delegate.cache.aot.placements import open_choices
from delegate.cache.runtime.environment import machine
from delegate.config import PlacementSection, Quantization
from delegate.config.source import sentences
from delegate.costs.estimates import Estimates
from delegate.costs.kinds import FUNCTION, PERMUTE
from delegate.costs.profile import PlaceRates, Profile, Rate, shipped
from delegate.edge.keys import NotCacheable
from delegate.edge.sources import Model, exported_programs
from delegate.errors import ConfigError, DelegateError, PartitionError
from delegate.files import require_file
from delegate.kernels.libraries import KernelRequest
from delegate.kernels.selection import kernels_of
from delegate.lowering.compiler import Compiler
from delegate.lowering.machine import profile_of_this_machine
from delegate.lowering.quantized import configured, quantized
from delegate.lowering.race import race
from delegate.lowering.schemes import SchemePlanner
from delegate.measured import Placement
from delegate.measurements import BUNDLE, CLUSTER
from delegate.partitioner.plan import Plan
from delegate.partitioner.saved import BY_THE_PLAN, SavedPlan
from delegate.partitioner.search import cheapest
from delegate.placement.lock import AGAIN, Lock, fingerprint_methods, map_sources, versions_of
from delegate.placement.plans import Options, Progress
from delegate.placement.policy import (
    ByPreference,
    Estimated,
    Measured,
    PathLike,
    PlacementPolicy,
    PlacementRequest,
    Remote,
    Replay,
    SupportTable,
)
from delegate.placement.program_placement import (
    MEASURED,
    BaseProgram,
    PlacementContext,
    choose_placements,
    unquantized_candidates,
)
from delegate.placement.reference_comparator import samples_to_place
from delegate.placement.runtime.remote import Cluster, OpenCluster, OpenRemotePlacement, RemotePlacement
from delegate.plugins import PORTABLE
from delegate.probing.process import UNNAMED_LIMIT
from delegate.program.model import Program
from delegate.registry import Registry, default_registry
from delegate.report import Report
from delegate.selection import ConfigSource, Request, Selection, configured_cache_folder, select
from delegate.user_warnings import warn_user

_QUANTIZED = 0.3  # the share of the budget after which no other candidate is quantized
_WHERE = "placement"


@dataclass(frozen=True, slots=True)
class Placed:
    """A program with its placement, to compile.

    Args:
        compiler: has the methods, and the plan to apply.
        exported: the methods; a candidate of measured placement may be quantized.
        placements: the measurements, by method.
        options: of `delegate.load`, by name of a backend.
        quantization: method -> the configuration section of its chosen candidate, for the quantized methods.
    """

    compiler: Compiler
    exported: Mapping[str, ExportedProgram]
    placements: tuple[Placement, ...] = ()
    options: Options = field(default_factory=dict)
    quantization: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlacementInputs:
    """The arguments of `to_backend` that measured placement needs.

    Args:
        references: the float references of methods that are other programs, e.g. quantized ones.
        verify: the inputs to verify on.
        cache: use the cache; None: as configured.
        progress: called with short progress texts.
    """

    references: Mapping[str, ExportedProgram]
    verify: Any
    cache: bool | None
    progress: Callable[[str], None] | None


class Strategy:
    """Place by preference: the first backend that supports a node runs it.

    Args:
        lockfile: path of a lockfile to write.
        plan: the plan to apply, if any.
    """

    backends: Collection[str] = ()  # to select although their device is absent here
    is_cacheable = True  # the cache of whole programs may have its result
    can_quantize = False  # it chooses the scheme of a quantization with scheme: auto

    def __init__(self, lockfile: str | os.PathLike[str] | None = None, plan: SavedPlan | None = None) -> None:
        if lockfile is not None:
            require_file(lockfile, "the lockfile", streams=True)
            self.is_cacheable = False
        self._lockfile, self.plan = lockfile, plan

    def require_model(self, exported: Mapping[str, ExportedProgram], selection: Selection) -> None:
        """Raise PartitionError if the strategy is for another model or other backends."""

    def calibrate(self, selection: Selection, cache: bool | None = None, progress: Progress | None = None) -> None:
        """Measure what plans depend on, if that is not in the cache.

        Args:
            selection: the backends.
            cache: use the cache; None: as configured.
            progress: called with short progress texts.
        """

    def cache_key(self, exported: Mapping[str, ExportedProgram]) -> Hashable:
        """Return the dependencies of a program on the strategy; raises NotCacheable if nobody can compare them."""
        return None if self.plan is None else self.plan.to_json()

    def quantize(
        self,
        sources: dict[str, ExportedProgram],
        selection: Selection,
        registry: Registry,
        verify: Any = None,
        progress: Callable[[str], None] | None = None,
    ) -> tuple[dict[str, ExportedProgram], Selection]:
        """Return the methods, quantized if the configuration or the strategy requires it; see `quantized`."""
        return quantized(sources, selection, registry, verify, progress)

    def costs(self, on_portable: str) -> Estimates | None:
        """Return the estimates that plans are chosen by; None if plans are by preference, or saved.

        Args:
            on_portable: the policy for nodes that no backend runs; see `Selection`.
        """
        return None

    def place(self, compiler: Compiler, exported: Mapping[str, ExportedProgram], inputs: PlacementInputs) -> Placed:
        """Return the compiler with the plan to apply."""
        return Placed(compiler, exported)

    def require_applied(self, plans: Sequence[Plan]) -> None:
        """Raise PartitionError if plans differ from the one to apply."""
        if self.plan is not None:
            self.plan.require_applied(plans)

    def finish(self, report: Report, lock: Lock) -> Report:
        """Write the lockfile that is requested, and return the report with notes of the strategy."""
        if self._lockfile is not None:
            lock.save(self._lockfile)
        return report


_NEAR = 5.0  # a plan whose estimate is this many times the least may be the fastest: each is 2.2 times off, typically
_MOST_RACING = 5  # plans
_LEAST_RACE = 0.1  # seconds that compiled plans run for, although their compilation took the time
RACE_SHARE = 0.5  # of the time that lowering took
_FORBIDDEN = PlaceRates(Rate(0.0), {FUNCTION: Rate(1.0), PERMUTE: Rate(1.0)}, {})  # of a place to avoid at any cost


class EstimatedStrategy(Strategy):
    """Place by estimated costs; a short race decides between plans whose estimates are close.

    Args:
        race: most seconds of the race; 0 for none.
        machine: path of the profile of a machine; None: this machine's own.
        lockfile: path of a lockfile to write.
    """

    def __init__(self, race: float, machine: PathLike | None, lockfile: PathLike | None) -> None:
        super().__init__(lockfile)
        self._race, self._notes, self._begun = race, tuple[str, ...](), time.monotonic()
        self._profile = None if machine is None else Profile.load(machine)

    def calibrate(self, selection: Selection, cache: bool | None = None, progress: Progress | None = None) -> None:
        if self._profile is None and selection.backends:
            self._profile, self._notes = profile_of_this_machine(
                selection.backends, _names(selection.kernels), selection.cache, cache, progress or (lambda text: None)
            )
        self._begun = time.monotonic()

    def cache_key(self, exported: Mapping[str, ExportedProgram]) -> Hashable:
        return ("estimated", self._race, None if self._profile is None else self._profile.to_json())

    def costs(self, on_portable: str) -> Estimates:
        profile = self._profile or shipped()
        return Estimates(profile.with_place(PORTABLE, _FORBIDDEN) if on_portable == "error" else profile)

    def place(self, compiler: Compiler, exported: Mapping[str, ExportedProgram], inputs: PlacementInputs) -> Placed:
        compiler.costs = self.costs(compiler.selection.on_portable)
        compiler.lower()
        notes: list[str] = []
        for plan in compiler.plans:
            name, seconds = plan.program.name, plan.total_seconds()
            if not seconds:
                continue
            ranked = cheapest(seconds)
            near = [way for way in ranked if seconds[way] <= _NEAR * seconds[ranked[0]]][:_MOST_RACING]
            budget = min(self._race, RACE_SHARE * (time.monotonic() - self._begun))
            raced = self._run(compiler, name, near, exported[name], budget) if len(near) > 1 and budget > 0 else {}
            if raced:
                compiler.choose_way(name, next(iter(raced)))
                times = ", ".join(f"{way} {taken * 1e3:.3g} ms" for way, taken in raced.items())
                notes.append(f"{name}: the estimates are close, so the plans ran in turns: {times}")
        compiler.selection = replace(compiler.selection, notes=(*compiler.selection.notes, *self._notes, *notes))
        return Placed(compiler, exported)

    def _run(
        self, compiler: Compiler, method: str, near: Sequence[str], ep: ExportedProgram, budget: float
    ) -> dict[str, float]:
        """Return the measured seconds of near ways and of torch itself, the fastest way first.

        Empty if there are no inputs, or if two of the ways did not run.
        """
        leaves = pytree.tree_leaves(ep.example_inputs)
        if ep.example_inputs is None or any(isinstance(leaf, FakeTensor) for leaf in leaves):
            return {}
        end = time.monotonic() + budget
        programs: dict[str, Program] = {}
        seen: set[frozenset[tuple[tuple[str, str], str]]] = set()
        for way in sorted(near, key=lambda way: way != PORTABLE):  # kernels alone need no compiler
            if time.monotonic() > end:
                break
            fork = compiler.fork_for_way(method, way)
            with contextlib.suppress(DelegateError):
                program, _ = fork.compile()
                places = frozenset(SavedPlan.of(fork.plans).places().items())
                if places not in seen:
                    programs[way] = program
                    seen.add(places)
        if len(programs) < 2:
            return {}
        left = max(end - time.monotonic(), min(_LEAST_RACE, budget))
        times = race(programs, method, ep, default_registry(), compiler.selection.kernels, left)
        return times if len(times.keys() & programs.keys()) > 1 else {}


class LockedStrategy(Strategy):
    """Place, and quantize, as in a lock.

    Args:
        lock: the lock to apply.
        where: the origin of the lock, for messages.
        lockfile: path of a lockfile to write.
    """

    can_quantize = True

    def __init__(self, lock: Lock, where: str, lockfile: str | os.PathLike[str] | None = None) -> None:
        self._lock, self._where = lock, where
        super().__init__(lockfile, self._lock.plan)
        self.backends = self._lock.plan.backends

    def require_model(self, exported: Mapping[str, ExportedProgram], selection: Selection) -> None:
        self._lock.require_model(exported, self._where)
        self._lock.require_backends(selection.backends, self._where)

    def cache_key(self, exported: Mapping[str, ExportedProgram]) -> Hashable:
        if self._lock.quantization or self._lock.configured:
            raise NotCacheable
        return self._lock.to_yaml()

    def quantize(
        self,
        sources: dict[str, ExportedProgram],
        selection: Selection,
        registry: Registry,
        verify: Any = None,
        progress: Callable[[str], None] | None = None,
    ) -> tuple[dict[str, ExportedProgram], Selection]:
        given = selection.quantization
        sections = {name: self._section(values, given) for name, values in self._lock.quantization.items()}
        if self._lock.configured is None:
            exported, selection = quantized(sources, selection, registry, verify, progress)
        else:  # bounds have already kept the noisiest layers in float
            selection = replace(selection, quantization=self._section(self._lock.configured, given))
            exported, selection = quantized(sources, selection, registry, None, progress, bounded=False)
        methods = dict(exported)
        for name, section in sections.items():
            methods |= configured()(exported, section, tuple(selection.backends), registry, methods=(name,))
        return methods, selection

    def _section(self, values: Mapping[str, Any], given: Quantization | None) -> Quantization:
        """Return a section of the lock, which may lack the folders of its calibration data.

        That is looked for in this folder, beside the lockfile, and where the configuration of the request has it.

        Args:
            values: the section.
            given: the section of the configuration; None if it has none.
        """
        data = None if given is None else given.calibration
        names = {Path(source).name: source for source in (data.values() if isinstance(data, Mapping) else [data or ""])}

        def find(source: str) -> str:
            beside = os.path.join(os.path.dirname(self._where), source)
            found = next((path for path in (source, beside) if os.path.exists(path)), None)
            return found or names.get(source, source)

        try:
            section = Quantization.model_validate(values)
            return section.model_copy(update={"calibration": map_sources(find, section.calibration)})
        except ValidationError as error:
            what = f"the quantization in the lock is invalid: {sentences(error, Quantization)}"
            raise PartitionError(what, where=self._where, remedy=AGAIN) from error

    def place(self, compiler: Compiler, exported: Mapping[str, ExportedProgram], inputs: PlacementInputs) -> Placed:
        if self._lock.placements:
            compiler.apply(self._lock.plan, MEASURED)
        return Placed(compiler, exported, self._lock.placements, self._lock.options, self._lock.quantization)

    def require_applied(self, plans: Sequence[Plan]) -> None:
        self._lock.require_applied(plans, self._where)

    def finish(self, report: Report, lock: Lock) -> Report:
        report = super().finish(report, lock)
        return replace(report, notes=(*report.notes, *self.notes(lock)))

    def notes(self, here: Lock) -> tuple[str, ...]:
        """Return the differences between the machine of the lockfile and this one."""
        return self._lock.notes(here)


class _ByPolicy(Strategy):
    """Place as a policy of the user chooses."""

    is_cacheable = False  # nobody can compare the code of a policy

    def __init__(self, policy: PlacementPolicy) -> None:
        super().__init__()
        self._policy = policy

    def place(self, compiler: Compiler, exported: Mapping[str, ExportedProgram], inputs: PlacementInputs) -> Placed:
        table = SupportTable.of(compiler.plan_each_backend_first())
        plan = self._policy.place(table)
        if not isinstance(plan, SavedPlan):
            what = f"{type(self._policy).__name__}.place returned a {type(plan).__name__}"
            raise ConfigError(what, where=_WHERE, remedy="return a delegate.SavedPlan, e.g. of `table.plan`")
        compiler.apply(plan, BY_THE_PLAN)
        table.require_supported(plan)
        return Placed(compiler, exported)


class _Measuring(Strategy):
    """Place by measurement, here, on a cluster, or by measurements of another machine.

    Args:
        settings: of the configuration, with the changes of the request.
        remote: the measurements of another machine, if these are requested.
        cluster: the cluster that measures, if it is requested.
    """

    can_quantize = True

    def __init__(
        self,
        settings: PlacementSection,
        lockfile: str | os.PathLike[str] | None,
        remote: RemotePlacement | None = None,
        cluster: Cluster | None = None,
    ) -> None:
        super().__init__(lockfile)
        self._settings, self._remote, self._cluster = settings, remote, cluster
        if remote is not None or cluster is not None:
            self.is_cacheable = False

    def require_model(self, exported: Mapping[str, ExportedProgram], selection: Selection) -> None:
        if not selection.backends:
            raise ConfigError("placements cannot be measured without a backend", where=_WHERE, remedy="name some")

    def cache_key(self, exported: Mapping[str, ExportedProgram]) -> Hashable:
        if self._settings.accuracy is not None:
            raise NotCacheable
        leaves = [
            (leaf.dtype, leaf.shape) if isinstance(leaf, torch.Tensor) else leaf
            for ep in exported.values()
            for leaf in pytree.tree_leaves(ep.example_inputs)
        ]
        return (repr(self._settings), repr(leaves))

    def place(self, compiler: Compiler, exported: Mapping[str, ExportedProgram], inputs: PlacementInputs) -> Placed:
        begun, settings = time.monotonic(), self._settings
        samples = samples_to_place(settings, inputs.verify, exported, compiler)
        progress = inputs.progress or (lambda text: None)
        registry, backends = default_registry(), tuple(compiler.selection.backends)
        is_auto = compiler.selection.quantization is not None and compiler.selection.quantization.is_auto
        planners = {
            name: SchemePlanner(name, settings, compiler, exported, samples, registry, progress) for name in exported
        }
        bases = [BaseProgram(compiler, exported, unquantized_candidates(settings, backends))]
        for number, planner in enumerate(planners.values(), 1):
            end = begun + _QUANTIZED * settings.budget * number / len(planners)
            bases += planner.bases(end if self._remote is None else math.inf)
        begun = max(begun, time.monotonic() - _QUANTIZED * settings.budget)  # the rest of the budget is for measuring
        selection, artifacts = compiler.selection, compiler.artifact_cache
        identities = {} if artifacts is None else {name: artifacts.identity(name) for name in selection.backends}
        folder = configured_cache_folder(selection.cache, inputs.cache)
        is_here = self._remote is None and self._cluster is None
        with contextlib.ExitStack() as stack:
            context = PlacementContext(
                settings=settings,
                samples=samples,
                floats=inputs.references,
                registry=registry,
                kernels=_names(selection.kernels),
                identities={name: text for name, text in identities.items() if text is not None},
                limits={n: UNNAMED_LIMIT for n, b in selection.backends.items() if b.is_unnamed_plugin},
                rules=repr(selection.rules),
                store=open_choices(folder) if is_here else None,
                progress=progress,
                begun=begun,
                not_tried={name: planner.not_tried for name, planner in planners.items()},
                mixes=(lambda name, *chosen: planners[name].mixes(*chosen)) if is_auto else None,
                remote=self._remote,
                cluster=None if self._cluster is None else stack.enter_context(self._cluster),
            )
            outcome = choose_placements(bases, context)
        if self._remote is not None:
            self._remote.finish()
        chosen = compiler.fork_with({name: base.compiler.methods[name].edge for name, base in outcome.bases.items()})
        notes = dict.fromkeys(note for base in outcome.bases.values() for note in base.notes)
        chosen.selection = replace(chosen.selection, notes=(*chosen.selection.notes, *notes))
        chosen.apply(outcome.plan, MEASURED)
        records = [record for planner in planners.values() for record in planner.records]
        records += [record for base in outcome.bases.values() for record in base.records]
        for message, category in dict.fromkeys((str(record.message), record.category) for record in records):
            warn_user(message, category)
        programs = {name: base.exported[name] for name, base in outcome.bases.items()}
        sections = {name: base.quantization for name, base in outcome.bases.items() if base.quantization is not None}
        placements = tuple(placement.rounded() for placement in outcome.placements)
        return Placed(chosen, programs, placements, outcome.options, sections)


def _names(kernels: KernelRequest | None) -> list[str] | None:
    """Return the names of the kernel libraries; another process can load only those that have a name."""
    requested = [kernels] if isinstance(kernels, str) else kernels
    return None if requested is None else [k for k in requested if isinstance(k, str)]


def create_strategy(request: PlacementRequest | None, settings: PlacementSection, *, is_named: bool) -> Strategy:
    """Return the strategy of a request.

    Args:
        request: the argument of the user; None: as configured.
        settings: the section `placement` of the configuration.
        is_named: the user has named the backends, so that they are in an order of preference.

    Raises:
        ConfigError: the request is no placement, its values are invalid, or a package that it needs is not here.
        PartitionError: a lockfile or costs cannot be read, or a lockfile cannot be written.
        ProgramError: a bundle cannot be written.
    """
    if request is None:
        policy = settings.policy or ("preference" if is_named else "estimated")
        defaults: dict[str, PlacementRequest] = {"measured": Measured(), "preference": ByPreference()}
        request = defaults.get(policy, Estimated())
    match request:
        case SavedPlan() | ByPreference():
            return Strategy(plan=request) if isinstance(request, SavedPlan) else Strategy(request.lockfile)
        case PlacementPolicy():
            return _ByPolicy(request)
        case Estimated(race_seconds, machine_profile, lockfile):
            return EstimatedStrategy(race_seconds, machine_profile, lockfile)
        case Replay(locked, lockfile):
            return LockedStrategy(Lock.load(locked), str(locked), lockfile)
        case Measured(budget, objective, lockfile, cluster):
            opened = None if cluster is None else _open_cluster(cluster)
            return _Measuring(_changed(settings, budget, objective), lockfile, cluster=opened)
        case Remote(bundle, costs, objective, lockfile):
            remote = _open_remote_placement(bundle, costs)
            return _Measuring(_changed(settings, None, objective), lockfile, remote)
    remedy = "give delegate.Measured(), .Remote(bundle, costs), .Replay(lockfile), .ByPreference(), or a SavedPlan"
    raise ConfigError(f"placement cannot be a {type(request).__name__}", where="to_backend", remedy=remedy)


def _open_cluster(address: str) -> Cluster:
    """Return the cluster of an address, without a connection yet."""
    open_cluster: OpenCluster = default_registry().measurements.part(CLUSTER, "runtime")
    return open_cluster(address)


def _open_remote_placement(bundle: PathLike | None, costs: PathLike | Sequence[PathLike]) -> RemotePlacement:
    paths = [costs] if isinstance(costs, str | os.PathLike) else list(costs or ())
    if bundle is None and not paths:
        raise ConfigError("Remote has neither a bundle nor costs", remedy="give one", where=_WHERE)
    open_placement: OpenRemotePlacement = default_registry().measurements.part(BUNDLE, "aot")
    return open_placement(bundle, paths)


def _changed(settings: PlacementSection, budget: float | None, objective: str | None) -> PlacementSection:
    """Return the settings with the values of a request; raises ConfigError if these are invalid."""
    changes = {k: v for k, v in {"budget": budget, "objective": objective}.items() if v is not None}
    try:
        checked = PlacementSection.model_validate(changes)
    except ValidationError as error:
        what = f"the placement is invalid: {sentences(error, PlacementSection)}"
        raise ConfigError(what, where=_WHERE) from error
    return settings.model_copy(update={name: getattr(checked, name) for name in changes})


def lock_of(sources: Mapping[str, ExportedProgram], placed: Placed, registry: Registry) -> Lock:
    """Return the lock of a compiled program."""
    plan, section = SavedPlan.of(placed.compiler.plans), placed.compiler.selection.quantization
    return Lock(
        fingerprint_methods(sources),
        machine(),
        versions_of(placed.compiler.selection.backends, registry),
        plan,
        {name: options for name, options in placed.options.items() if name in plan.backends},
        placed.quantization,
        None if section is None or section.is_auto else section.model_dump(mode="json"),
        placed.placements,
    )


def check_locked(
    model: Model,
    locked: str | os.PathLike[str],
    backends: Request = None,
    *,
    config: ConfigSource = None,
) -> tuple[str, ...]:
    """Check that a lock can be applied, without compiling, and return notes on differences from its machine.

    Raises:
        PartitionError: the lock is of another model, or nodes cannot run where it places them; and as `explain`.
    """
    registry, strategy = default_registry(), LockedStrategy(Lock.load(locked), str(locked))
    selection = select(backends, config, registry, compiled_for=strategy.backends)
    sources = exported_programs(model)
    strategy.require_model(sources, selection)
    exported, selection = strategy.quantize(sources, selection, registry)
    compiler = Compiler(selection, kernels_of(registry, selection.kernels), strategy.plan)
    compiler.add_methods(exported)
    compiler.plan()
    strategy.require_applied(compiler.plans)
    return strategy.notes(lock_of(sources, Placed(compiler, exported), registry))
