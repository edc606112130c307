"""Artifacts that outlast the process: what backends made of regions, on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

from delegate.backends.aot import PreprocessResult, Region, RegionRefused
from delegate.backends.keys import region_key
from delegate.cache.store import Entry, Store

FORMAT = 1  # of what an entry holds

Made = PreprocessResult | RegionRefused


class Place(NamedTuple):
    """Where an artifact lies: the key of its entry, and the checksums of its blob and data there."""

    key: str
    digests: tuple[str, ...]


class KeptArtifacts:
    """What backends made of regions, by all that it depends on.

    A refusal that names nodes is kept too. A fault is not: it may be of the moment.

    Args:
        store: where they lie, and programs that are made of them.
        identities: backend -> its options, versions and host as text; None where nothing of it is to be kept.
    """

    def __init__(self, store: Store, identities: Mapping[str, Callable[[], str | None]]) -> None:
        self.store, self._identities = store, identities
        self._known: dict[str, str | None] = {}
        self._places: dict[int, tuple[Place, Made]] = {}  # of what has come from there, or gone there

    def key(self, backend: str, region: Region) -> str | None:
        """What the artifact of a region is kept under; None where it is not to be kept."""
        identity = self.identity(backend)
        made_of = None if identity is None else region_key(region)
        if made_of is None:
            return None
        return hashlib.sha256(repr((FORMAT, backend, identity, made_of)).encode()).hexdigest()

    def identity(self, backend: str) -> str | None:
        """What all artifacts of a backend depend on; None where they are not to be kept."""
        if backend not in self._known:
            self._known[backend] = self._identities[backend]()
        return self._known[backend]

    def place_of(self, made: PreprocessResult) -> Place | None:
        """Where an artifact was found or kept; None where it is not kept."""
        return self._places.get(id(made), (None, made))[0]

    def find(self, key: str, check: Callable[[Made], None] = lambda made: None) -> Made | None:
        """Return the result under a key; None if there is none, or `check` raises an exception for it."""

        def sound(entry: Entry) -> tuple[Made, tuple[str, ...]]:
            made = _made(entry)
            check(made)
            return made, entry.digests

        found = self.store.read(key, sound)
        if found is None:
            return None
        made, digests = found
        self._places[id(made)] = (Place(key, digests), made)
        return made

    def keep(self, key: str, made: Made) -> None:
        """Have this found under a key."""
        if isinstance(made, RegionRefused):
            self.store.put(key, {"refused": made.reasons}, [])
            return
        about = {"compile_specs": made.compile_specs, "notes": list(made.notes), "space": made.space}
        digests = self.store.put(key, about, [made.blob, *made.data])
        if digests is not None:
            self._places[id(made)] = (Place(key, digests), made)


def _made(entry: Entry) -> Made:
    about = entry.about
    if "refused" in about:
        return RegionRefused(about["refused"])
    blob, *data = entry.parts
    return PreprocessResult(blob, about["compile_specs"], tuple(about["notes"]), about["space"], tuple(data))
