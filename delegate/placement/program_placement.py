"""Place all methods of a program by measurement, as configured."""

from __future__ import annotations

import hashlib
import math
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch.export import ExportedProgram

from delegate.accuracy.samples import Sample
from delegate.cache.aot.placements import PlacementCache, choice_key
from delegate.cache.runtime.store import Store
from delegate.config import PlacementSection
from delegate.edge.graphs import is_random
from delegate.edge.keys import NotCacheable, exported_key
from delegate.edge.program import EdgeProgram
from delegate.errors import BackendError, ConfigError, did_you_mean
from delegate.measured import Placement
from delegate.partitioner.saved import SavedPlan
from delegate.placement.placer import Placer
from delegate.placement.plans import (
    Candidate,
    ChosenPlan,
    MethodCompiler,
    Options,
    Progress,
    Task,
    limit_of,
)
from delegate.placement.reference_comparator import ReferenceComparator, arrays_of
from delegate.placement.runtime.remote import Cluster, RemotePlacement
from delegate.placement.runtime.trials import ProcessRunnerFactory, Trial, TrialFailed, answer_timeout, seconds_until
from delegate.plugins import PORTABLE
from delegate.program.cores import cores
from delegate.registry import Registry
from delegate.verdict import Reason, no

_FIRST_SHARE = 0.75  # of the budget, for the candidates before their mixes
_MIX_SHARE = 0.2  # of the budget, for each measurement of mixes
_CLEARLY_LESS = 0.99  # of a size: memory varies by less between two processes
MEASURED = no(Reason.SLOWER, "as measured", "the table of plans shows by how much")


@dataclass(frozen=True, slots=True)
class BaseProgram:
    """A program that candidates compile: the original or a quantized one.

    Args:
        compiler: a `Compiler` that has all methods.
        exported: the methods that candidates compile.
        candidates: name -> backend.
        quantization: the configuration section of its quantization; None without quantization.
        records: the warnings of its quantization, for the user if it is chosen.
        notes: the notes on its quantization, for the report if it is chosen.
    """

    compiler: MethodCompiler
    exported: Mapping[str, ExportedProgram]
    candidates: Mapping[str, str]
    quantization: Mapping[str, Any] | None = None
    records: Sequence[warnings.WarningMessage] = ()
    notes: Sequence[str] = ()


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
        identities: backend -> its identity. Other backends have no cache entries.
        limits: backend -> most seconds for an answer of a program that is measured. The others have no limit.
        rules: of the configuration as text.
        store: of earlier measurements; None without a cache.
        progress: receives a short text for each step.
        begun: start of the budget, by `time.monotonic`.
        not_tried: method -> candidates that were left out, with the reason.
        mixes: returns more programs of a method, which are measured against the chosen one. Its arguments are the
            method, the chosen program, its placement, and the end of the budget. None: there are none.
        remote: measurements of another machine, instead of local ones.
        cluster: measures the programs; None: this machine does.
    """

    settings: PlacementSection
    samples: Mapping[str, Sequence[Sample]]
    floats: Mapping[str, ExportedProgram]
    registry: Registry
    kernels: Sequence[str] | None
    identities: Mapping[str, str]
    limits: Mapping[str, float]
    rules: str
    store: Store | None
    progress: Progress
    begun: float
    not_tried: Mapping[str, Sequence[str]] = field(default_factory=dict)
    mixes: Callable[[str, BaseProgram, Placement, float], Sequence[BaseProgram]] | None = None
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
        bases: the program to compile, by method.
        plan: of all methods.
        options: for partitions, by name of a backend.
        placements: by method, for the report.
    """

    bases: Mapping[str, BaseProgram]
    plan: SavedPlan
    options: Options = field(default_factory=dict)
    placements: tuple[Placement, ...] = ()


