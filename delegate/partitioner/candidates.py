"""Candidates: partitions with their regions, the compiled artifacts, and the nodes that libraries reject."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from torch.fx import Node

from delegate.backends.aot import PreprocessResult, Region, RegionFailed, RegionGivenUp, RegionRefused
from delegate.backends.bisection import failing_nodes
from delegate.backends.decomposition import DecompositionPolicy
from delegate.backends.region import structure
from delegate.backends.selected import SelectedBackend
from delegate.edge.graphs import META_ORIGIN, gc_paused
from delegate.edge.node import is_compute, op_name
from delegate.partitioner.artifact_cache import ArtifactCache, CachedResult
from delegate.partitioner.extraction import LoweredDelegate, RegionExtractor
from delegate.partitioner.plan import Partition, Plan
from delegate.verdict import Reason, Verdict

logger = logging.getLogger(__name__)

Compile = Callable[[Region], PreprocessResult]


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A partition of a plan and its region, decomposed for its backend, ready to be compiled and measured.

    Args:
        partition: of the plan.
        region: extracted from the plan's graph.
        origins: names of nodes of the region -> their origins among the nodes of the plan.
    """

    partition: Partition
    region: Region
    origins: Mapping[str, Node]

    def of_the_plan(self, reasons: Mapping[str, str]) -> dict[Node, str]:
        """Map reasons by name of a region's node to nodes of the plan; the first reason counts."""
        by_origin: dict[Node, str] = {}
        for node in self.region.calls:
            origin = self.origins.get(node.name)
            if origin is not None and node.name in reasons:
                why = reasons[node.name]
                by_origin.setdefault(origin, why if origin.name == node.name else f"in parts, {op_name(node)}: {why}")
        return by_origin


def candidates(
    plan: Plan, backends: Mapping[str, SelectedBackend], known: dict[Hashable, Candidate] | None = None
) -> list[Candidate]:
    """Return the partitions of a plan and of its nested plans, each with its region.

    Args:
        plan: of one method.
        backends: by name.
        known: candidates of earlier plans of the same graph, reused for equal partitions; the new ones are added.
    """
    result: list[Candidate] = []
    with gc_paused():
        for part in plan.walk():
            extractor = RegionExtractor(part)
            result += (_known(extractor, p, backends[p.backend].policy, known) for p in part.partitions)
    return result


def _known(
    extractor: RegionExtractor,
    partition: Partition,
    policy: DecompositionPolicy,
    known: dict[Hashable, Candidate] | None,
) -> Candidate:
    if known is None:
        return _candidate(extractor, partition, policy)
    patterns = tuple((p.name, p.nodes) for p in partition.patterns)
    key = (partition.backend, partition.nodes, partition.in_parts, patterns, extractor.boundary(partition))
    if key not in known:
        known[key] = _candidate(extractor, partition, policy)
    region = replace(known[key].region, name=partition.name)
    return replace(known[key], partition=partition, region=region)


def _candidate(extractor: RegionExtractor, partition: Partition, policy: DecompositionPolicy) -> Candidate:
    region = extractor.extract(partition, policy)
    own = {node.name: node for node in partition.nodes}
    names = {n.name: n.name if n.name in own else n.meta.get(META_ORIGIN) for n in region.calls}
    return Candidate(partition, region, {name: own[of] for name, of in names.items() if of in own})


def refused_parts(candidate: Candidate, backend: SelectedBackend) -> dict[Node, str]:
    """Return the nodes of the plan whose decomposed and simplified operators the backend refuses, with reasons.

    Raises DelegateError if the support check of the backend fails.
    """
    if not candidate.partition.in_parts:
        return {}
    claimed = {n for p in candidate.region.patterns for n in p.nodes}
    unclaimed = (n for n in candidate.region.calls if is_compute(n) and n not in claimed)
    refused = ((n, verdict) for n in unclaimed if not (verdict := backend.check(n)))
    return {candidate.origins[n.name]: _in_words(n, verdict) for n, verdict in refused if n.name in candidate.origins}


def _in_words(node: Node, verdict: Verdict) -> str:
    reason = verdict.reason or Reason.OPERATOR
    return f"in parts, {node.name}: {verdict.message or reason}"


@dataclass(slots=True)
class Artifacts:
    """The artifacts of regions, each region compiled once.

    Args:
        compilers: backend -> a function that compiles a region, with its options.
        cache: the artifacts of earlier lowerings; None without a cache.
        checks: backend -> the check of a cached artifact of a region, which raises if that is impossible.
    """

    # Results hold their regions, too: `structure` identifies constants by address, which must not be reused.

    compilers: Mapping[str, Compile]
    cache: ArtifactCache | None = None
    checks: Mapping[str, Callable[[Region, PreprocessResult], None]] = field(default_factory=dict)
    _results: dict[Hashable, tuple[CachedResult | RegionFailed, Region]] = field(default_factory=dict)

    def compile(self, backend: str, region: Region) -> PreprocessResult:
        """Return the artifact of a region.

        Raises:
            RegionRefused: the library rejects nodes of the region. If it does not name them, they are bisected.
            DelegateError: the backend failed.
        """
        try:
            return self.attempt(backend, region)
        except RegionFailed as failure:
            reasons = failing_nodes(region, failure.reason, partial(self.attempt, backend))
            raise RegionRefused(reasons) from failure

    def attempt(self, backend: str, region: Region) -> PreprocessResult:
        """Return the artifact like `compile`, but raise RegionFailed if the library does not name the nodes."""
        key = (backend, structure(region))
        if key not in self._results:
            self._results[key] = (self._get_or_compile(backend, region), region)
        result, _ = self._results[key]
        if isinstance(result, RegionRefused | RegionFailed):
            raise result
        return result

    @property
    def has_failed(self) -> bool:
        """Return if a region was refused because of a failure, which may be temporary."""
        return any(isinstance(result, RegionFailed | RegionGivenUp) for result, _ in self._results.values())

    def _get_or_compile(self, backend: str, region: Region) -> CachedResult | RegionFailed:
        """Return the cached result of a region, else compile the region and cache the result."""
        key = None if self.cache is None else self.cache.key(backend, region)
        cached = None
        if self.cache is not None and key is not None:
            cached = self.cache.get(key, partial(self._check, backend, region))
        if cached is not None:
            logger.info("%s is taken from the compile cache", region.name)
            return cached
        result: CachedResult
        try:
            result = self.compilers[backend](region)
        except (RegionFailed, RegionGivenUp) as failure:
            return failure
        except RegionRefused as refusal:
            result = refusal
        if self.cache is not None and key is not None:
            self.cache.put(key, result)
        return result

    def _check(self, backend: str, region: Region, result: CachedResult) -> None:
        """Raise an exception if a cached result of a region is impossible."""
        if not isinstance(result, RegionRefused):
            self.checks[backend](region, result)
        elif not result.reasons.keys() & {node.name for node in region.calls}:
            raise ValueError(f"it refuses nodes that {region.name} does not have")

    def delegate(self, candidate: Candidate) -> LoweredDelegate:
        """Compile a candidate; raises the same errors as `compile`."""
        backend = candidate.partition.backend
        return LoweredDelegate(backend, self.compile(backend, candidate.region), candidate.region)
