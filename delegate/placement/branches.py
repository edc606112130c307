"""Branches: parts of a method that need nothing of each other and have much of its work, e.g. two encoders."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch.fx import Node

from delegate.edge.identity import identity
from delegate.edge.node import is_compute, module_path
from delegate.edge.program import EdgeProgram
from delegate.partitioner.cost import work

MOST = 4  # branches
_LEAST = 0.1  # of the method's work, for a branch
_DEPTH = 4  # modules in modules, whose children are looked at


@dataclass(frozen=True, slots=True)
class Branch:
    """Nodes that may run while those of another branch do.

    Args:
        graph: the method.
        name: of its module, or of its first node.
        nodes: identities of the nodes that compute, in order.
    """

    graph: str
    name: str
    nodes: tuple[str, ...]


def branches(program: EdgeProgram) -> list[Branch]:
    """The branches of a method whose running at the same time may save the most; none where it has no two.

    Nodes belong to one that are of one module, or need the same inputs, or give to the same outputs.

    Args:
        program: the method. It is not changed.
    """
    nodes = [n for n in program.graph.nodes if n.op not in ("placeholder", "output")]
    costs = {n: work(n) for n in nodes if is_compute(n)}
    best: list[list[Node]] = []
    for kind in _kinds(program, nodes):
        found = _independent(nodes, costs, kind)
        if len(found) > 1 and _saved(found, costs) > _saved(best, costs):
            best = found
    return [_branch(program, members) for members in best]


def _kinds(program: EdgeProgram, nodes: Sequence[Node]) -> Iterator[Mapping[Node, Hashable]]:
    """Ways to tell which nodes belong to one branch; a node that belongs to none is not there."""
    paths = {n: tuple(path.split(".")) for n in nodes if (path := module_path(n))}
    for depth in range(_DEPTH):
        for prefix in dict.fromkeys(path[:depth] for path in paths.values() if len(path) > depth):
            yield {n: path[: depth + 1] for n, path in paths.items() if len(path) > depth and path[:depth] == prefix}
    given = [n for n in program.graph.nodes if n.op == "placeholder" and not program.is_constant(n)]
    yield _reached(given, nodes, lambda n: n.all_input_nodes)
    (results,) = program.graph.find_nodes(op="output")
    yield _reached(results.all_input_nodes, nodes[::-1], lambda n: list(n.users))


def _reached(
    ends: Sequence[Node], nodes: Sequence[Node], neighbours: Callable[[Node], Sequence[Node]]
) -> dict[Node, Hashable]:
    """The nodes that one of the ends alone leads to, with that end."""
    found = {end: frozenset((end,)) for end in ends}
    for node in nodes:
        own = (found.get(n, frozenset()) for n in neighbours(node))
        found[node] = frozenset().union(found.get(node, frozenset()), *own)
    return {node: of for node in nodes if len(of := found[node]) == 1}


def _independent(nodes: Sequence[Node], costs: Mapping[Node, int], kind: Mapping[Node, Hashable]) -> list[list[Node]]:
    """The heavy groups of nodes of which none needs another that is among them, in the order of the graph."""
    groups: dict[Hashable, list[Node]] = {}
    for node in costs:
        if node in kind:
            groups.setdefault(kind[node], []).append(node)
    least = _LEAST * sum(costs.values())
    heavy = [members for members in groups.values() if sum(map(costs.__getitem__, members)) >= least]
    if len(heavy) < 2:
        return []
    own = {node: 1 << number for number, members in enumerate(heavy) for node in members}
    behind: dict[Node, int] = {}  # the groups that a node needs
    needs = [0] * len(heavy)
    for node in nodes:
        for source in node.all_input_nodes:
            behind[node] = behind.get(node, 0) | behind.get(source, 0) | own.get(source, 0)
        if node in own:
            number = own[node].bit_length() - 1
            needs[number] |= behind.get(node, 0) & ~own[node]
    sets = ([heavy[n] for n in _apart(needs, first)] for first in range(len(heavy)))
    return max(sets, key=lambda found: _saved(found, costs))


def _apart(needs: Sequence[int], first: int) -> list[int]:
    """Groups that need nothing of each other, one of them among these, in order.

    Args:
        needs: of each group, those that it needs, as bits.
        first: a group.
    """
    kept = [first]
    for number in range(len(needs)):
        if len(kept) < MOST and not any(k == number or needs[number] >> k & 1 or needs[k] >> number & 1 for k in kept):
            kept.append(number)
    return sorted(kept)


def _saved(found: Sequence[Sequence[Node]], costs: Mapping[Node, int]) -> int:
    """The work that is done while the longest branch is at work."""
    sums = [sum(map(costs.__getitem__, members)) for members in found]
    return sum(sums) - max(sums, default=0)


def _branch(program: EdgeProgram, members: Sequence[Node]) -> Branch:
    levels = zip(*(path.split(".") for n in members if (path := module_path(n))), strict=False)
    shared = itertools.takewhile(lambda level: len(set(level)) == 1, levels)
    name = ".".join(level[0] for level in shared)
    return Branch(program.name, name or members[0].name, tuple(map(identity, members)))
