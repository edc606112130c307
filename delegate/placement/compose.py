"""Combine the plans of candidates: each segment has the partitions of its candidate's plan."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from delegate.partitioner.saved import SavedPartition, SavedPlan
from delegate.placement.branches import Branch
from delegate.placement.runtime.costs import Segment


def compose_segments(
    plans: Mapping[str, SavedPlan],
    segments: Sequence[Segment],
    choice: Sequence[str],
    *,
    separate: Collection[int] = (),
) -> SavedPlan:
    """Return the plan of a choice. Consecutive segments of one candidate share partitions.

    Args:
        plans: candidate -> its plan of the method, all of the same graph.
        segments: of the method.
        choice: a candidate for each segment.
        separate: numbers of segments with partitions of their own.
    """
    runs: list[tuple[str, list[Segment]]] = []
    for number, (segment, candidate) in enumerate(zip(segments, choice, strict=True)):
        if runs and runs[-1][0] == candidate and not {number - 1, number}.intersection(separate):
            runs[-1][1].append(segment)
        else:
            runs.append((candidate, [segment]))
    partitions = [
        part
        for number, (candidate, members) in enumerate(runs)
        for part in _restrict(plans[candidate], members, number)
    ]
    preserved = {op for candidate in choice for op in plans[candidate].whole or ()}
    return SavedPlan(tuple(partitions), tuple(sorted(preserved)))


def compose_branches(
    plans: Mapping[str, SavedPlan], branches: Sequence[Branch], choice: Sequence[str], rest: str
) -> SavedPlan:
    """Return the plan with parallel branches. A branch without partitions does not run in parallel.

    Args:
        plans: candidate -> its plan of the method, all of the same graph.
        branches: of the method.
        choice: a candidate for each branch.
        rest: the candidate of all other nodes.
    """
    partitions: list[SavedPartition] = []
    groups: list[tuple[str, ...]] = []
    for number, (branch, candidate) in enumerate(zip(branches, choice, strict=True)):
        nodes = {(branch.graph, node) for node in branch.nodes}
        own = [p for part in plans[candidate].partitions if (p := _intersect(part, nodes, f"at_{number}")) is not None]
        partitions += own
        groups += [tuple(p.name for p in own)] if own else []
    inside = {(branch.graph, node) for branch in branches for node in branch.nodes}
    outside = {key for key in plans[rest].places() if key not in inside}
    partitions += [p for part in plans[rest].partitions if (p := _intersect(part, outside, "around")) is not None]
    preserved = {op for candidate in (*choice, rest) for op in plans[candidate].whole or ()}
    return SavedPlan(tuple(partitions), tuple(sorted(preserved)), (tuple(groups),) if len(groups) > 1 else ())


def _intersect(partition: SavedPartition, nodes: Collection[tuple[str, str]], suffix: str) -> SavedPartition | None:
    """Return the part of a partition with these nodes, or None if there is none."""
    own = tuple(n for n in partition.nodes if (partition.graph, n) in nodes)
    return replace(partition, name=f"{partition.name}_{suffix}", nodes=own) if own else None


def _restrict(plan: SavedPlan, segments: Sequence[Segment], number: int) -> list[SavedPartition]:
    """Return the partitions of a plan in some segments. `number` makes their names unique."""
    own = {(s.graph, node) for s in segments for node in s.nodes}
    inner = tuple(name for s in segments for name in s.graphs)
    partitions = []
    for partition in plan.partitions:
        within = any(partition.graph == name or partition.graph.startswith(f"{name}.") for name in inner)
        nodes = tuple(n for n in partition.nodes if within or (partition.graph, n) in own)
        if nodes:
            name = f"{partition.name}_of_{number}"
            partitions.append(SavedPartition(partition.graph, name, partition.backend, nodes))
    return partitions