def choose_placements(bases: Sequence[BaseProgram], context: PlacementContext) -> PlacementResult:
    """Measure the candidates of all methods, and choose a plan.

    Args:
        bases: the original program first, then those of candidates, each with some of the methods.
        context: the settings.

    Raises:
        DelegateError: no candidate can be compiled.
    """
    methods = list(bases[0].exported)
    share = context.settings.budget / len(methods)
    chosen: _Choices = {
        name: _choose_program(name, [base for base in bases if name in base.exported], context, share, number * share)
        for number, name in enumerate(methods, 1)
    }
    if len(methods) > 1 and context.settings.objective in ("memory", "file size"):
        chosen = _choose_for_all_methods(chosen, bases, context)
    options = {name: value for _, plan in chosen.values() for name, value in plan.options.items()}
    return PlacementResult(
        {name: base for name, (base, _) in chosen.items()},
        _merge_plans([plan.plan for _, plan in chosen.values()]),
        options,
        tuple(plan.placement for _, plan in chosen.values()),
    )


def _choose_program(
    name: str, bases: Sequence[BaseProgram], context: PlacementContext, budget: float, latest: float
) -> tuple[BaseProgram, ChosenPlan]:
    """Return the program of a method to compile, and the choice for it.

    The best of the bases competes with the programs of `PlacementContext.mixes`, again and again until these end.

    Args:
        name: of the method.
        bases, context: see `choose_placements`.
        budget: its share.
        latest: the end of the budget after the start; earlier than by its share if earlier methods took longer.
    """
    end = context.begun + latest
    is_mixed = context.mixes is not None and context.remote is None and len(bases) > 1
    comparator = _create_comparator(name, bases[0], context)
    first = budget * (_FIRST_SHARE if is_mixed else 1.0)
    chosen = _choose_placement(name, bases, context, comparator, first, end - budget + first)
    base = _base_of(name, bases, chosen, context)
    is_mixed = is_mixed and _cost(chosen) < math.inf
    while is_mixed and context.mixes is not None and time.monotonic() < end:
        mixes = context.mixes(name, base, chosen.placement, end)
        left = end - time.monotonic()
        if not mixes or left <= 0:
            break
        competing = {n: b for n, b in base.candidates.items() if n in chosen.placement.chosen}
        rivals = [replace(base, candidates=competing or base.candidates), *mixes]
        later = _choose_placement(name, rivals, context, comparator, min(left, budget * _MIX_SHARE), end)
        winner = _base_of(name, rivals, later, context)
        is_better = winner is not rivals[0] and _cost(later) < _cost(chosen)
        kept, other = (later, chosen) if is_better else (chosen, later)
        chosen = replace(kept, placement=_merge_placements(kept.placement, other.placement))
        base = winner if is_better else base
    return base, replace(chosen, placement=replace(chosen.placement, budget=budget))


_Choices = Mapping[str, tuple[BaseProgram, ChosenPlan]]  # by method


def _choose_for_all_methods(chosen: _Choices, bases: Sequence[BaseProgram], context: PlacementContext) -> _Choices:
    """Return the choices with which the program of all methods is smallest.

    Methods store a weight once only if it has the same scheme in all of them. So the choices of the methods compete
    with each candidate that all methods have.
    """
    if context.remote is not None or context.cluster is not None or len({id(base) for base, _ in chosen.values()}) == 1:
        return chosen
    best, least = chosen, _size(chosen, context)
    for name in _common_plans(chosen):
        if time.monotonic() > context.begun + context.settings.budget:
            break
        context.progress(f"compiling all methods for {name}")
        same = {m: _prefer(m, name, plan, bases, context) for m, (_, plan) in chosen.items()}
        size = _size(same, context)
        best, least = (same, size) if size < _CLEARLY_LESS * least else (best, least)
    return best


def _common_plans(chosen: _Choices) -> list[str]:
    """Return the names of plans that every method has, and that no method rejects."""
    names = [{p.name for p in c.placement.plans if p.cost is not None and not p.why} for _, c in chosen.values()]
    return sorted(set.intersection(*names))


