"""Place all methods of a program by measurement, as configured."""

from __future__ import annotations

import hashlib
import itertools
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
from delegate.edge.keys import NotCacheable, key_of_exported
from delegate.edge.program import EdgeProgram
from delegate.errors import BackendError
from delegate.partitioner.saved import SavedPlan
from delegate.placement.estimated import kernel_names
from delegate.placement.placer import Placer
from delegate.placement.plans import BaseProgram, Candidate, ChosenPlan, Progress, Task, make_trial
from delegate.placement.reference_comparator import ReferenceComparator, arrays_of
from delegate.placement.runtime.remote import Cluster, RemotePlacement
from delegate.placement.runtime.trials import ProcessRunnerFactory, TrialFailed, answer_timeout, seconds_until
from delegate.plugins import PORTABLE
from delegate.processes.limits import UNNAMED_LIMIT
from delegate.registry import default_registry
from delegate.selection import Selection
from delegate.verdict import Reason, no

_CLEARLY_LESS = 0.99  # of a size: memory varies by less between two processes
MEASURED = no(Reason.SLOWER, "as measured", "the table of plans shows by how much")


@dataclass(frozen=True, slots=True)
class ProgramPlacer:
    """The measurement of the candidates for all methods of a program.

    Args:
        bases: the original program first, then the candidates' programs, each with some of the methods.
        settings: The configuration's settings.
        selection: the backends.
        artifacts: the cache of artifacts, which identifies backends; None without a cache.
        samples: method -> calls to compare; the first one is measured.
        floats: method -> its float reference, if it has one. An accuracy bound compares results with it, as `verify`
            does. Without a bound the reference is the program that is lowered.
        not_tried: method -> the quantized programs that were left out, with the reason.
        store: Where earlier measurements are stored; None without a cache.
        progress: receives a short text for each step.
        begun: start of the budget, by `time.monotonic`.
        remote: measurements of another machine, instead of local ones.
        cluster: measures the programs; None: this machine does.
    """

    bases: Sequence[BaseProgram]
    settings: PlacementSection
    selection: Selection
    artifacts: ArtifactCache | None
    samples: Mapping[str, Sequence[Sample]]
    floats: Mapping[str, ExportedProgram]
    not_tried: Mapping[str, Sequence[str]]
    store: Store | None
    progress: Progress
    begun: float
    remote: RemotePlacement | None = None
    cluster: Cluster | None = None

    def place(self) -> dict[str, ChosenPlan]:
        """Return the choice by method.

        Raises:
            DelegateError: no candidate can be compiled.
        """
        methods = list(self.bases[0].exported)
        share = self.settings.budget / len(methods)
        ends = [self.begun + number * share for number in range(1, len(methods) + 1)]
        chosen = {name: self._place_method(name, share, end) for name, end in zip(methods, ends, strict=True)}
        if len(methods) > 1 and self.settings.objective in ("memory", "file size"):
            chosen = self._choose_for_all_methods(chosen)
        return chosen

    def _place_method(self, name: str, budget: float, end: float) -> ChosenPlan:
        """Return the choice for a method.

        Args:
            name: The method's name.
            budget: Its seconds.
            end: The end of the budget, by `time.monotonic`; earlier if earlier methods took longer.
        """
        candidates = self._order_candidates(name)
        comparator = self._create_comparator(name)
        limits = {place: UNNAMED_LIMIT for place, b in self.selection.backends.items() if b.is_unnamed_plugin}
        task = Task(name, candidates, self.settings.objective, budget, limits=limits)
        cache = self._cache(name, candidates)
        if (cached := cache.get(budget)) is not None:
            by_name, (candidate, plan, options, placement) = {c.name: c for c in candidates}, cached
            if candidate in by_name:
                return ChosenPlan(by_name[candidate], plan, options, placement)

        def progress(text: str) -> None:
            self.progress(f"{name}: {text}")

        if self.remote is not None:
            return self.remote.place(task, comparator, progress)
        chosen, placer = self._measure(task, comparator, progress, min(end, time.monotonic() + budget))
        not_tried = (*chosen.placement.not_tried, *self.not_tried[name])
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
            kernels = kernel_names(self.selection.kernels)
            nodes = None if self.cluster is None else self.cluster.create_factory(leaves, kernels, *limits)
            factory = nodes or ProcessRunnerFactory(Path(folder), leaves, kernels, *limits)
            placer = Placer(task, factory, comparator, progress, late=task.budget - seconds_until(end)())
            chosen = placer.place()
        if nodes is not None:
            chosen = replace(chosen, placement=replace(chosen.placement, machine="; ".join(nodes.machines)))
        return chosen, placer

    # -- candidates ---------------------------------------------------------------------------------------------------

    def _order_candidates(self, method: str) -> list[Candidate]:
        """Return the candidates in the order of compilation, which the budget may end.

        If all schemes are candidates, the first backend of each program comes before the second one of any.
        """
        own = [[*self._candidates(method, base)] for base in self._bases_of(method)]
        section = self.selection.quantization
        if section is None or not section.is_auto:
            return [candidate for candidates in own for candidate in candidates]
        return [c for row in itertools.zip_longest(*own) for c in row if c is not None]

    def _candidates(self, method: str, base: BaseProgram) -> Iterator[Candidate]:
        """Yield the candidates of a base: its backends with each configured number of threads, and kernels alone."""
        for name, backend in base.candidates.items():
            counts = self.settings.threads if _takes_threads(backend) else ()
            for count in counts:
                yield Candidate(f"{name}, {count} threads", backend, base, {backend: {"threads": count}})
            if not counts:
                yield Candidate(name, backend, base)
        settings = self.settings
        if settings.objective == "latency" and base.quantization is None and settings.candidates is None:
            yield Candidate(PORTABLE, PORTABLE, base)

    def _bases_of(self, method: str) -> list[BaseProgram]:
        return [base for base in self.bases if method in base.exported]

    def _reference(self, method: str) -> ExportedProgram:
        """Return the program that results of a method are compared with."""
        own = self.bases[0].exported[method]
        return own if self.settings.accuracy is None else self.floats.get(method, own)

    def _create_comparator(self, name: str) -> ReferenceComparator:
        """Return the comparison of a method with its reference."""
        edge: EdgeProgram = self.bases[0].compiler.methods[name].edge
        bound = None if self.settings.accuracy is None else self.settings.accuracy.sqnr_db
        is_drawn = is_random(edge.graph_module)
        return ReferenceComparator(self._reference(name), edge, self.samples[name], bound, is_random=is_drawn)

    # -- the cache ----------------------------------------------------------------------------------------------------

    def _cache(self, name: str, candidates: Sequence[Candidate]) -> PlacementCache:
        """Return the cached choice for a method, empty without a cache, or if nobody can compare what it depends on."""
        if self.store is None or self.artifacts is None:
            return PlacementCache()
        identities = {place: self.artifacts.identity(place) for place in self.selection.backends}
        known = {place: text for place, text in identities.items() if text is not None}
        if not {*known, PORTABLE} >= {c.way for c in candidates}:
            return PlacementCache()
        try:
            return PlacementCache(self.store, self._key(name, candidates, known))
        except NotCacheable:  # the reference holds what nobody can compare
            return PlacementCache()

    def _key(self, name: str, candidates: Sequence[Candidate], identities: Mapping[str, str]) -> str:
        settings = self.settings
        edges = [base.compiler.methods[name].edge for base in self._bases_of(name)]
        leaves = [
            (str(leaf.dtype), leaf.shape) if hasattr(leaf, "shape") else leaf
            for leaf in arrays_of(ReferenceComparator.leaves(self.samples[name])[0])
        ]
        depends_on = [
            name,  # plans name the graph that their nodes are of
            sorted(identities.items()),
            repr(self.selection.rules),
            kernel_names(self.selection.kernels),
            settings.model_copy(update={"budget": 1.0}),
            leaves,
            [(c.name, c.way) for c in candidates],
        ]
        if settings.accuracy is not None:
            depends_on += [_digest(self.samples[name]), key_of_exported({name: self._reference(name)})]
        return choice_key(edges, depends_on, by_weights=settings.accuracy is not None)

    # -- all methods --------------------------------------------------------------------------------------------------

    def _choose_for_all_methods(self, chosen: dict[str, ChosenPlan]) -> dict[str, ChosenPlan]:
        """Return the choices with which the program of all methods is smallest.

        Methods store a weight once only if it has the same scheme in all of them. So the choices of the methods compete
        with each candidate that all methods have.
        """
        is_elsewhere = self.remote is not None or self.cluster is not None
        if is_elsewhere or len({id(c.candidate.base) for c in chosen.values()}) == 1:
            return chosen
        best, least = chosen, self._size(chosen)
        names = [{p.name for p in c.placement.plans if p.cost is not None and not p.why} for c in chosen.values()]
        for name in sorted(set.intersection(*names)):
            if time.monotonic() > self.begun + self.settings.budget:
                break
            self.progress(f"compiling all methods for {name}")
            same = {method: self._prefer(method, name, plan) for method, plan in chosen.items()}
            size = self._size(same)
            best, least = (same, size) if size < _CLEARLY_LESS * least else (best, least)
        return best

    def _prefer(self, method: str, name: str, chosen: ChosenPlan) -> ChosenPlan:
        """Return the choice of a candidate for a method."""
        candidate = next(c for base in self._bases_of(method) for c in self._candidates(method, base) if c.name == name)
        fork = candidate.compiler.fork_for_way(method, candidate.way)
        fork.compile()
        plans = tuple(replace(row, against=None) for row in chosen.placement.plans)
        placement = replace(chosen.placement, chosen=name, plans=plans)
        return ChosenPlan(candidate, SavedPlan.of(fork.plans), candidate.options, placement)

    def _size(self, choices: Mapping[str, ChosenPlan]) -> float:
        """Return the bytes of the whole program: of its file, or of the process that runs its first method."""
        first, plan = next(iter(choices.items()))
        edges = {name: chosen.candidate.compiler.methods[name].edge for name, chosen in choices.items()}
        compiler = plan.candidate.compiler.fork_with(edges)
        compiler.apply(merge_plans(choices), MEASURED)
        program, _ = compiler.compile()
        task = Task(first, (), self.settings.objective, self.settings.budget)
        with tempfile.TemporaryDirectory(prefix="delegate-") as folder:
            leaves = arrays_of(ReferenceComparator.leaves(self.samples[first])[0])
            kernels = kernel_names(self.selection.kernels)
            factory = ProcessRunnerFactory(Path(folder), leaves, kernels, answer_timeout(self.settings.budget))
            runner = factory.start(make_trial(first, program, plan.options, task))
            try:
                runner.ready()
                return runner.measure_round().cost
            except TrialFailed:
                return math.inf
            finally:
                runner.close()


def merge_plans(choices: Mapping[str, ChosenPlan]) -> SavedPlan:
    """Return the plan of all methods, with unique names of partitions."""
    plans = [chosen.plan for chosen in choices.values()]
    partitions = tuple(replace(p, name=f"{i}_{p.name}") for i, plan in enumerate(plans) for p in plan.partitions)
    return SavedPlan(partitions, tuple(sorted({op for plan in plans for op in plan.whole or ()})))


def _takes_threads(backend: str) -> bool:
    try:
        return "threads" in default_registry().runtime(backend).load_options
    except BackendError:  # it cannot run here, which measuring will tell
        return False


def _digest(samples: Sequence[Sample]) -> str:
    digest = hashlib.sha256()
    for call in ReferenceComparator.leaves(samples):
        for leaf in arrays_of(call):
            digest.update(leaf.tobytes() if hasattr(leaf, "tobytes") else repr(leaf).encode())
    return digest.hexdigest()
