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
    least = _LEAST * sum(costs.values())
    for kind in _kinds(program, nodes):
        found = _independent(nodes, costs, least, kind)
        if len(found) > 1 and _saved(found, costs) > _saved(best, costs):
            best = found
    return [_branch(program, members) for members in best]


def _kinds(program: EdgeProgram, nodes: Sequence[Node]) -> Iterator[Mapping[Node, Hashable]]:
    """Ways to tell which nodes belong to one branch; a node that belongs to none is not there."""
    paths = {n: tuple(path.split(".")) for n in nodes if (path := module_path(n))}
    for depth in range(_DEPTH):
        children: dict[tuple[str, ...], dict[Node, Hashable]] = {}  # a module -> the nodes in modules of it
        for node, modules in paths.items():
            if len(modules) > depth:
                children.setdefault(modules[:depth], {})[node] = modules[depth]
        yield from children.values()
    given = [n for n in program.graph.nodes if n.op == "placeholder" and not program.is_constant(n)]
    (results,) = program.graph.find_nodes(op="output")
    for found in (
        _reached(given, nodes, lambda n: n.all_input_nodes),
        _reached(results.all_input_nodes, nodes[::-1], lambda n: list(n.users)),
    ):
        yield {n: found[n] for n in nodes if n in found}


def _reached(
    ends: Sequence[Node], nodes: Sequence[Node], neighbours: Callable[[Node], Sequence[Node]]
) -> dict[Node, Hashable]:
    """The nodes that one of the ends alone leads to, with that end."""
    found: dict[Node, Node | None] = {end: end for end in ends}  # None: several lead to it
    for node in nodes:
        of = {found[n] for n in (node, *neighbours(node)) if n in found}
        if of:
            found[node] = of.pop() if len(of) == 1 else None
    return {node: end for node, end in found.items() if end is not None}


def _independent(
    nodes: Sequence[Node], costs: Mapping[Node, int], least: float, kind: Mapping[Node, Hashable]
) -> list[list[Node]]:
    """The groups of this work at least, of which none needs another among them, in the order of the graph."""
    groups: dict[Hashable, list[Node]] = {}
    for node, group in kind.items():
        if node in costs:
            groups.setdefault(group, []).append(node)
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
