"""A cache of artifacts on disk, keyed by region and backend."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

from delegate.backend.aot import PreprocessResult, Region, RegionRefused
from delegate.backend.region import region_key
from delegate.cache.runtime.store import Entry, Store

FORMAT = 1  # of what an entry holds

CachedResult = PreprocessResult | RegionRefused


class Location(NamedTuple):
    """The location of an artifact: the key of its entry, and the checksums of its blob and data."""

    key: str
    digests: tuple[str, ...]


class ArtifactCache:
    """A cache of artifacts, keyed by everything that they depend on.

    Refusals that name nodes are cached, too, but failures are not, since they may be temporary.

    Args:
        store: the store of the entries; cached programs refer to them.
        identities: backend -> its identity; None for a backend that is not cached. See `SelectedBackend.identity`.
    """

    def __init__(self, store: Store, identities: Mapping[str, Callable[[], str | None]]) -> None:
        self.store, self._identities = store, identities
        self._known: dict[str, str | None] = {}
        self._locations: dict[int, tuple[Location, CachedResult]] = {}  # of results that were read or written

    def key(self, backend: str, region: Region) -> str | None:
        """Return the key of a region's artifact; None if it cannot be cached."""
        identity = self.identity(backend)
        content = None if identity is None else region_key(region)
        if content is None:
            return None
        return hashlib.sha256(repr((FORMAT, identity, content)).encode()).hexdigest()

    def identity(self, backend: str) -> str | None:
        """Return the text that all artifacts of a backend depend on; None if they cannot be cached."""
        if backend not in self._known:
            self._known[backend] = self._identities[backend]()
        return self._known[backend]

    def location_of(self, result: PreprocessResult) -> Location | None:
        """Return the location of an artifact; None if it is not cached."""
        return self._locations.get(id(result), (None, result))[0]

    def get(self, key: str, check: Callable[[CachedResult], None] = lambda result: None) -> CachedResult | None:
        """Return the result of a key; None if there is none, or `check` raises an exception for it."""

        def decode(entry: Entry) -> tuple[CachedResult, tuple[str, ...]]:
            result = _decode(entry)
            check(result)
            return result, entry.digests

        hit = self.store.read(key, decode)
        if hit is None:
            return None
        result, digests = hit
        self._locations[id(result)] = (Location(key, digests), result)
        return result

    def put(self, key: str, result: CachedResult) -> None:
        """Store a result under a key."""
        if isinstance(result, RegionRefused):
            self.store.put(key, {"refused": result.reasons}, [])
            return
        digests = self.store.put(key, *result.to_data())
        if digests is not None:
            self._locations[id(result)] = (Location(key, digests), result)


def _decode(entry: Entry) -> CachedResult:
    if "refused" in entry.about:
        return RegionRefused(entry.about["refused"])
    return PreprocessResult.of_data(entry.about, entry.parts)
