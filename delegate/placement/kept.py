"""Choices that outlast the process, under a key of all that they depend on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from delegate.cache.environment import host_features
from delegate.cache.store import Store
from delegate.edge.constants import raw_bytes
from delegate.edge.graphs import described
from delegate.edge.program import EdgeProgram
from delegate.errors import PartitionError
from delegate.measured import Placement
from delegate.partitioner.saved import SavedPlan
from delegate.placement.plans import Options, Placed
from delegate.program.segments import checksums

FORMAT = 1  # of what an entry holds
MOST_BYTES = 64 * 2**20


class KeptChoices:
    """What was chosen for methods.

    Args:
        store: where they lie.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def find(self, key: str, budget: float) -> tuple[str, SavedPlan, Options, Placement] | None:
        """The candidate, the plan, its options and the placement that are kept under a key.

        None where there are none, or where they were cut short by a smaller budget.
        """
        entry = self._store.get(key)
        if entry is None:
            return None
        try:
            about = entry.about
            placement = Placement.from_data(about["placement"])
            plan = SavedPlan.from_json(about["plan"])
            candidate, options = str(about["candidate"]), dict(about["options"])
            cut_short = bool(about["cut_short"])
        except (KeyError, TypeError, ValueError, PartitionError):  # whole, and not what this version writes
            self._store.remove(key)
            return None
        if cut_short and placement.budget < budget:
            return None
        return candidate, plan, options, replace(placement, spent=0.0)

    def keep(self, key: str, chosen: Placed, *, cut_short: bool) -> None:
        """Have this found under a key."""
        about = {
            "candidate": chosen.candidate.name,
            "plan": chosen.plan.to_json(),
            "options": {name: dict(given) for name, given in chosen.options.items()},
            "placement": asdict(chosen.placement),
            "cut_short": cut_short,
        }
        self._store.put(key, about, [])


class KeptCosts:
    """What stretches cost on candidates: a `survey.Known` on disk.

    Args:
        store: where they lie.
        identities: candidate -> its backend, options, versions, threads as text.
    """

    def __init__(self, store: Store, identities: Mapping[str, str]) -> None:
        self._store, self._identities = store, identities

    def find(self, candidates: Sequence[str], what: str) -> list[float] | None:
        """The seconds of rounds, where they are known."""
        entry = self._store.get(self._key(candidates, what))
        try:
            return None if entry is None else [float(s) for s in entry.about["seconds"]] or None
        except (KeyError, TypeError, ValueError):  # whole, and not what this version writes
            return None

    def keep(self, candidates: Sequence[str], what: str, seconds: Sequence[float]) -> None:
        """Have them found."""
        self._store.put(self._key(candidates, what), {"seconds": list(seconds)}, [])

    def _key(self, candidates: Sequence[str], what: str) -> str:
        parts = (FORMAT, host_features(), [self._identities[name] for name in candidates], what)
        return hashlib.sha256(repr(parts).encode()).hexdigest()


def choice_key(edges: Iterable[EdgeProgram], depends_on: Iterable[Any], *, by_weights: bool) -> str:
    """What a choice is kept under.

    Args:
        edges: the method in edge dialect, as it is and as candidates have it.
        depends_on: versions and options of the backends, settings: by their `repr`.
        by_weights: whether it depends on what the weights hold, and not on their shapes alone.
    """
    known = hashlib.sha256(repr((FORMAT, host_features(), *depends_on)).encode())
    for edge in edges:
        known.update(described(edge.graph_module))
        known.update(repr(sorted(edge.states.items())).encode())
        if by_weights:
            for digest in checksums([raw_bytes(value).data for value in edge.constants.values()]):
                known.update(digest)
    return known.hexdigest()