def _prefer(
    method: str, name: str, chosen: ChosenPlan, bases: Sequence[BaseProgram], context: PlacementContext
) -> tuple[BaseProgram, ChosenPlan]:
    """Return the program and the choice of a candidate for a method; raises StopIteration if no base has it."""
    own = [base for base in bases if method in base.exported]
    base, candidate = next((b, c) for b in own for c in _candidates(method, b, context) if c.name == name)
    fork = candidate.compiler.fork_for_way(method, candidate.way)
    fork.compile()
    plans = tuple(replace(row, against=None) for row in chosen.placement.plans)
    placement = replace(chosen.placement, chosen=name, plans=plans)
    return base, ChosenPlan(candidate, SavedPlan.of(fork.plans), candidate.options, placement)


def _size(choices: _Choices, context: PlacementContext) -> float:
    """Return the bytes of the program of all methods: of its file, or of the process that runs its first method."""
    first, (base, plan) = next(iter(choices.items()))
    compiler = base.compiler.fork_with({name: b.compiler.methods[name].edge for name, (b, _) in choices.items()})
    compiler.apply(_merge_plans([plan.plan for _, plan in choices.values()]), MEASURED)
    program, _ = compiler.compile()
    with tempfile.TemporaryDirectory(prefix="delegate-") as folder:
        leaves = arrays_of(ReferenceComparator.leaves(context.samples[first])[0])
        factory = ProcessRunnerFactory(Path(folder), leaves, context.kernels, answer_timeout(context.settings.budget))
        limit = limit_of(program, context.limits)
        runner = factory.start(Trial(first, program, first, context.settings.objective, plan.options, limit=limit))
        try:
            runner.ready()
            return runner.measure_round().cost
        except TrialFailed:
            return math.inf
        finally:
            runner.close()


def _base_of(name: str, bases: Sequence[BaseProgram], chosen: ChosenPlan, context: PlacementContext) -> BaseProgram:
    """Return the program that the chosen candidate compiles."""
    return next(b for b in bases if chosen.candidate.name in {c.name for c in _candidates(name, b, context)})


def _cost(chosen: ChosenPlan) -> float:
    """Return the cost of a chosen plan; infinity if it was not measured."""
    cost = next(plan.cost for plan in chosen.placement.plans if plan.name == chosen.placement.chosen)
    return math.inf if cost is None else cost


def _merge_placements(kept: Placement, other: Placement) -> Placement:
    """Return a placement with the plans of another one too; these have no ratio to the chosen plan."""
    names = {plan.name for plan in kept.plans}
    plans = (*kept.plans, *(replace(plan, against=None) for plan in other.plans if plan.name not in names))
    return replace(
        kept,
        plans=tuple(sorted(plans, key=lambda plan: math.inf if plan.cost is None else plan.cost)),
        not_tried=tuple(dict.fromkeys((*kept.not_tried, *other.not_tried))),
        spent=kept.spent + other.spent,
        busy=kept.busy or other.busy,
    )


def _merge_plans(plans: Sequence[SavedPlan]) -> SavedPlan:
    """Merge the plans of several methods into one with unique partition names."""
    partitions = tuple(replace(p, name=f"{i}_{p.name}") for i, plan in enumerate(plans) for p in plan.partitions)
    return SavedPlan(partitions, tuple(sorted({op for plan in plans for op in plan.whole or ()})))


def _create_comparator(name: str, base: BaseProgram, context: PlacementContext) -> ReferenceComparator:
    """Return the comparison of a method with its reference."""
    edge: EdgeProgram = base.compiler.methods[name].edge
    bound = None if context.settings.accuracy is None else context.settings.accuracy.sqnr_db
    ep, is_drawn = context.reference(name, base.exported[name]), is_random(edge.graph_module)
    return ReferenceComparator(ep, edge, context.samples[name], bound, is_random=is_drawn)


