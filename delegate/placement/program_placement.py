"""Place all methods of a program by measurement, as configured."""

from __future__ import annotations

import hashlib
import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch.export import ExportedProgram

from delegate.accuracy.samples import Sample
from delegate.cache.aot.artifacts import ArtifactCache
from delegate.cache.aot.placements import PlacementCache, choice_key
from delegate.cache.runtime.store import Store
from delegate.config import PlacementSection
from delegate.edge.graphs import is_random
from delegate.edge.keys import NotCacheable, exported_key
from delegate.edge.program import EdgeProgram
from delegate.errors import BackendError
from delegate.measured import Placement
from delegate.partitioner.saved import SavedPlan
from delegate.placement.estimated import kernel_names
from delegate.placement.placer import Placer
from delegate.placement.plans import (
    BaseProgram,
    Candidate,
    ChosenPlan,
    Progress,
    Task,
    limit_of,
)
from delegate.placement.reference_comparator import ReferenceComparator, arrays_of
from delegate.placement.runtime.remote import Cluster, RemotePlacement
from delegate.placement.runtime.trials import ProcessRunnerFactory, Trial, TrialFailed, answer_timeout, seconds_until
from delegate.placement.schemes import SchemePlanner
from delegate.plugins import PORTABLE
from delegate.probing.process import UNNAMED_LIMIT
from delegate.registry import default_registry
from delegate.selection import Selection
from delegate.verdict import Reason, no

_FIRST_SHARE = 0.75  # of the budget, for the candidates before their mixes
_MIX_SHARE = 0.2  # of the budget, for each measurement of mixes
_CLEARLY_LESS = 0.99  # of a size: memory varies by less between two processes
MEASURED = no(Reason.SLOWER, "as measured", "the table of plans shows by how much")


@dataclass(frozen=True, slots=True)
class PlacementContext:
    """The settings that all methods share.

    Args:
        settings: of the configuration.
        selection: the backends.
        artifacts: the cache of artifacts, which identifies backends; None without a cache.
        samples: method -> calls to compare; the first one is measured.
        floats: method -> its float reference, if it has one. An accuracy bound compares results with it, as `verify`
            does. Without a bound the reference is the program that is lowered.
        planners: method -> the quantized programs.
        store: of earlier measurements; None without a cache.
        progress: receives a short text for each step.
        begun: start of the budget, by `time.monotonic`.
        remote: measurements of another machine, instead of local ones.
        cluster: measures the programs; None: this machine does.
    """

    settings: PlacementSection
    selection: Selection
    artifacts: ArtifactCache | None
    samples: Mapping[str, Sequence[Sample]]
    floats: Mapping[str, ExportedProgram]
    planners: Mapping[str, SchemePlanner]
    store: Store | None
    progress: Progress
    begun: float
    remote: RemotePlacement | None = None
    cluster: Cluster | None = None

    @property
    def is_mixed(self) -> bool:
        """Return true if programs that mix schemes are measured too."""
        section = self.selection.quantization
        return section is not None and section.is_auto

    @property
    def kernels(self) -> list[str] | None:
        """The names of the kernel libraries."""
        return kernel_names(self.selection.kernels)

    @property
    def identities(self) -> dict[str, str]:
        """Backend -> its identity; the others have no cache entries."""
        known = (
            {} if self.artifacts is None else {name: self.artifacts.identity(name) for name in self.selection.backends}
        )
        return {name: text for name, text in known.items() if text is not None}

    @property
    def limits(self) -> dict[str, float]:
        """Backend -> most seconds for an answer of a program that is measured. The others have no limit."""
        return {name: UNNAMED_LIMIT for name, b in self.selection.backends.items() if b.is_unnamed_plugin}

    def reference(self, method: str, own: ExportedProgram) -> ExportedProgram:
        """Return the program that results of a method are compared with.

        Args:
            method: its name.
            own: the program that is lowered.
        """
        return own if self.settings.accuracy is None else self.floats.get(method, own)


