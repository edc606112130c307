"""Place all methods of a program by measurement, as configured."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch.export import ExportedProgram

from delegate.accuracy.samples import Sample
from delegate.cache.aot.placements import CostCache, PlacementCache, choice_key
from delegate.cache.runtime.store import Store
from delegate.config import PlacementSection
from delegate.edge.graphs import is_random
from delegate.edge.keys import NotCacheable, exported_key
from delegate.errors import BackendError, ConfigError, did_you_mean
from delegate.measured import Placement
from delegate.partitioner.saved import SavedPlan
from delegate.placement.placer import Placer
from delegate.placement.plans import Alternatives, Candidate, ChosenPlan, MethodCompiler, Options, Progress, Task
from delegate.placement.reference_comparator import ReferenceComparator, arrays_of
from delegate.placement.runtime.remote import Cluster, RemotePlacement
from delegate.placement.runtime.trials import ProcessRunnerFactory, answer_timeout, seconds_until
from delegate.registry import Registry
from delegate.verdict import Reason, no

MEASURED = no(Reason.SLOWER, "as measured", "the table of plans shows by how much")


@dataclass(frozen=True, slots=True)
class BaseProgram:
    """A program that candidates compile: the original or a quantized one.

    Args:
        compiler: has its methods.
        exported: the methods.
        candidates: name -> backend.
        quantization: the configuration section of its quantization; None without quantization.
        records: the warnings of its quantization, for the user if it is chosen.
    """

    compiler: MethodCompiler
    exported: Mapping[str, ExportedProgram]
    candidates: Mapping[str, str]
    quantization: Mapping[str, Any] | None = None
    records: Sequence[warnings.WarningMessage] = ()


@dataclass(frozen=True, slots=True)
class PlacementContext:
    """The settings that all methods share.

    Args:
        settings: of the configuration.
        samples: method -> calls to compare; the first one is measured.
        floats: method -> its float reference, if it has one. An accuracy bound compares results with it, as `verify`
            does. Without a bound the reference is the program that is lowered.
        registry: of the backends.
        kernels: names of the kernel libraries.
        identities: backend -> versions and options as text. Other backends have no cache entries.
        rules: of the configuration as text.
        store: of earlier measurements; None without a cache.
        progress: receives a short text for each step.
        begun: start of the budget, by `time.monotonic`.
        not_tried: candidates that were left out for lack of time, with the reason.
        remote: measurements of another machine, instead of local ones.
        cluster: measures the programs; None: this machine does.
    """

    settings: PlacementSection
    samples: Mapping[str, Sequence[Sample]]
    floats: Mapping[str, ExportedProgram]
    registry: Registry
    kernels: Sequence[str] | None
    identities: Mapping[str, str]
    rules: str
    store: Store | None
    progress: Progress
    begun: float
    not_tried: Sequence[str] = ()
    remote: RemotePlacement | None = None
    cluster: Cluster | None = None

    def reference(self, method: str, own: ExportedProgram) -> ExportedProgram:
        """Return the program that results of a method are compared with.

        Args:
            method: its name.
            own: the program that is lowered.
        """
        return own if self.settings.accuracy is None else self.floats.get(method, own)


@dataclass(frozen=True, slots=True)
class PlacementResult:
    """The result for a program.

    Args:
        base: the program to compile.
        plan: of all methods.
        options: for partitions, by name of a backend.
        placements: by method, for the report.
    """

    base: BaseProgram
    plan: SavedPlan
    options: Options = field(default_factory=dict)
    placements: tuple[Placement, ...] = ()


def choose_placements(bases: Sequence[BaseProgram], context: PlacementContext) -> PlacementResult:
    """Measure the candidates of all methods, and choose a plan.

    Args:
        bases: the original program first; their compilers have the methods.
        context: the settings.

    Raises:
        ConfigError: candidates with quantization are configured for a program of several methods.
        DelegateError: no candidate can be compiled.
    """
    first = bases[0]
    methods = list(first.exported)
    if len(methods) > 1 and len(bases) > 1:
        what = f"quantized candidates require a program of one method, but the program has {len(methods)}"
        raise ConfigError(what, where="placement.candidates", remedy="lower the methods one by one, or quantize first")
    share = context.settings.budget / len(methods)
    chosen = [
        _choose_placement(name, bases, context, share, context.begun + (i + 1) * share)
        for i, name in enumerate(methods)
    ]
    base_of = {c.name: base for base in bases for c in _candidates(methods[0], base, context)}
    options = {name: value for one in chosen for name, value in one.options.items()}
    return PlacementResult(
        base_of[chosen[0].candidate.name],
        _merge_plans([one.plan for one in chosen]),
        options,
        tuple(one.placement for one in chosen),
    )


def _merge_plans(plans: Sequence[SavedPlan]) -> SavedPlan:
    """Merge the plans of several methods into one with unique partition names."""
    partitions = tuple(replace(p, name=f"{i}_{p.name}") for i, plan in enumerate(plans) for p in plan.partitions)
    parallel = tuple(
        tuple(tuple(f"{i}_{name}" for name in branch) for branch in group)
        for i, plan in enumerate(plans)
        for group in plan.together
    )
    return SavedPlan(partitions, tuple(sorted({op for plan in plans for op in plan.whole or ()})), parallel)


def _choose_placement(
    name: str, bases: Sequence[BaseProgram], context: PlacementContext, budget: float, end: float
) -> ChosenPlan:
    """Return the choice for a method.

    Args:
        name: of the method.
        bases, context: see `choose_placements`.
        budget: its share.
        end: of the budget, by `time.monotonic`; earlier than by its share if earlier methods took longer.
    """
    settings = context.settings
    candidates = [c for base in bases for c in _candidates(name, base, context)]
    task = Task(name, candidates, settings.objective, budget, os.cpu_count() or 1)
    cache = _MethodCache.of(name, bases, candidates, context)
    cached = cache.choice(candidates, budget)
    if cached is not None:
        return cached
    ep, edge = context.reference(name, bases[0].exported[name]), candidates[0].lowering.edge()
    bound = None if settings.accuracy is None else settings.accuracy.sqnr_db
    comparator = ReferenceComparator(ep, edge, context.samples[name], bound, is_random=is_random(edge.graph_module))

    def progress(text: str) -> None:
        context.progress(f"{name}: {text}")

    if context.remote is not None:
        return context.remote.place(task, comparator, progress)
    with tempfile.TemporaryDirectory(prefix="delegate-") as folder:
        end = min(end, time.monotonic() + budget)
        leaves, limits = arrays_of(comparator.calls[0]), (answer_timeout(budget), seconds_until(end))
        nodes = None if context.cluster is None else context.cluster.create_factory(leaves, context.kernels, *limits)
        factory = nodes or ProcessRunnerFactory(Path(folder), leaves, context.kernels, *limits)
        placer = Placer(task, factory, comparator, cache.costs, progress, late=budget - seconds_until(end)())
        chosen = placer.place()
    if nodes is not None:
        chosen = replace(chosen, placement=replace(chosen.placement, machine="; ".join(nodes.machines)))
    chosen = replace(
        chosen, placement=replace(chosen.placement, not_tried=(*chosen.placement.not_tried, *context.not_tried))
    )
    if not placer.was_disturbed:
        cache.put(chosen, cut_short=placer.was_cut_short)
    return chosen


@dataclass(frozen=True, slots=True)
class _MethodCache:
    """The cached measurements of a method; empty without a cache."""

    placements: PlacementCache | None = None
    key: str = ""
    costs: CostCache | None = None

    @classmethod
    def of(
        cls, name: str, bases: Sequence[BaseProgram], candidates: Sequence[Candidate], context: PlacementContext
    ) -> _MethodCache:
        if context.store is None or not context.identities.keys() >= {c.backend for c in candidates}:
            return cls()
        own = {c.name: repr((context.identities[c.backend], c.options, context.kernels)) for c in candidates}
        costs = CostCache(context.store, own)
        try:
            return cls(PlacementCache(context.store), _key(name, bases, candidates, context), costs)
        except NotCacheable:  # the reference holds what nobody can compare
            return cls(costs=costs)

    def choice(self, candidates: Sequence[Candidate], budget: float) -> ChosenPlan | None:
        cached = None if self.placements is None else self.placements.get(self.key, budget)
        known = {c.name: c for c in candidates}
        if cached is None or cached[0] not in known:
            return None
        candidate, plan, options, placement = cached
        return ChosenPlan(known[candidate], plan, options, placement)

    def put(self, chosen: ChosenPlan, *, cut_short: bool) -> None:
        if self.placements is not None:
            self.placements.put(self.key, chosen, cut_short=cut_short)


def _candidates(method: str, base: BaseProgram, context: PlacementContext) -> Iterator[Candidate]:
    """Yield the candidates of a base, with each configured number of threads."""
    lowering = Alternatives(base.compiler, method)
    for name, backend in base.candidates.items():
        counts = context.settings.threads if _takes_threads(backend, context.registry) else ()
        for count in counts:
            yield Candidate(f"{name}, {count} threads", backend, lowering, {backend: {"threads": count}})
        if not counts:
            yield Candidate(name, backend, lowering)


def _takes_threads(backend: str, registry: Registry) -> bool:
    try:
        return "threads" in registry.runtime(backend).load_options
    except BackendError:  # it cannot run here, which measuring will tell
        return False


def _key(name: str, bases: Sequence[BaseProgram], candidates: Sequence[Candidate], context: PlacementContext) -> str:
    settings = context.settings
    edges = [base.compiler.methods[name].edge for base in bases]
    leaves = [
        (str(leaf.dtype), leaf.shape) if hasattr(leaf, "shape") else leaf
        for leaf in arrays_of(ReferenceComparator.leaves(context.samples[name])[0])
    ]
    without_budget = settings.model_copy(update={"budget": 1.0})
    depends_on = [
        name,  # plans name the graph that their nodes are of
        sorted(context.identities.items()),
        context.rules,
        context.kernels,
        without_budget,
        leaves,
        [(c.name, c.backend) for c in candidates],
    ]
    if settings.accuracy is not None:
        reference = context.reference(name, bases[0].exported[name])
        depends_on += [_digest(context.samples[name]), exported_key({name: reference})]
    return choice_key(edges, depends_on, by_weights=settings.accuracy is not None)


def _digest(samples: Sequence[Sample]) -> str:
    digest = hashlib.sha256()
    for call in ReferenceComparator.leaves(samples):
        for leaf in arrays_of(call):
            digest.update(leaf.tobytes() if hasattr(leaf, "tobytes") else repr(leaf).encode())
    return digest.hexdigest()


def unquantized_candidates(settings: PlacementSection, backends: Sequence[str]) -> dict[str, str]:
    """Return the candidates without quantization: name -> backend.

    Raises:
        ConfigError: a candidate is not among the backends.
    """
    if settings.candidates is None:
        return {name: name for name in backends}
    for candidate in settings.candidates:
        if candidate.name not in backends:
            what = f"candidate {candidate.name!r} is not among the backends: {', '.join(backends) or 'there are none'}"
            raise ConfigError(what, where="placement.candidates", remedy=did_you_mean(candidate.name, backends))
    return {c.name: c.name for c in settings.candidates if c.quantization is None}