def _choose_placement(
    name: str,
    bases: Sequence[BaseProgram],
    context: PlacementContext,
    comparator: ReferenceComparator,
    budget: float,
    end: float,
) -> ChosenPlan:
    """Return the choice for a method.

    Args:
        name: of the method.
        bases, context: see `choose_placements`.
        comparator: compares results with the reference.
        budget: seconds.
        end: of the budget, by `time.monotonic`; earlier if earlier methods took longer.
    """
    settings = context.settings
    candidates = _ordered_candidates(name, bases, context)
    task = Task(name, candidates, settings.objective, budget, cores(), limits=context.limits)
    cache = _MethodCache.of(name, bases, candidates, context)
    cached = cache.choice(candidates, budget)
    if cached is not None:
        return cached

    def progress(text: str) -> None:
        context.progress(f"{name}: {text}")

    if context.remote is not None:
        return context.remote.place(task, comparator, progress)
    chosen, placer = _measured_choice(task, context, comparator, progress, min(end, time.monotonic() + budget))
    not_tried = (*chosen.placement.not_tried, *context.not_tried.get(name, ()))
    chosen = replace(chosen, placement=replace(chosen.placement, not_tried=not_tried))
    if not placer.was_disturbed:
        cache.put(chosen, cut_short=placer.was_cut_short)
    return chosen


def _measured_choice(
    task: Task, context: PlacementContext, comparator: ReferenceComparator, progress: Progress, end: float
) -> tuple[ChosenPlan, Placer]:
    """Return the choice for a method by measuring here or on a cluster, and the placer that measured."""
    with tempfile.TemporaryDirectory(prefix="delegate-") as folder:
        leaves, limits = arrays_of(comparator.calls[0]), (answer_timeout(task.budget), seconds_until(end))
        nodes = None if context.cluster is None else context.cluster.create_factory(leaves, context.kernels, *limits)
        factory = nodes or ProcessRunnerFactory(Path(folder), leaves, context.kernels, *limits)
        placer = Placer(task, factory, comparator, progress, late=task.budget - seconds_until(end)())
        chosen = placer.place()
    if nodes is not None:
        chosen = replace(chosen, placement=replace(chosen.placement, machine="; ".join(nodes.machines)))
    return chosen, placer


@dataclass(frozen=True, slots=True)
class _MethodCache:
    """The cached choice for a method; empty without a cache."""

    placements: PlacementCache | None = None
    key: str = ""

    @classmethod
    def of(
        cls, name: str, bases: Sequence[BaseProgram], candidates: Sequence[Candidate], context: PlacementContext
    ) -> _MethodCache:
        if context.store is None or not {*context.identities, PORTABLE} >= {c.way for c in candidates}:
            return cls()
        try:
            return cls(PlacementCache(context.store), _key(name, bases, candidates, context))
        except NotCacheable:  # the reference holds what nobody can compare
            return cls()

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


def _ordered_candidates(method: str, bases: Sequence[BaseProgram], context: PlacementContext) -> list[Candidate]:
    """Return the candidates in the order of compilation, which the budget may end.

    If all schemes are candidates, the first backend of each program comes before the second one of any.
    """
    own = [[*_candidates(method, base, context)] for base in bases]
    if context.mixes is None:
        return [candidate for candidates in own for candidate in candidates]
    longest = max(map(len, own))
    return [c for number in range(longest) for candidates in own for c in candidates[number : number + 1]]


def _candidates(method: str, base: BaseProgram, context: PlacementContext) -> Iterator[Candidate]:
    """Yield the candidates of a base: its backends with each configured number of threads, and kernels alone."""
    for name, backend in base.candidates.items():
        counts = context.settings.threads if _takes_threads(backend, context.registry) else ()
        for count in counts:
            yield Candidate(f"{name}, {count} threads", backend, base.compiler, {backend: {"threads": count}})
        if not counts:
            yield Candidate(name, backend, base.compiler)
    is_timed = context.settings.objective in ("latency", "throughput")
    if is_timed and base.quantization is None and context.settings.candidates is None:
        yield Candidate(PORTABLE, PORTABLE, base.compiler)


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
        [(c.name, c.way) for c in candidates],
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
