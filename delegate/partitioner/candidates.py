"""Candidates: regions in the forms of their backends, what the libraries made of them, and what they turned down."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from torch.fx import Node

from delegate.backends.aot import PreprocessResult, Region, RegionFailed, RegionGivenUp, RegionRefused
from delegate.backends.bisection import failing_nodes
from delegate.backends.structure import structure
from delegate.edge.graphs import META_ORIGIN
from delegate.edge.node import is_compute, op_name
from delegate.partitioner.capability import Capability
from delegate.partitioner.cut import Cutter, LoweredDelegate
from delegate.partitioner.forms import Forms
from delegate.partitioner.garbage import collection_paused
from delegate.partitioner.kept import KeptArtifacts, Made
from delegate.partitioner.plan import Partition, Plan
from delegate.verdict import Reason, Verdict

logger = logging.getLogger(__name__)

Compile = Callable[[Region], PreprocessResult]


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A partition of a plan and its region in the form of its backend: what can be compiled, and measured.

    Args:
        partition: of the plan.
        region: cut out of it.
        origins: names of nodes of the region -> the nodes of the plan that they come of.
    """

    partition: Partition
    region: Region
    origins: Mapping[str, Node]

    def of_the_plan(self, reasons: Mapping[str, str]) -> dict[Node, str]:
        """What is said of nodes of the region by name, of the plan's nodes that they come of: the first of each."""
        found: dict[Node, str] = {}
        for node in self.region.calls:
            origin = self.origins.get(node.name)
            if origin is not None and node.name in reasons:
                why = reasons[node.name]
                found.setdefault(origin, why if origin.name == node.name else f"in parts, {op_name(node)}: {why}")
        return found


def candidates(
    plan: Plan, capabilities: Mapping[str, Capability], known: dict[Hashable, Candidate] | None = None
) -> list[Candidate]:
    """The partitions of a plan and of those nested in it, each with its region.

    Args:
        plan: of one method.
        capabilities: name of a backend -> what it can do.
        known: of earlier plans of the same graph, and from now on of this one: a partition that is the same has the
            same region, constants that were folded included.
    """
    found: list[Candidate] = []
    with collection_paused():
        for part in plan.walk():
            cutter = Cutter(part)
            found += (_known(cutter, p, capabilities[p.backend].forms, known) for p in part.partitions)
    return found


def _known(cutter: Cutter, partition: Partition, forms: Forms, known: dict[Hashable, Candidate] | None) -> Candidate:
    if known is None:
        return _candidate(cutter, partition, forms)
    patterns = tuple((p.name, p.nodes) for p in partition.patterns)
    key = (partition.backend, partition.nodes, partition.in_parts, patterns, cutter.boundary(partition))
    if key not in known:
        known[key] = _candidate(cutter, partition, forms)
    region = replace(known[key].region, name=partition.name)
    return replace(known[key], partition=partition, region=region)


def _candidate(cutter: Cutter, partition: Partition, forms: Forms) -> Candidate:
    region = cutter.cut(partition, forms)
    own = {node.name: node for node in partition.nodes}
    names = {n.name: n.name if n.name in own else n.meta.get(META_ORIGIN) for n in region.calls}
    return Candidate(partition, region, {name: own[of] for name, of in names.items() if of in own})


def refused_parts(candidate: Candidate, capability: Capability) -> dict[Node, str]:
    """What the backend does not take after all of a region whose operators were taken apart and simplified.

    Gives the nodes of the plan with the reasons; raises DelegateError for a fault of the backend.
    """
    if not candidate.partition.in_parts:
        return {}
    claimed = {n for p in candidate.region.patterns for n in p.nodes}
    asked = (n for n in candidate.region.calls if is_compute(n) and n not in claimed)
    backend = candidate.partition.backend
    refused = ((n, verdict) for n in asked if not (verdict := capability.ask(backend, n)))
    return {candidate.origins[n.name]: _in_words(n, verdict) for n, verdict in refused if n.name in candidate.origins}


def _in_words(node: Node, verdict: Verdict) -> str:
    reason = verdict.reason or Reason.OPERATOR
    return f"in parts, {node.name}: {verdict.message or reason}"


@dataclass(slots=True)
class Artifacts:
    """What backends made of regions, each region compiled once.

    Args:
        compilers: backend -> what compiles a region, with its options.
        kept: what other lowerings made; None where nothing is kept.
        checks: backend -> the check of a cached artifact of a region, which raises if that is impossible.
    """

    # Regions are kept with what was made of them: `structure` tells constants by where they lie.

    compilers: Mapping[str, Compile]
    kept: KeptArtifacts | None = None
    checks: Mapping[str, Callable[[Region, PreprocessResult], None]] = field(default_factory=dict)
    _made: dict[Hashable, tuple[Made | RegionFailed, Region]] = field(default_factory=dict)

    def compile(self, backend: str, region: Region) -> PreprocessResult:
        """What a backend makes of a region.

        Raises:
            RegionRefused: its library turns down nodes of the region. Where it does not say which, halves are compiled.
            DelegateError: it failed.
        """
        try:
            return self.attempt(backend, region)
        except RegionFailed as failure:
            reasons = failing_nodes(region, failure.reason, partial(self.attempt, backend))
            raise RegionRefused(reasons) from failure

    def attempt(self, backend: str, region: Region) -> PreprocessResult:
        """The same, where a library that does not say which nodes it turns down is RegionFailed."""
        key = (backend, structure(region))
        if key not in self._made:
            self._made[key] = (self._make(backend, region), region)
        made, _ = self._made[key]
        if isinstance(made, RegionRefused | RegionFailed):
            raise made
        return made

    @property
    def has_failed(self) -> bool:
        """Whether any region was refused for a fault, which may be of the moment."""
        return any(isinstance(made, RegionFailed | RegionGivenUp) for made, _ in self._made.values())

    def _make(self, backend: str, region: Region) -> Made | RegionFailed:
        """What was kept, else what the backend makes of a region, which is kept then."""
        key = None if self.kept is None else self.kept.key(backend, region)
        found = None
        if self.kept is not None and key is not None:
            found = self.kept.find(key, partial(self._check, backend, region))
        if found is not None:
            logger.info("%s is taken from the compile cache", region.name)
            return found
        made: Made
        try:
            made = self.compilers[backend](region)
        except (RegionFailed, RegionGivenUp) as failure:
            return failure
        except RegionRefused as refusal:
            made = refusal
        if self.kept is not None and key is not None:
            self.kept.keep(key, made)
        return made

    def _check(self, backend: str, region: Region, made: Made) -> None:
        """Raise an exception if a cached result of a region is impossible."""
        if not isinstance(made, RegionRefused):
            self.checks[backend](region, made)
        elif not made.reasons.keys() & {node.name for node in region.calls}:
            raise ValueError(f"it refuses nodes that {region.name} does not have")

    def delegate(self, candidate: Candidate) -> LoweredDelegate:
        """A candidate with its artifact; raises as `compile` does."""
        backend = candidate.partition.backend
        return LoweredDelegate(backend, self.compile(backend, candidate.region), candidate.region)
