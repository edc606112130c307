"""From programs that were watched to what stretches and borders cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from delegate.partitioner.saved import SavedPlan
from delegate.placement.costs import Costs, Record, Stretch

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


def costs_of(
    stretches: Sequence[Stretch],
    candidates: Sequence[str],
    pieces: Mapping[str, Rounds],
    whole: Mapping[str, Sequence[float]],
) -> Costs:
    """What choosing by stretches needs to know.

    What cutting costs is the difference of a program that is cut to the one that is not; it is shared among the borders
    by the bytes that pass. What passing from one candidate to another takes beyond that is the difference of a program
    that changes at each border to the stretches on both.

    Args:
        stretches: of the method.
        candidates: that were measured.
        pieces: candidate -> rounds of its stretches, each a partition of its own; and "a/b" of two candidates -> of the
            program that has the first, third ... stretch on a and the others on b.
        whole: candidate -> seconds of the program that is not cut, a round a number.
    """
    cut = {c: [median(rounds) for rounds in pieces[c]] for c in candidates}
    passing = [s.bytes_in + 1 for s in stretches[1:]]
    joined = {}
    for c in candidates:
        extra = sum(cut[c]) - median(whole[c])
        joined[c] = [extra * n / sum(passing) for n in passing]
    crossing: dict[tuple[str, str], float] = {}
    for name, rounds in pieces.items():
        if name in cut:
            continue
        pair = _pair(name, candidates)
        apart = sum(cut[pair[i % 2]][i] for i in range(len(stretches)))
        beyond = (sum(map(median, rounds)) - apart) / len(passing)
        crossing[pair] = crossing[pair[::-1]] = max(beyond, 0.0)
    return Costs({c: pieces[c] for c in candidates}, joined, crossing)


def _pair(name: str, candidates: Sequence[str]) -> tuple[str, str]:
    return next((a, b) for a in candidates for b in candidates if f"{a}/{b}" == name)
