"""Branches: groups of nodes without dependencies between them and with much of the work, e.g. two encoders.

A plan can be composed of the partitions that each branch has in the plan of its candidate.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torch.fx import Node

from delegate.edge.graphs import identity
from delegate.edge.node import is_compute, module_path
from delegate.edge.program import EdgeProgram
from delegate.partitioner.cost import work
from delegate.partitioner.saved import SavedPartition, SavedPlan

MAX_BRANCHES = 4  # branches
_MIN_SHARE = 0.1  # of the method's work, for a branch
_MAX_DEPTH = 4  # modules in modules, whose children are looked at


@dataclass(frozen=True, slots=True)
class Branch:
    """Nodes that can run in parallel with those of another branch.

    Args:
        graph: the method.
        name: of its module, or of its first node.
        nodes: identities of the compute nodes, in order.
    """

    graph: str
    name: str
    nodes: tuple[str, ...]


def find_branches(program: EdgeProgram) -> list[Branch]:
    """Return the branches of a method that save the most time in parallel, or none if it has fewer than two.

    Nodes of one branch share a module, or need the same inputs, or lead to the same outputs.

    Args:
        program: the method. It is not changed.
    """
    nodes = [n for n in program.graph.nodes if n.op not in ("placeholder", "output")]
    costs = {n: work(n) for n in nodes if is_compute(n)}
    best: list[list[Node]] = []
    least = _MIN_SHARE * sum(costs.values())
    for group_of in _groupings(program, nodes):
        groups = _independent(nodes, costs, least, group_of)
        if len(groups) > 1 and _saved(groups, costs) > _saved(best, costs):
            best = groups
    return [_branch(program, members) for members in best]


def _groupings(program: EdgeProgram, nodes: Sequence[Node]) -> Iterator[Mapping[Node, Hashable]]:
    """Yield mappings from nodes to branches; a node without a branch is missing."""
    paths = {n: tuple(path.split(".")) for n in nodes if (path := module_path(n))}
    for depth in range(_MAX_DEPTH):
        children: dict[tuple[str, ...], dict[Node, Hashable]] = {}  # a module -> the nodes in modules of it
        for node, modules in paths.items():
            if len(modules) > depth:
                children.setdefault(modules[:depth], {})[node] = modules[depth]
        yield from children.values()
    inputs = [n for n in program.graph.nodes if n.op == "placeholder" and not program.is_constant(n)]
    (results,) = program.graph.find_nodes(op="output")
    for reached in (
        _reached(inputs, nodes, lambda n: n.all_input_nodes),
        _reached(results.all_input_nodes, nodes[::-1], lambda n: list(n.users)),
    ):
        yield {n: reached[n] for n in nodes if n in reached}


def _reached(
    ends: Sequence[Node], nodes: Sequence[Node], neighbours: Callable[[Node], Sequence[Node]]
) -> dict[Node, Hashable]:
    """Return the nodes that exactly one end leads to, with that end."""
    end_of: dict[Node, Node | None] = {end: end for end in ends}  # None: several lead to it
    for node in nodes:
        of = {end_of[n] for n in (node, *neighbours(node)) if n in end_of}
        if of:
            end_of[node] = of.pop() if len(of) == 1 else None
    return {node: end for node, end in end_of.items() if end is not None}


def _independent(
    nodes: Sequence[Node], costs: Mapping[Node, int], least: float, group_of: Mapping[Node, Hashable]
) -> list[list[Node]]:
    """Return the independent groups with at least this work, in graph order."""
    groups: dict[Hashable, list[Node]] = {}
    for node, group in group_of.items():
        if node in costs:
            groups.setdefault(group, []).append(node)
    heavy = [members for members in groups.values() if sum(map(costs.__getitem__, members)) >= least]
    if len(heavy) < 2:
        return []
    own = {node: 1 << number for number, members in enumerate(heavy) for node in members}
    needed: dict[Node, int] = {}  # the groups that a node needs
    needs = [0] * len(heavy)
    for node in nodes:
        for source in node.all_input_nodes:
            needed[node] = needed.get(node, 0) | needed.get(source, 0) | own.get(source, 0)
        if node in own:
            number = own[node].bit_length() - 1
            needs[number] |= needed.get(node, 0) & ~own[node]
    sets = ([heavy[n] for n in _mutually_independent(needs, first)] for first in range(len(heavy)))
    return max(sets, key=lambda groups: _saved(groups, costs))


def _mutually_independent(needs: Sequence[int], first: int) -> list[int]:
    """Return groups without dependencies between them, in order.

    Args:
        needs: for each group the groups that it needs, as bits.
        first: a group of the result.
    """
    selected = [first]
    for number in range(len(needs)):
        if len(selected) < MAX_BRANCHES and not any(
            k == number or needs[number] >> k & 1 or needs[k] >> number & 1 for k in selected
        ):
            selected.append(number)
    return sorted(selected)


def _saved(groups: Sequence[Sequence[Node]], costs: Mapping[Node, int]) -> int:
    """Return the work that runs during the longest branch."""
    sums = [sum(map(costs.__getitem__, members)) for members in groups]
    return sum(sums) - max(sums, default=0)


def _branch(program: EdgeProgram, members: Sequence[Node]) -> Branch:
    levels = zip(*(path.split(".") for n in members if (path := module_path(n))), strict=False)
    shared = itertools.takewhile(lambda level: len(set(level)) == 1, levels)
    name = ".".join(level[0] for level in shared)
    return Branch(program.name, name or members[0].name, tuple(map(identity, members)))


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