def choose_placements(bases: Sequence[BaseProgram], context: PlacementContext) -> dict[str, ChosenPlan]:
    """Measure the candidates of all methods, and return the choice by method.

    Args:
        bases: the original program first, then those of candidates, each with some of the methods.
        context: the settings.

    Raises:
        DelegateError: no candidate can be compiled.
    """
    methods = list(bases[0].exported)
    share = context.settings.budget / len(methods)
    chosen = {
        name: _choose_program(name, [base for base in bases if name in base.exported], context, share, number * share)
        for number, name in enumerate(methods, 1)
    }
    if len(methods) > 1 and context.settings.objective in ("memory", "file size"):
        chosen = _choose_for_all_methods(chosen, bases, context)
    return chosen


def merged_plan(choices: Mapping[str, ChosenPlan]) -> SavedPlan:
    """Return the plan of all methods, with unique names of partitions."""
    plans = [chosen.plan for chosen in choices.values()]
    partitions = tuple(replace(p, name=f"{i}_{p.name}") for i, plan in enumerate(plans) for p in plan.partitions)
    return SavedPlan(partitions, tuple(sorted({op for plan in plans for op in plan.whole or ()})))


def _choose_program(
    name: str, bases: Sequence[BaseProgram], context: PlacementContext, budget: float, latest: float
) -> ChosenPlan:
    """Return the choice for a method.

    The best of the bases competes with mixes of schemes, again and again until these end.

    Args:
        name: of the method.
        bases, context: see `choose_placements`.
        budget: its share.
        latest: the end of the budget after the start; earlier than by its share if earlier methods took longer.
    """
    end = context.begun + latest
    is_mixed = context.is_mixed and context.remote is None and len(bases) > 1
    comparator = _create_comparator(name, bases[0], context)
    first = budget * (_FIRST_SHARE if is_mixed else 1.0)
    chosen = _choose_placement(name, bases, context, comparator, first, end - budget + first)
    is_mixed = is_mixed and _cost(chosen) < math.inf
    while is_mixed and time.monotonic() < end:
        base = chosen.candidate.base
        mixes = context.planners[name].mixes(base, chosen.placement, end)
        left = end - time.monotonic()
        if not mixes or left <= 0:
            break
        competing = {n: b for n, b in base.candidates.items() if n in chosen.placement.chosen}
        rivals = [replace(base, candidates=competing or base.candidates), *mixes]
        later = _choose_placement(name, rivals, context, comparator, min(left, budget * _MIX_SHARE), end)
        is_better = later.candidate.base is not rivals[0] and _cost(later) < _cost(chosen)
        kept, other = (later, chosen) if is_better else (chosen, later)
        chosen = replace(kept, placement=_merge_placements(kept.placement, other.placement))
    return replace(chosen, placement=replace(chosen.placement, budget=budget))


def _choose_for_all_methods(
    chosen: dict[str, ChosenPlan], bases: Sequence[BaseProgram], context: PlacementContext
) -> dict[str, ChosenPlan]:
    """Return the choices with which the program of all methods is smallest.

    Methods store a weight once only if it has the same scheme in all of them. So the choices of the methods compete
    with each candidate that all methods have.
    """
    is_elsewhere = context.remote is not None or context.cluster is not None
    if is_elsewhere or len({id(c.candidate.base) for c in chosen.values()}) == 1:
        return chosen
    best, least = chosen, _size(chosen, context)
    for name in _common_plans(chosen):
        if time.monotonic() > context.begun + context.settings.budget:
            break
        context.progress(f"compiling all methods for {name}")
        same = {m: _prefer(m, name, plan, bases, context) for m, plan in chosen.items()}
        size = _size(same, context)
        best, least = (same, size) if size < _CLEARLY_LESS * least else (best, least)
    return best


