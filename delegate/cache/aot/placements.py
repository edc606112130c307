"""A cache on disk for choices and costs, keyed by everything they depend on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from delegate.cache.runtime.environment import host_features
from delegate.cache.runtime.folder import CHOICES
from delegate.cache.runtime.store import Entry, Store
from delegate.common.field_checks import flag, mapping, text
from delegate.edge.build import raw_bytes
from delegate.edge.graphs import describe_graph
from delegate.edge.program import EdgeProgram
from delegate.partitioner.saved import SavedPlan
from delegate.program.segments import checksums
from delegate.report.measured import Placement

if TYPE_CHECKING:
    from delegate.placement.plans import ChosenPlan
    from delegate.placement.strategy import Options

FORMAT = 1  # of an entry
MOST_BYTES = 64 * 2**20


def open_choices(folder: Path | None) -> Store | None:
    """Return the store of choices and costs in the folder of the cache; None without a cache."""
    return None if folder is None else Store(folder / CHOICES, MOST_BYTES)


@dataclass(frozen=True, slots=True)
class PlacementCache:
    """The cached choice for a method.

    Args:
        store: has the entry; None without a cache.
        key: The entry's key; see `choice_key`.
    """

    store: Store | None = None
    key: str = ""

    def get(self, budget: float) -> tuple[str, SavedPlan, Options, Placement] | None:
        """Return the candidate, plan, options and placement.

        Return None without an entry, or if a smaller budget cut the entry short.
        """
        entry = None if self.store is None else self.store.read(self.key, _choice)
        if entry is None:
            return None
        candidate, plan, options, placement, cut_short = entry
        if cut_short and placement.budget < budget:
            return None
        return candidate, plan, options, replace(placement, spent=0.0)

    def put(self, chosen: ChosenPlan, *, cut_short: bool) -> None:
        """Store a choice."""
        about = {
            "candidate": chosen.candidate.name,
            "plan": chosen.plan.to_json(),
            "options": {name: dict(values) for name, values in chosen.options.items()},
            "placement": asdict(chosen.placement),
            "cut_short": cut_short,
        }
        if self.store is not None:
            self.store.put(self.key, about, [])


def _choice(entry: Entry) -> tuple[str, SavedPlan, Options, Placement, bool]:
    about = entry.about
    options = mapping(about, "options")
    return (
        text(about, "candidate"),
        SavedPlan.from_json(text(about, "plan")),
        {name: dict(mapping(options, name)) for name in options},
        Placement.from_data(mapping(about, "placement")),
        flag(about, "cut_short"),
    )


def choice_key(edges: Iterable[EdgeProgram], depends_on: Iterable[Any], *, by_weights: bool) -> str:
    """Return the key of a choice.

    Args:
        edges: the method in edge dialect, for each base program.
        depends_on: versions and options of the backends, settings: by their `repr`.
        by_weights: True if the choice depends on weight values, not only on their shapes.
    """
    digest = hashlib.sha256(repr((FORMAT, host_features(), *depends_on)).encode())
    for edge in edges:
        digest.update(describe_graph(edge.graph_module))
        digest.update(repr(sorted(edge.states.items())).encode())
        if by_weights:
            for checksum in checksums([raw_bytes(value).data for value in edge.constants.values()]):
                digest.update(checksum)
    return digest.hexdigest()
