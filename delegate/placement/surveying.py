"""From programs that were watched to what stretches and borders cost."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from delegate.partitioner.saved import SavedPlan
from delegate.placement.costs import Record, Stretch

Rounds = list[list[float]]  # per stretch, seconds of each round


def steps_by_stretch(record: Record, stretches: Sequence[Stretch], plan: SavedPlan) -> Rounds:
    """What each stretch took in each round: its partitions, and its nodes on kernels.

    Args:
        record: of a program whose partitions do not go over borders of stretches.
        stretches: of the method.
        plan: of the program.
    """
    by_node = {(s.graph, node): number for number, s in enumerate(stretches) for node in s.nodes}
    home = {name: number for number, s in enumerate(stretches) for name in s.names}
    for partition in plan.partitions:
        for node in partition.nodes[:1]:
            if (partition.graph, node) in by_node:
                home[partition.name] = by_node[partition.graph, node]
    found: Rounds = [[] for _ in stretches]
    for steps in record.steps:
        spent = [0.0] * len(stretches)
        for name, seconds in steps.items():
            if name in home:
                spent[home[name]] += seconds
        for own, total in zip(found, spent, strict=True):
            own.append(total)
    return found


def joined_of(stretches: Sequence[Stretch], pieces: Rounds, whole: Sequence[float]) -> list[float]:
    """What each border of one candidate saves where both sides are one partition, in seconds.

    It is the difference of a program that is cut to the one that is not, shared among borders by the bytes that pass.

    Args:
        stretches: of the method.
        pieces: rounds of the stretches, each a partition of its own.
        whole: rounds of the program that is not cut.
    """
    passing = [s.bytes_in + 1 for s in stretches[1:]]
    extra = sum(map(median, pieces)) - median(whole)
    return [extra * n / sum(passing) for n in passing]


def extra_of(turns: Rounds, pieces: Rounds) -> float:
    """What passing from one candidate to another takes at a border beyond what both take, in seconds.

    Args:
        turns: rounds of the stretches of a program that changes the candidate at each border.
        pieces: the same stretches on the same candidates, in programs that do not.
    """
    beyond = sum(map(median, turns)) - sum(map(median, pieces))
    return beyond / (len(turns) - 1)
