"""The artifacts of regions: each region is compiled once in a lowering, or its artifact comes from the cache."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import partial

from delegate.backend.aot import PreprocessResult, Region, RegionFailed, RegionGivenUp, RegionRefused
from delegate.backend.guilty import failing_nodes
from delegate.backend.region import content_of
from delegate.cache.aot.artifacts import ArtifactCache, CachedResult
from delegate.events import emit, is_heard
from delegate.events.kinds import Compiled
from delegate.partitioner.extraction import LoweredDelegate, PlannedRegion
from delegate.plugins import one_line

logger = logging.getLogger(__name__)

Compile = Callable[[Region], PreprocessResult]


@dataclass(slots=True)
class Artifacts:
    """The artifacts of regions, each region compiled once.

    Args:
        compilers: backend -> a function that compiles a region, with its options.
        cache: the artifacts of earlier lowerings; None without a cache.
        checks: backend -> the check of a cached artifact of a region, which raises if that is impossible.
    """

    # Results hold their regions, too: `content_of` identifies constants by address, which must not be reused.

    compilers: Mapping[str, Compile]
    cache: ArtifactCache | None = None
    checks: Mapping[str, Callable[[Region, PreprocessResult], None]] = field(default_factory=dict)
    _results: dict[Hashable, tuple[CachedResult | RegionFailed, Region]] = field(default_factory=dict)

    def compile(self, backend: str, region: Region) -> PreprocessResult:
        """Return the artifact of a region.

        Raises:
            RegionRefused: the library rejects nodes of the region, and if it does not name them, they are bisected.
            DelegateError: the backend failed.
        """
        try:
            return self.attempt(backend, region)
        except RegionFailed as failure:
            reasons = failing_nodes(region, failure.reason, partial(self.attempt, backend))
            raise RegionRefused(reasons) from failure

    def attempt(self, backend: str, region: Region) -> PreprocessResult:
        """Return the artifact like `compile`, but raise RegionFailed if the library does not name the nodes."""
        key = (backend, content_of(region))
        if key not in self._results:
            start = time.perf_counter_ns()
            result, is_cached = self._get_or_compile(backend, region)
            self._results[key] = result, region
            if is_heard():
                emit(_describe_compilation(backend, region, result, is_cached, start))
        result, _ = self._results[key]
        if isinstance(result, RegionRefused | RegionFailed):
            raise result
        return result

    @property
    def has_failed(self) -> bool:
        """Return if a region was refused because of a failure, which may be temporary."""
        return any(isinstance(result, RegionFailed | RegionGivenUp) for result, _ in self._results.values())

    def _get_or_compile(self, backend: str, region: Region) -> tuple[CachedResult | RegionFailed, bool]:
        """Return the result of a region, and True if it is from the cache; cache it otherwise."""
        key = None if self.cache is None else self.cache.key(backend, region)
        cached = None
        if self.cache is not None and key is not None:
            cached = self.cache.get(key, partial(self._check, backend, region))
        if cached is not None:
            logger.info("%s is taken from the compile cache", region.name)
            return cached, True
        result: CachedResult
        try:
            result = self.compilers[backend](region)
        except (RegionFailed, RegionGivenUp) as failure:
            return failure, False
        except RegionRefused as refusal:
            result = refusal
        if self.cache is not None and key is not None:
            self.cache.put(key, result)
        return result, False

    def _check(self, backend: str, region: Region, result: CachedResult) -> None:
        """Raise an exception if a cached result of a region is impossible."""
        if not isinstance(result, RegionRefused):
            self.checks[backend](region, result)
        elif not result.reasons.keys() & {node.name for node in region.calls}:
            raise ValueError(f"it refuses nodes that {region.name} does not have")

    def delegate(self, planned: PlannedRegion) -> LoweredDelegate:
        """Compile the region of a partition; raises the same errors as `compile`."""
        backend = planned.partition.backend
        return LoweredDelegate(backend, self.compile(backend, planned.region), planned.region)


def _describe_compilation(
    backend: str, region: Region, result: CachedResult | RegionFailed, is_cached: bool, start: int
) -> Compiled:
    size, refusal = 0, ""
    if isinstance(result, PreprocessResult):
        size = sum(memoryview(part).nbytes for part in (result.blob, *result.data))
    else:
        refusal = one_line(result)
    duration = time.perf_counter_ns() - start
    return Compiled(backend, region.name, len(region.calls), size, is_cached, refusal, start, duration)
