"""Artifacts that outlast the process: what backends made of regions, on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping

from delegate.backends.aot import PreprocessResult, Region, RegionRefused
from delegate.backends.keys import region_key
from delegate.cache.store import Entry, Store

FORMAT = 1  # of what an entry holds

Made = PreprocessResult | RegionRefused


class KeptArtifacts:
    """What backends made of regions, by all that it depends on.

    A refusal that names nodes is kept too. A fault is not: it may be of the moment.

    Args:
        store: where they lie.
        identities: backend -> its options, versions and host as text; None where nothing of it is to be kept.
    """

    def __init__(self, store: Store, identities: Mapping[str, Callable[[], str | None]]) -> None:
        self._store, self._identities = store, identities
        self._known: dict[str, str | None] = {}

    def identity(self, backend: str) -> str | None:
        """Options, versions and host of a backend as text; None where nothing of it is to be kept."""
        if backend not in self._known:
            self._known[backend] = self._identities[backend]()
        return self._known[backend]

    def key(self, backend: str, region: Region) -> str | None:
        """What the artifact of a region is kept under; None where it is not to be kept."""
        identity = self.identity(backend)
        made_of = None if identity is None else region_key(region)
        if made_of is None:
            return None
        return hashlib.sha256(repr((FORMAT, backend, identity, made_of)).encode()).hexdigest()

    def find(self, key: str) -> Made | None:
        """What is kept under a key, if anything is."""
        entry = self._store.get(key)
        try:
            return None if entry is None else _made(entry)
        except (KeyError, TypeError, ValueError):  # whole, and not what this version writes
            self._store.remove(key)
            return None

    def keep(self, key: str, made: Made) -> None:
        """Have this found under a key."""
        if isinstance(made, RegionRefused):
            self._store.put(key, {"refused": made.reasons}, [])
            return
        about = {"compile_specs": made.compile_specs, "notes": list(made.notes), "space": made.space}
        self._store.put(key, about, [made.blob, *made.data])


def _made(entry: Entry) -> Made:
    about = entry.about
    if "refused" in about:
        return RegionRefused(about["refused"])
    blob, *data = entry.parts
    return PreprocessResult(blob, about["compile_specs"], tuple(about["notes"]), about["space"], tuple(data))
