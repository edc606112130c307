"""Partitions that run at the same time: which the rules or a saved plan mean, and whether they can."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from torch.fx import Node

from delegate.errors import PartitionError
from delegate.partitioner.plan import Group, Partition, Plan

Place = tuple[int, int]  # the number of a group, and of a branch in it


def named(group: Group) -> str:
    """The branches of a group, for people."""
    return " and ".join(" with ".join(branch) for branch in group)


def grouped(plan: Plan, place: Callable[[Plan, Partition], Place | None]) -> Plan:
    """The plan, and those nested in it, where partitions of different branches of a group run at the same time.

    Args:
        plan: of one method.
        place: the group and branch of a partition; None where it is in none.

    Raises:
        PartitionError: one of them needs what another one makes.
    """
    found: dict[int, dict[int, list[str]]] = {}
    for partition in plan.partitions:
        if (at := place(plan, partition)) is not None:
            found.setdefault(at[0], {}).setdefault(at[1], []).append(partition.name)
    groups = tuple(
        tuple(tuple(names) for _, names in sorted(branches.items()))
        for _, branches in sorted(found.items())
        if len(branches) > 1
    )
    for group in groups:
        _require_independent(plan, group)
    nested = {name: grouped(part, place) for name, part in plan.nested.items()}
    return replace(plan, together=groups, nested=nested)


def _require_independent(plan: Plan, group: Group) -> None:
    """Raise PartitionError where a partition of a branch is behind one of another branch."""
    branch = {name: number for number, names in enumerate(group) for name in names}
    behind: dict[Node, Mapping[int, str]] = {}  # node -> branch -> a partition of it that the node is behind
    for unit in plan.order:
        nodes = unit.nodes if isinstance(unit, Partition) else (unit,)
        before: dict[int, str] = {}
        for source in _sources(nodes):
            before.update(behind.get(source, {}))
        if isinstance(unit, Partition) and (own := branch.get(unit.name)) is not None:
            others = [name for number, name in before.items() if number != own]
            if others:
                raise PartitionError(
                    f"{others[0]} and {unit.name} cannot run at the same time: the second needs what the first makes",
                    where=plan.program.name,
                    remedy="name parts of the model that need nothing of each other",
                )
            before[own] = unit.name
        behind.update(dict.fromkeys(nodes, before))


def _sources(nodes: Iterable[Node]) -> Iterable[Node]:
    return (source for node in nodes for source in node.all_input_nodes)
