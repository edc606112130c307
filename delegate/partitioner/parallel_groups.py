"""Groups of partitions that run in parallel, from the rules or a saved plan, and the check of their independence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from torch.fx import Node

from delegate.errors import PartitionError
from delegate.partitioner.plan import Group, Partition, Plan

Place = tuple[int, int]  # the number of a group, and of a branch in it


def describe_group(group: Group) -> str:
    """Return the branches of a group as text for messages."""
    return " and ".join(" with ".join(branch) for branch in group)


def with_parallel_groups(plan: Plan, place: Callable[[Plan, Partition], Place | None]) -> Plan:
    """Return the plan and its nested plans with groups of partitions that run in parallel.

    Args:
        plan: of one method.
        place: returns the group and branch of a partition; None for a partition without a group.

    Raises:
        PartitionError: a partition needs a result of another branch.
    """
    members: dict[int, dict[int, list[str]]] = {}
    for partition in plan.partitions:
        if (at := place(plan, partition)) is not None:
            members.setdefault(at[0], {}).setdefault(at[1], []).append(partition.name)
    groups = tuple(
        tuple(tuple(names) for _, names in sorted(branches.items()))
        for _, branches in sorted(members.items())
        if len(branches) > 1
    )
    for group in groups:
        _require_independent(plan, group)
    nested = {name: with_parallel_groups(part, place) for name, part in plan.nested.items()}
    return replace(plan, together=groups, nested=nested)


def _require_independent(plan: Plan, group: Group) -> None:
    """Raise PartitionError if a partition depends on a partition of another branch."""
    branch = {name: number for number, names in enumerate(group) for name in names}
    depends_on: dict[Node, Mapping[int, str]] = {}  # node -> branch -> a partition of it that the node depends on
    for unit in plan.order:
        nodes = unit.nodes if isinstance(unit, Partition) else (unit,)
        before: dict[int, str] = {}
        for source in _sources(nodes):
            before.update(depends_on.get(source, {}))
        if isinstance(unit, Partition) and (own := branch.get(unit.name)) is not None:
            others = [name for number, name in before.items() if number != own]
            if others:
                raise PartitionError(
                    f"{others[0]} and {unit.name} cannot run at the same time: the second needs what the first makes",
                    where=plan.program.name,
                    remedy="name parts of the model that need nothing of each other",
                )
            before[own] = unit.name
        depends_on.update(dict.fromkeys(nodes, before))


def _sources(nodes: Iterable[Node]) -> Iterable[Node]:
    return (source for node in nodes for source in node.all_input_nodes)