def _common_plans(chosen: Mapping[str, ChosenPlan]) -> list[str]:
    """Return the names of plans that every method has, and that no method rejects."""
    names = [{p.name for p in c.placement.plans if p.cost is not None and not p.why} for c in chosen.values()]
    return sorted(set.intersection(*names))


def _prefer(
    method: str, name: str, chosen: ChosenPlan, bases: Sequence[BaseProgram], context: PlacementContext
) -> ChosenPlan:
    """Return the choice of a candidate for a method; raises StopIteration if no base has it."""
    own = [base for base in bases if method in base.exported]
    candidate = next(c for base in own for c in _candidates(method, base, context) if c.name == name)
    fork = candidate.compiler.fork_for_way(method, candidate.way)
    fork.compile()
    plans = tuple(replace(row, against=None) for row in chosen.placement.plans)
    placement = replace(chosen.placement, chosen=name, plans=plans)
    return ChosenPlan(candidate, SavedPlan.of(fork.plans), candidate.options, placement)


def _size(choices: Mapping[str, ChosenPlan], context: PlacementContext) -> float:
    """Return the bytes of the program of all methods: of its file, or of the process that runs its first method."""
    first, plan = next(iter(choices.items()))
    edges = {name: chosen.candidate.compiler.methods[name].edge for name, chosen in choices.items()}
    compiler = plan.candidate.compiler.fork_with(edges)
    compiler.apply(merged_plan(choices), MEASURED)
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
    task = Task(name, candidates, settings.objective, budget, limits=context.limits)
    cache = _cache_of(name, bases, candidates, context)
    if (cached := cache.get(budget)) is not None:
        by_name, (candidate, plan, options, placement) = {c.name: c for c in candidates}, cached
        if candidate in by_name:
            return ChosenPlan(by_name[candidate], plan, options, placement)

    def progress(text: str) -> None:
        context.progress(f"{name}: {text}")

    if context.remote is not None:
        return context.remote.place(task, comparator, progress)
    chosen, placer = _measured_choice(task, context, comparator, progress, min(end, time.monotonic() + budget))
    not_tried = (*chosen.placement.not_tried, *context.planners[name].not_tried)
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


def _cache_of(
    name: str, bases: Sequence[BaseProgram], candidates: Sequence[Candidate], context: PlacementContext
) -> PlacementCache:
    """Return the cached choice for a method, empty without a cache, or if nobody can compare what it depends on."""
    if context.store is None or not {*context.identities, PORTABLE} >= {c.way for c in candidates}:
        return PlacementCache()
    try:
        return PlacementCache(context.store, _key(name, bases, candidates, context))
    except NotCacheable:  # the reference holds what nobody can compare
        return PlacementCache()


def _ordered_candidates(method: str, bases: Sequence[BaseProgram], context: PlacementContext) -> list[Candidate]:
    """Return the candidates in the order of compilation, which the budget may end.

    If all schemes are candidates, the first backend of each program comes before the second one of any.
    """
    own = [[*_candidates(method, base, context)] for base in bases]
    if not context.is_mixed:
        return [candidate for candidates in own for candidate in candidates]
    longest = max(map(len, own))
    return [c for number in range(longest) for candidates in own for c in candidates[number : number + 1]]


def _candidates(method: str, base: BaseProgram, context: PlacementContext) -> Iterator[Candidate]:
    """Yield the candidates of a base: its backends with each configured number of threads, and kernels alone."""
    for name, backend in base.candidates.items():
        counts = context.settings.threads if _takes_threads(backend) else ()
        for count in counts:
            yield Candidate(f"{name}, {count} threads", backend, base, {backend: {"threads": count}})
        if not counts:
            yield Candidate(name, backend, base)
    settings = context.settings
    if settings.objective == "latency" and base.quantization is None and settings.candidates is None:
        yield Candidate(PORTABLE, PORTABLE, base)


def _takes_threads(backend: str) -> bool:
    try:
        return "threads" in default_registry().runtime(backend).load_options
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
        repr(context.selection.rules),
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
