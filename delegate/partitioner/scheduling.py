"""Scheduling: orders an acyclic graph so that the units that one backend takes form few contiguous runs."""

from __future__ import annotations

import sys
from collections.abc import Container, Sequence
from dataclasses import dataclass

_NO_USER = sys.maxsize


@dataclass(frozen=True, slots=True)
class Run:
    """Adjacent units of the schedule.

    Args:
        taken: True for units of the backend, which form a partition.
        units: indices in ascending order, which is a topological order and preserves the lifetimes of the model.
    """

    taken: bool
    units: tuple[int, ...]


def schedule(taken: Container[int], predecessors: Sequence[Sequence[int]]) -> list[Run]:
    """Order the units in runs, alternately of the backend and of others; each unit comes after its predecessors.

    Every run has all units that can be reached without a unit of the other kind, so it is maximal. Since it is
    contiguous, it is convex. No valid order has fewer runs: the run of a unit is the largest number of changes of kind
    on a path to it.

    A unit without predecessors joins the run of its first user, if both are of the same kind. An example is the
    decoding of a quantized weight. Otherwise all such units would be in the first run.

    Args:
        taken: the units that the backend takes.
        predecessors: per unit, indices that are all smaller than its own.

    Takes O(units + edges).
    """
    run_of: list[int] = []  # those of the backend have odd numbers
    first_user: dict[int, int] = {}  # of units without predecessors
    for unit, sources in enumerate(predecessors):
        run = max([run_of[source] for source in sources]) if sources else 0
        run_of.append(run + ((unit in taken) ^ (run & 1)))
        if not sources:
            first_user[unit] = _NO_USER
    for unit, sources in enumerate(predecessors):
        for source in sources:
            if source in first_user:
                first_user[source] = min(first_user[source], run_of[unit])
    for unit, run in first_user.items():
        if run != _NO_USER and (run & 1) == (run_of[unit] & 1):
            run_of[unit] = run
    members: list[list[int]] = [[] for _ in range(max(run_of, default=-1) + 1)]
    for unit, run in enumerate(run_of):
        members[run].append(unit)
    return [Run(bool(run & 1), tuple(units)) for run, units in enumerate(members) if units]
