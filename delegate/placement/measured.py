"""Placement by measurement: here, on a cluster, or by measurements of another machine."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import math
import os
import tempfile
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch.export import ExportedProgram

from delegate.accuracy.bounds import Verify
from delegate.accuracy.samples import Sample
from delegate.cache.aot.placements import PlacementCache, choice_key, open_choices
from delegate.cache.runtime.store import Store
from delegate.common.user_warnings import warn_user
from delegate.config import PlacementSection
from delegate.config.source import sentences
from delegate.costs.profile import read_shipped
from delegate.edge.graphs import is_random
from delegate.edge.keys import NotCacheable, key_of_exported
from delegate.edge.torch_private import pytree
from delegate.errors import BackendError, ConfigError
from delegate.lowering.compiler import Compiler
from delegate.partitioner.saved import SavedPlan
from delegate.placement.estimated import CostStrategy
from delegate.placement.placer import Placer
from delegate.placement.plans import (
    Candidate,
    ChosenPlan,
    OpenRemotePlacement,
    RemotePlacement,
    Task,
    float_candidates,
    make_trial,
)
from delegate.placement.reference_comparator import ReferenceComparator, arrays_of, samples_to_place
from delegate.placement.runtime.trials import (
    Cluster,
    OpenCluster,
    ProcessRunnerFactory,
    RunnerFactory,
    TrialFailed,
    answer_timeout,
    seconds_until,
)
from delegate.placement.schemes import SchemePlanner
from delegate.placement.strategy import MEASURED, Objective, PathLike, Placed, Progress
from delegate.plugins import MEASUREMENTS, PORTABLE, load_extension
from delegate.processes.limits import UNNAMED_LIMIT
from delegate.registry import default_registry
from delegate.selection import Selection, cache_folder_of, kernel_names

_QUANTIZED = 0.3  # the share of the budget after which no other candidate is quantized
_CLEARLY_LESS = 0.99  # of a size: memory varies by less between two processes


class _MeasuredStrategy(CostStrategy):
    """Place by measurement, with the settings of the configuration that the request changes.

    Without an accuracy bound, results are compared with the program that is lowered, else with its float reference.
    """

    can_quantize = True
    _settings: PlacementSection
    _remote: RemotePlacement | None = None  # measurements of another machine, instead of local ones
    _cluster: Cluster | None = None  # it measures the programs; None: this machine does
    _compiler: Compiler  # has the original methods, and the estimates that plans are searched by
    _exported: Mapping[str, ExportedProgram]
    _samples: Mapping[str, Sequence[Sample]]  # method -> calls to compare; the first one is measured
    _floats: Mapping[str, ExportedProgram]  # method -> its float reference, if it has one
    _store: Store | None  # where earlier measurements are stored
    _groups: list[list[Candidate]]  # of one program each, the original one first
    _planners: dict[str, SchemePlanner]

    def _change_settings(self, settings: PlacementSection, budget: float | None, objective: str | None) -> None:
        """Use the settings with the values of a request; raises ConfigError if these are invalid."""
        changes = {k: v for k, v in {"budget": budget, "objective": objective}.items() if v is not None}
        try:
            checked = PlacementSection.model_validate(changes)
        except ValidationError as error:
            what = f"the placement is invalid: {sentences(error, PlacementSection)}"
            raise ConfigError(what, where="placement") from error
        self._settings = settings.model_copy(update={name: getattr(checked, name) for name in changes})

    def require_model(self, exported: Mapping[str, ExportedProgram], selection: Selection) -> None:
        if not selection.backends:
            raise ConfigError("placements cannot be measured without a backend", where="placement", remedy="name some")

    def cache_key(self, exported: Mapping[str, ExportedProgram]) -> Hashable:
        if self._settings.accuracy is not None:
            raise NotCacheable
        leaves = [
            (leaf.dtype, leaf.shape) if isinstance(leaf, torch.Tensor) else leaf
            for ep in exported.values()
            for leaf in pytree.tree_leaves(ep.example_inputs)
        ]
        return (repr(self._settings), repr(leaves))

    def place(self, compiler: Compiler, exported: Mapping[str, ExportedProgram], check: Verify) -> Placed:
        compiler.costs = self.estimates(compiler.selection)
        self._compiler, self._exported, self._floats = compiler, exported, check.reference or {}
        self._samples = samples_to_place(self._settings, check.inputs, exported, compiler)
        self._tell: Progress = self._progress or (lambda text: None)
        self._store = None
        with contextlib.ExitStack() as stack:
            if self._cluster is not None:
                stack.enter_context(self._cluster)
            elif self._remote is None:
                self._store = open_choices(cache_folder_of(compiler.selection.cache, self._cache))
            placed = self._place_methods()
        if self._remote is not None:
            self._remote.finish()
        if any(placement.busy for placement in placed.placements):
            self.is_cacheable = False
        return placed

    def _place_methods(self) -> Placed:
        """Return the chosen programs with the plan to apply, and warn about their quantization.

        Raises:
            DelegateError: no candidate can be compiled.
        """
        begun, budget = time.monotonic(), self._settings.budget
        self._quantize(begun)
        begun = max(begun, time.monotonic() - _QUANTIZED * budget)  # the rest of the budget is for measuring
        share = budget / len(self._exported)
        ends = {name: begun + number * share for number, name in enumerate(self._exported, 1)}
        chosen = {name: self._place_method(name, share, end) for name, end in ends.items()}
        if len(chosen) > 1 and self._settings.objective in ("memory", "file size"):
            chosen = self._choose_for_all_methods(chosen, begun + budget)
        return self._apply(chosen)

    def _quantize(self, begun: float) -> None:
        """Make the programs that candidates compile."""
        arguments = (self._settings, self._compiler, self._exported, self._samples, default_registry(), self._tell)
        self._planners = {name: SchemePlanner(name, *arguments) for name in self._exported}
        own = dict(float_candidates(self._settings, tuple(self._compiler.selection.backends)))
        if self._settings.objective == "latency" and self._settings.candidates is None:
            own[PORTABLE] = PORTABLE
        self._groups = [[Candidate(name, backend, self._compiler) for name, backend in own.items()]]
        for number, planner in enumerate(self._planners.values(), 1):
            end = begun + _QUANTIZED * self._settings.budget * number / len(self._planners)
            self._groups += planner.make_candidates(end if self._remote is None else math.inf)

    def _apply(self, choices: Mapping[str, ChosenPlan]) -> Placed:
        all_quantized = {name: chosen.candidate.quantized for name, chosen in choices.items()}
        quantized = {name: made for name, made in all_quantized.items() if made is not None}
        applied = self._merge(choices)
        notes = dict.fromkeys(note for made in quantized.values() for note in made.notes)
        applied.selection = replace(applied.selection, notes=(*applied.selection.notes, *notes))
        always = [record for planner in self._planners.values() for record in planner.records]
        records = (*always, *(record for made in quantized.values() for record in made.records))
        for message, category in dict.fromkeys((str(record.message), record.category) for record in records):
            warn_user(message, category)
        return Placed(
            applied,
            {name: quantized[name].programs[name] if name in quantized else self._exported[name] for name in choices},
            tuple(chosen.placement.rounded() for chosen in choices.values()),
            {name: options for chosen in choices.values() for name, options in chosen.options.items()},
            {name: made.section.model_dump(mode="json") for name, made in quantized.items()},
        )

    def _merge(self, choices: Mapping[str, ChosenPlan]) -> Compiler:
        """Return a compiler of all methods that applies their plans, with unique names of partitions."""
        plans = [chosen.plan for chosen in choices.values()]
        partitions = tuple(replace(p, name=f"{i}_{p.name}") for i, plan in enumerate(plans) for p in plan.partitions)
        whole = tuple(sorted({op for plan in plans for op in plan.whole or ()}))
        compiler = self._compiler.fork_with(
            {name: chosen.candidate.compiler.methods[name].edge for name, chosen in choices.items()}
        )
        compiler.apply(SavedPlan(partitions, whole), MEASURED)
        return compiler

    def _place_method(self, name: str, budget: float, end: float) -> ChosenPlan:
        """Return the choice for a method.

        Args:
            name: The method's name.
            budget: Its seconds.
            end: The end of the budget, by `time.monotonic`; earlier if earlier methods took longer.
        """
        candidates, comparator = self._order_candidates(name), self._create_comparator(name)
        backends = self._compiler.selection.backends
        limits = {place: UNNAMED_LIMIT for place, b in backends.items() if b.is_unnamed_plugin}
        task = Task(name, candidates, self._settings.objective, budget, limits=limits)
        cache = self._open_cache(name, candidates)
        if (cached := cache.get(budget)) is not None:
            by_name, (candidate, plan, options, placement) = {c.name: c for c in candidates}, cached
            if candidate in by_name:
                return ChosenPlan(by_name[candidate], plan, options, placement)

        def progress(text: str) -> None:
            self._tell(f"{name}: {text}")

        if self._remote is not None:
            return self._remote.place(task, comparator, progress)
        chosen, placer = self._measure(task, comparator, progress, min(end, time.monotonic() + budget))
        not_tried = (*chosen.placement.not_tried, *self._planners[name].not_tried)
        chosen = replace(chosen, placement=replace(chosen.placement, not_tried=not_tried))
        if not placer.was_disturbed:
            cache.put(chosen, cut_short=placer.was_cut_short)
        return chosen

    def _measure(
        self, task: Task, comparator: ReferenceComparator, progress: Progress, end: float
    ) -> tuple[ChosenPlan, Placer]:
        """Return the choice for a method by measuring here or on a cluster, and the placer that measured."""
        with tempfile.TemporaryDirectory(prefix="delegate-") as folder:
            leaves, limits = arrays_of(comparator.calls[0]), (answer_timeout(task.budget), seconds_until(end))
            kernels = kernel_names(self._compiler.selection.kernels)
            factory: RunnerFactory = ProcessRunnerFactory(Path(folder), leaves, kernels, *limits)
            if self._cluster is not None:
                factory = self._cluster.create_factory(leaves, kernels, *limits)
            placer = Placer(task, factory, comparator, progress, late=task.budget - seconds_until(end)())
            chosen = placer.place()
        machines = "; ".join(factory.machines)
        return replace(chosen, placement=replace(chosen.placement, machine=machines)), placer

    # -- candidates ---------------------------------------------------------------------------------------------------

    def _order_candidates(self, method: str) -> list[Candidate]:
        """Return the candidates in the order of compilation, which the budget may end.

        If all schemes are candidates, the first backend of each program comes before the second one of any.
        """
        own = [[c for one in group for c in self._with_threads(one)] for group in self._groups_of(method)]
        section = self._compiler.selection.quantization
        if section is None or not section.is_auto:
            return [candidate for candidates in own for candidate in candidates]
        return [c for row in itertools.zip_longest(*own) for c in row if c is not None]

    def _groups_of(self, method: str) -> list[list[Candidate]]:
        """Return the candidates of each program that has a method."""
        return [g for g in self._groups if g and (g[0].quantized is None or method in g[0].quantized.programs)]

    def _with_threads(self, one: Candidate) -> list[Candidate]:
        """Return a candidate with each configured number of threads, if its backend takes one."""
        counts = self._settings.threads if one.way != PORTABLE and _takes_threads(one.way) else ()
        return [
            replace(one, name=f"{one.name}, {count} threads", options={one.way: {"threads": count}}) for count in counts
        ] or [one]

    def _reference(self, method: str) -> ExportedProgram:
        """Return the program that results of a method are compared with."""
        own = self._exported[method]
        return own if self._settings.accuracy is None else self._floats.get(method, own)

    def _create_comparator(self, name: str) -> ReferenceComparator:
        """Return the comparison of a method with its reference."""
        edge = self._compiler.methods[name].edge
        bound = None if self._settings.accuracy is None else self._settings.accuracy.sqnr_db
        is_drawn = is_random(edge.graph_module)
        return ReferenceComparator(self._reference(name), edge, self._samples[name], bound, is_random=is_drawn)

    # -- the cache ----------------------------------------------------------------------------------------------------

    def _open_cache(self, name: str, candidates: Sequence[Candidate]) -> PlacementCache:
        """Return the cached choice for a method, empty without a cache, or if nobody can compare what it depends on."""
        artifacts = self._compiler.artifact_cache
        if self._store is None or artifacts is None:
            return PlacementCache()
        identities = {place: artifacts.identity(place) for place in self._compiler.selection.backends}
        known = {place: text for place, text in identities.items() if text is not None}
        if not {*known, PORTABLE} >= {c.way for c in candidates}:
            return PlacementCache()
        try:
            return PlacementCache(self._store, self._key(name, candidates, known))
        except NotCacheable:  # the reference holds what nobody can compare
            return PlacementCache()

    def _key(self, name: str, candidates: Sequence[Candidate], identities: Mapping[str, str]) -> str:
        settings, selection = self._settings, self._compiler.selection
        edges = [group[0].compiler.methods[name].edge for group in self._groups_of(name)]
        calls = [arrays_of(call) for call in ReferenceComparator.leaves(self._samples[name])]
        depends_on = [
            name,  # plans name the graph that their nodes are of
            sorted(identities.items()),
            repr(selection.rules),
            kernel_names(selection.kernels),
            settings.model_copy(update={"budget": 1.0}),
            [(str(leaf.dtype), leaf.shape) if hasattr(leaf, "shape") else leaf for leaf in calls[0]],
            [(c.name, c.way) for c in candidates],
        ]
        if settings.accuracy is not None:
            digest = hashlib.sha256()
            for leaf in itertools.chain.from_iterable(calls):
                digest.update(leaf.tobytes() if hasattr(leaf, "tobytes") else repr(leaf).encode())
            depends_on += [digest.hexdigest(), key_of_exported({name: self._reference(name)})]
        return choice_key(edges, depends_on, by_weights=settings.accuracy is not None)

    # -- all methods --------------------------------------------------------------------------------------------------

    def _choose_for_all_methods(self, chosen: dict[str, ChosenPlan], end: float) -> dict[str, ChosenPlan]:
        """Return the choices with which the program of all methods is smallest.

        Methods store a weight once only if it has the same scheme in all of them. So the choices of the methods compete
        with each candidate that all methods have.
        """
        is_elsewhere = self._remote is not None or self._cluster is not None
        if is_elsewhere or len({id(c.candidate.compiler) for c in chosen.values()}) == 1:
            return chosen
        best, least = chosen, self._size(chosen)
        names = [{p.name for p in c.placement.plans if p.cost is not None and not p.why} for c in chosen.values()]
        for name in sorted(set.intersection(*names)):
            if time.monotonic() > end:
                break
            self._tell(f"compiling all methods for {name}")
            same = {method: self._prefer(method, name, plan) for method, plan in chosen.items()}
            size = self._size(same)
            best, least = (same, size) if size < _CLEARLY_LESS * least else (best, least)
        return best

    def _prefer(self, method: str, name: str, chosen: ChosenPlan) -> ChosenPlan:
        """Return the choice of a candidate for a method."""
        candidate = next(c for c in self._order_candidates(method) if c.name == name)
        fork = candidate.compiler.fork_for_way(method, candidate.way)
        fork.compile()
        plans = tuple(replace(row, against=None) for row in chosen.placement.plans)
        placement = replace(chosen.placement, chosen=name, plans=plans)
        return ChosenPlan(candidate, SavedPlan.of(fork.plans), candidate.options, placement)

    def _size(self, choices: Mapping[str, ChosenPlan]) -> float:
        """Return the bytes of the whole program: of its file, or of the process that runs its first method."""
        first, plan = next(iter(choices.items()))
        program, _ = self._merge(choices).compile()
        task = Task(first, (), self._settings.objective, self._settings.budget)
        with tempfile.TemporaryDirectory(prefix="delegate-") as folder:
            leaves = arrays_of(ReferenceComparator.leaves(self._samples[first])[0])
            kernels = kernel_names(self._compiler.selection.kernels)
            factory = ProcessRunnerFactory(Path(folder), leaves, kernels, answer_timeout(self._settings.budget))
            with contextlib.closing(factory.start(make_trial(first, program, plan.options, task))) as runner:
                try:
                    runner.ready()
                    return runner.measure_round().cost
                except TrialFailed:
                    return math.inf


@dataclass
class Measured(_MeasuredStrategy):
    """Run single-backend and mixed plans, and take the best; see docs/how-to/placement.md.

    Example::

        placement = delegate.Measured(lockfile="model.lock")
        program = delegate.to_backend(exported, ["openvino", "xnnpack"], placement=placement)

    Args:
        budget: seconds for compiling candidates and measuring them. None: as configured, which is 60 unless changed.
        objective: what is least in the best plan. None: as configured, which is the latency unless changed.
        lockfile: path of a lockfile to write, with the backend of each node and its measured cost.
        cluster: address of a Ray cluster, as for `ray.init`. Candidates are measured on its nodes that have the
            backends as resources. None: this machine measures. A cluster requires the package in plugins/ray.
    """

    budget: float | None = None
    objective: Objective | None = None
    lockfile: PathLike | None = None
    cluster: str | None = None

    def prepare(self, settings: PlacementSection) -> None:
        self._change_settings(settings, self.budget, self.objective)
        if self.cluster is not None:
            open_cluster: OpenCluster = _load("ray", "delegate-ray", "pip install './plugins/ray[ray]'")
            self._cluster, self.is_cacheable = open_cluster(self.cluster), False


@dataclass
class Remote(_MeasuredStrategy):
    """Take the best plan by measurements of another machine, where `delegate measure` runs a bundle of programs.

    Example::

        placement = delegate.Remote("model.bundle", ["phone.costs"])
        program = delegate.to_backend(exported, "xnnpack", placement=placement)

    Without costs the plan of the first candidate is used meanwhile. At least one of `bundle` and `costs` is required,
    and the package in plugins/remote.

    Args:
        bundle: path of the bundle to write, with the candidates' programs and inputs. With costs it has the plans that
            are promising by these.
        costs: path of the results that `delegate measure` wrote, or a list, one for each bundle.
        objective: see `Measured`.
        lockfile: path of a lockfile to write, with the backend of each node and its measured cost.
    """

    bundle: PathLike | None = None
    costs: PathLike | Sequence[PathLike] = ()
    objective: Objective | None = None
    lockfile: PathLike | None = None

    def prepare(self, settings: PlacementSection) -> None:
        self._change_settings(settings, None, self.objective)
        paths = [self.costs] if isinstance(self.costs, str | os.PathLike) else list(self.costs or ())
        if self.bundle is None and not paths:
            raise ConfigError("Remote has neither a bundle nor costs", remedy="give one", where="placement")
        open_placement: OpenRemotePlacement = _load("bundle", "delegate-remote", "pip install ./plugins/remote")
        self._remote, self._profile, self.is_cacheable = open_placement(self.bundle, paths), read_shipped(), False


def _load(name: str, package: str, install: str) -> Any:
    """Import a way to measure elsewhere from its package; raises ConfigError."""
    absence = f"measuring by {name!r} needs the package {package}, which is not installed"
    return load_extension(MEASUREMENTS, name, absence, install)


def _takes_threads(backend: str) -> bool:
    try:
        return "threads" in default_registry().runtime(backend).load_options
    except BackendError:  # it cannot run here, which measuring will tell
        return False
