"""Plans composed of those that candidates have for the whole: each stretch as the plan of its candidate has it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from delegate.partitioner.saved import SavedPartition, SavedPlan
from delegate.placement.branches import Branch
from delegate.placement.costs import Stretch


def composed(
    plans: Mapping[str, SavedPlan], stretches: Sequence[Stretch], choice: Sequence[str], *, apart: Collection[int] = ()
) -> SavedPlan:
    """The plan of a choice. Stretches in a row on one candidate are partitioned as one.

    Args:
        plans: candidate -> its plan of the whole method, all of the same graph.
        stretches: of the method.
        choice: a candidate for each of them.
        apart: numbers of stretches that are partitioned alone.
    """
    runs: list[tuple[str, list[Stretch]]] = []
    for number, (stretch, candidate) in enumerate(zip(stretches, choice, strict=True)):
        if runs and runs[-1][0] == candidate and not {number - 1, number}.intersection(apart):
            runs[-1][1].append(stretch)
        else:
            runs.append((candidate, [stretch]))
    partitions = [
        part for number, (candidate, members) in enumerate(runs) for part in _part(plans[candidate], members, number)
    ]
    whole = {op for candidate in choice for op in plans[candidate].whole or ()}
    return SavedPlan(tuple(partitions), tuple(sorted(whole)))


def beside(plans: Mapping[str, SavedPlan], branches: Sequence[Branch], choice: Sequence[str], rest: str) -> SavedPlan:
    """The plan that has branches run at the same time; one that no partition is in runs nothing beside the others.

    Args:
        plans: candidate -> its plan of the whole method, all of the same graph.
        branches: of the method.
        choice: a candidate for each of them.
        rest: the candidate for what is in none.
    """
    found: list[SavedPartition] = []
    groups: list[tuple[str, ...]] = []
    for number, (branch, candidate) in enumerate(zip(branches, choice, strict=True)):
        nodes = {(branch.graph, node) for node in branch.nodes}
        own = [p for part in plans[candidate].partitions if (p := _within(part, nodes, f"at_{number}")) is not None]
        found += own
        groups += [tuple(p.name for p in own)] if own else []
    inside = {(branch.graph, node) for branch in branches for node in branch.nodes}
    around = {key for key in plans[rest].places() if key not in inside}
    found += [p for part in plans[rest].partitions if (p := _within(part, around, "around")) is not None]
    whole = {op for candidate in (*choice, rest) for op in plans[candidate].whole or ()}
    return SavedPlan(tuple(found), tuple(sorted(whole)), (tuple(groups),) if len(groups) > 1 else ())


def _within(partition: SavedPartition, nodes: Collection[tuple[str, str]], suffix: str) -> SavedPartition | None:
    """What of a partition is among some nodes."""
    own = tuple(n for n in partition.nodes if (partition.graph, n) in nodes)
    return replace(partition, name=f"{partition.name}_{suffix}", nodes=own) if own else None


def _part(plan: SavedPlan, stretches: Sequence[Stretch], number: int) -> list[SavedPartition]:
    """What a plan says of some stretches. `number` tells its partitions from those of other parts."""
    own = {(s.graph, node) for s in stretches for node in s.nodes}
    inner = tuple(name for s in stretches for name in s.graphs)
    found = []
    for partition in plan.partitions:
        within = any(partition.graph == name or partition.graph.startswith(f"{name}.") for name in inner)
        nodes = tuple(n for n in partition.nodes if within or (partition.graph, n) in own)
        if nodes:
            name = f"{partition.name}_of_{number}"
            found.append(SavedPartition(partition.graph, name, partition.backend, nodes))
    return found
