"""Scheduling: orders an acyclic graph so that the units that one backend takes form few contiguous runs."""

from __future__ import annotations

import sys
from collections.abc import Container, Sequence
from dataclasses import dataclass

_NO_USER = sys.maxsize


@dataclass(frozen=True, slots=True)
class Run:
    """Units that stand together in the schedule.

    Args:
        taken: whether they are the backend's, and so a partition.
        units: indices in ascending order, which is a topological order and keeps lifetimes as the author wrote them.
    """

    taken: bool
    units: tuple[int, ...]


def schedule(taken: Container[int], predecessors: Sequence[Sequence[int]]) -> list[Run]:
    """Runs that hold every unit once, each after all its predecessors; by turns the backend's and the others'.

    Every run takes all that can be reached without leaving its kind, so it is maximal, and being contiguous it is
    convex. Their number is the least that any valid order has: a unit's run is the greatest number of changes between
    the two kinds on a path to it.

    A unit without predecessors, such as the decoding of a quantized weight, waits for its first user if that is of its
    kind: else all of them would stand in the first run.

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
