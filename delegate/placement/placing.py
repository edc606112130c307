"""Places of all methods of a program by measuring, as a configuration asks for it."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch.export import ExportedProgram

from delegate.accuracy.samples import Sample
from delegate.cache.store import Store
from delegate.config import Placing
from delegate.edge.graphs import is_random
from delegate.edge.keys import NoKey, exported_key
from delegate.errors import BackendError, ConfigError, did_you_mean
from delegate.measured import Placement
from delegate.partitioner.saved import SavedPlan
from delegate.placement.alternatives import Alternatives, Compiler
from delegate.placement.cluster import Cluster, ClusterBench
from delegate.placement.examining import Examination, arrays_of
from delegate.placement.kept import KeptChoices, KeptCosts, choice_key
from delegate.placement.plans import Candidate, Options, Placed, Progress, Task
from delegate.placement.policy import Placer
from delegate.placement.replaying import Elsewhere
from delegate.placement.trials import ProcessBench, patience, until
from delegate.registry import Registry
from delegate.verdict import Reason, no

MEASURED = no(Reason.SLOWER, "as measured", "the table of plans says by how much")


@dataclass(frozen=True, slots=True)
class Base:
    """A program that candidates are of: as it was given, or quantized.

    Args:
        compiler: that has its methods.
        exported: the methods.
        candidates: name -> backend.
        quantization: the section of the configuration that it was quantized by; None where it was not.
    """

    compiler: Compiler
    exported: Mapping[str, ExportedProgram]
    candidates: Mapping[str, str]
    quantization: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What all methods have in common.

    Args:
        settings: of the configuration.
        samples: method -> calls that results are compared on; the first is measured.
        floats: method -> its float reference, of methods that have one. A bound is on the results against this, as that
            of `verify` is; without a bound, results are compared with the program that is lowered.
        registry: where backends are looked up.
        kernels: names of the libraries to run on.
        identities: backend -> versions and options as text; what is not there has nothing kept.
        rules: of the configuration as text.
        store: of what was measured earlier; None where nothing is to be kept.
        progress: is told in a few words what is done.
        begun: when the budget began, by `time.monotonic`.
        not_tried: candidates that there was no time for, and why.
        elsewhere: what takes the place of measuring here, if anything does.
        cluster: to measure on; None: this machine.
    """

    settings: Placing
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
    elsewhere: Elsewhere | None = None
    cluster: Cluster | None = None

    def reference(self, method: str, own: ExportedProgram) -> ExportedProgram:
        """Return the program that results of a method are compared with.

        Args:
            method: its name.
            own: the program that is lowered.
        """
        return own if self.settings.accuracy is None else self.floats.get(method, own)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was chosen for a program.

    Args:
        base: that it is compiled from.
        plan: of all methods.
        options: to be given to partitions, by name of a backend.
        placements: by method, for the report.
    """

    base: Base
    plan: SavedPlan
    options: Options = field(default_factory=dict)
    placements: tuple[Placement, ...] = ()


def placed(bases: Sequence[Base], given: Circumstances) -> Outcome:
    """Measure, and choose.

    Args:
        bases: the program as it was given first; its methods have been taken by their compilers.
        given: all else.

    Raises:
        ConfigError: quantized candidates are asked for, and the program has several methods.
        DelegateError: no candidate can be compiled.
    """
    first = bases[0]
    methods = list(first.exported)
    if len(methods) > 1 and len(bases) > 1:
        what = f"candidates that are quantized are for one method, and the program has {len(methods)}"
        raise ConfigError(what, where="placement.candidates", remedy="lower the methods one by one, or quantize first")
    share = given.settings.budget / len(methods)
    found = [_placed(name, bases, given, share, given.begun + (i + 1) * share) for i, name in enumerate(methods)]
    home = {c.name: base for base in bases for c in _candidates(methods[0], base, given)}
    options = {name: chosen for one in found for name, chosen in one.options.items()}
    return Outcome(
        home[found[0].candidate.name],
        _joined([one.plan for one in found]),
        options,
        tuple(one.placement for one in found),
    )


def _joined(plans: Sequence[SavedPlan]) -> SavedPlan:
    """The plans of several methods as one, whose partitions have names of their own."""
    partitions = tuple(replace(p, name=f"{i}_{p.name}") for i, plan in enumerate(plans) for p in plan.partitions)
    together = tuple(
        tuple(tuple(f"{i}_{name}" for name in branch) for branch in group)
        for i, plan in enumerate(plans)
        for group in plan.together
    )
    return SavedPlan(partitions, tuple(sorted({op for plan in plans for op in plan.whole or ()})), together)


def _placed(name: str, bases: Sequence[Base], given: Circumstances, budget: float, end: float) -> Placed:
    """What is chosen for a method.

    Args:
        name: of the method.
        bases, given: see `placed`.
        budget: its share.
        end: by `time.monotonic`; sooner than by its share where those before it took longer.
    """
    settings = given.settings
    candidates = [c for base in bases for c in _candidates(name, base, given)]
    task = Task(name, candidates, settings.objective, budget, os.cpu_count() or 1)
    kept = _Kept.of(name, bases, candidates, given)
    found = kept.choice(candidates, budget)
    if found is not None:
        return found
    ep, edge = given.reference(name, bases[0].exported[name]), candidates[0].lowering.edge()
    bound = None if settings.accuracy is None else settings.accuracy.sqnr_db
    examine = Examination(ep, edge, given.samples[name], bound, is_random=is_random(edge.graph_module))

    def progress(text: str) -> None:
        given.progress(f"{name}: {text}")

    if given.elsewhere is not None:
        return given.elsewhere.place(task, examine, progress)
    with tempfile.TemporaryDirectory(prefix="delegate-") as folder:
        end = min(end, time.monotonic() + budget)
        bench = _bench(given, Path(folder), arrays_of(examine.calls[0]), budget, end)
        placer = Placer(task, bench, examine, kept.costs, progress, late=budget - until(end)())
        made = placer.place()
    if isinstance(bench, ClusterBench):
        made = replace(made, placement=replace(made.placement, machine="; ".join(bench.machines)))
    made = replace(made, placement=replace(made.placement, not_tried=(*made.placement.not_tried, *given.not_tried)))
    if not placer.was_disturbed:
        kept.keep(made, cut_short=placer.was_cut_short)
    return made


@dataclass(frozen=True, slots=True)
class _Kept:
    """What earlier runs measured of a method; nothing where nothing may be kept."""

    choices: KeptChoices | None = None
    key: str = ""
    costs: KeptCosts | None = None

    @classmethod
    def of(cls, name: str, bases: Sequence[Base], candidates: Sequence[Candidate], given: Circumstances) -> _Kept:
        if given.store is None or not given.identities.keys() >= {c.backend for c in candidates}:
            return cls()
        own = {c.name: repr((given.identities[c.backend], c.options, given.kernels)) for c in candidates}
        costs = KeptCosts(given.store, own)
        try:
            return cls(KeptChoices(given.store), _key(name, bases, candidates, given), costs)
        except NoKey:  # the reference holds what nobody can compare
            return cls(costs=costs)

    def choice(self, candidates: Sequence[Candidate], budget: float) -> Placed | None:
        found = None if self.choices is None else self.choices.find(self.key, budget)
        known = {c.name: c for c in candidates}
        if found is None or found[0] not in known:
            return None
        candidate, plan, options, placement = found
        return Placed(known[candidate], plan, options, placement)

    def keep(self, made: Placed, *, cut_short: bool) -> None:
        if self.choices is not None:
            self.choices.keep(self.key, made, cut_short=cut_short)


def _bench(
    given: Circumstances, folder: Path, leaves: Sequence[Any], budget: float, end: float
) -> ProcessBench | ClusterBench:
    given_to_all = (leaves, given.kernels, patience(budget), until(end))
    return ProcessBench(folder, *given_to_all) if given.cluster is None else ClusterBench(*given_to_all)


def _candidates(method: str, base: Base, given: Circumstances) -> Iterator[Candidate]:
    """The candidates of a base, also with other numbers of threads where these are to be tried."""
    lowering = Alternatives(base.compiler, method)
    for name, backend in base.candidates.items():
        counts = given.settings.threads if _takes_threads(backend, given.registry) else ()
        for count in counts:
            yield Candidate(f"{name}, {count} threads", backend, lowering, {backend: {"threads": count}})
        if not counts:
            yield Candidate(name, backend, lowering)


def _takes_threads(backend: str, registry: Registry) -> bool:
    try:
        return "threads" in registry.runtime(backend).load_options
    except BackendError:  # it cannot run here, which measuring will tell
        return False


def _key(name: str, bases: Sequence[Base], candidates: Sequence[Candidate], given: Circumstances) -> str:
    settings = given.settings
    edges = [base.compiler.methods[name].edge for base in bases]
    leaves = [
        (str(leaf.dtype), leaf.shape) if hasattr(leaf, "shape") else leaf
        for leaf in arrays_of(Examination.leaves(given.samples[name])[0])
    ]
    asked = settings.model_copy(update={"budget": 1.0})
    depends_on = [
        name,  # plans name the graph that their nodes are of
        sorted(given.identities.items()),
        given.rules,
        given.kernels,
        asked,
        leaves,
        [(c.name, c.backend) for c in candidates],
    ]
    if settings.accuracy is not None:
        reference = given.reference(name, bases[0].exported[name])
        depends_on += [_digest(given.samples[name]), exported_key({name: reference})]
    return choice_key(edges, depends_on, by_weights=settings.accuracy is not None)


def _digest(samples: Sequence[Sample]) -> str:
    known = hashlib.sha256()
    for call in Examination.leaves(samples):
        for leaf in arrays_of(call):
            known.update(leaf.tobytes() if hasattr(leaf, "tobytes") else repr(leaf).encode())
    return known.hexdigest()


def named_candidates(settings: Placing, backends: Sequence[str]) -> dict[str, str]:
    """Those of the program as it is: name -> backend.

    Raises:
        ConfigError: one is not among the backends that are used.
    """
    if settings.candidates is None:
        return {name: name for name in backends}
    for candidate in settings.candidates:
        if candidate.name not in backends:
            what = f"candidate {candidate.name!r} is not among the backends: {', '.join(backends) or 'there are none'}"
            raise ConfigError(what, where="placement.candidates", remedy=did_you_mean(candidate.name, backends))
    return {c.name: c.name for c in settings.candidates if c.quantization is None}
