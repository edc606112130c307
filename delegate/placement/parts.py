"""Plans whose large partitions are cut into parts, so that the seconds of each part can be measured."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Sequence

from torch.fx import Node

from delegate.costs.estimates import Estimates
from delegate.edge.graphs import identity
from delegate.edge.node import is_compute
from delegate.partitioner.plan import Partition, Plan
from delegate.partitioner.saved import SavedPartition, SavedPlan

MOST_PARTS = 12  # of a method


def cut_into_parts(plan: Plan, costs: Estimates, most: int = MOST_PARTS) -> SavedPlan:
    """Return the plan of a method with its large partitions cut into parts of similar estimated seconds.

    A cut is where few bytes pass, and it separates neither the nodes of a pattern nor the results of one node.
    """
    saved = SavedPlan.of([plan])
    seconds = {p.name: sum(costs.node(n, p.backend) for n in p.nodes) for p in plan.partitions}
    total = sum(seconds.values())
    parts = [part for part in saved.partitions if part.graph != plan.program.name]
    for partition in plan.partitions:
        count = round(most * seconds[partition.name] / total) if total else 1
        runs = [
            run for nodes in _cut(partition, costs, count) if (run := tuple(map(identity, filter(is_compute, nodes))))
        ]
        parts += [
            SavedPartition(plan.program.name, f"{partition.name}_{number}", partition.backend, run)
            for number, run in enumerate(runs)
        ]
    return SavedPlan(tuple(parts), saved.whole, saved.decompositions)


def _cut(partition: Partition, costs: Estimates, count: int) -> Iterator[Sequence[Node]]:
    """Yield the nodes of a partition in up to `count` runs."""
    nodes = partition.nodes
    passing = _passing_bytes(partition, costs)
    done = list(itertools.accumulate(costs.node(n, partition.backend) for n in nodes))
    cuts = set[int]()
    for number in range(1, count):
        share = done[-1] * number / count
        near = [i for i in passing if abs(done[i] - share) <= 0.5 * done[-1] / count]
        cuts.update([min(near, key=lambda i: (passing[i], abs(done[i] - share)))] if near else [])
    starts = [0, *(i + 1 for i in sorted(cuts)), len(nodes)]
    yield from (nodes[start:end] for start, end in itertools.pairwise(starts))


def _passing_bytes(partition: Partition, costs: Estimates) -> dict[int, int]:
    """Return number of a node -> the bytes that pass a cut after it, for each node that a cut may follow."""
    nodes = partition.nodes
    index = {node: i for i, node in enumerate(nodes)}
    change, joined = [0] * len(nodes), [0] * len(nodes)
    for i, node in enumerate(nodes):
        last = max((index[user] for user in node.users if user in index), default=i)
        change[i] += costs.nbytes(node)
        change[last] -= costs.nbytes(node)
        if node.target is operator.getitem and (source := node.all_input_nodes[0]) in index:
            joined[index[source]] += 1
            joined[i] -= 1
    for claim in partition.patterns:
        members = sorted(index[node] for node in claim.nodes)
        joined[members[0]] += 1
        joined[members[-1]] -= 1
    passing, together = itertools.accumulate(change), itertools.accumulate(joined)
    pairs = enumerate(zip(passing, together, strict=True))
    return {i: nbytes for i, (nbytes, inside) in pairs if not inside and i + 1 < len(nodes)}
