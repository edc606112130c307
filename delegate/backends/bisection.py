"""Which nodes of a region a library does not take, where it does not say: found by compiling halves of it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

from torch.fx import Node

from delegate.backends.aot import PreprocessResult, Region, RegionFailed, RegionRefused

_MOST = 32  # parts that are tried; where more would be needed, the nodes that are left are all given up


def failing_nodes(region: Region, reason: str, preprocess: Callable[[Region], PreprocessResult]) -> dict[str, str]:
    """Nodes without which the rest may be taken -> the library's words.

    Args:
        region: on which the library failed.
        reason: its words.
        preprocess: of the backend.
    """
    found: dict[str, str] = {}
    failed, tried = [(_units(region), reason)], 0
    while failed:
        units, reason = failed.pop()
        if len(units) == 1 or tried >= _MOST:
            found.update((node.name, reason) for unit in units for node in unit)
            continue
        middle = len(units) // 2
        halves = [(half, _refusal(region, half, preprocess)) for half in (units[:middle], units[middle:])]
        tried += len(halves)
        failed += [(half, why) for half, why in halves if why]
        if not any(why for _, why in halves):  # only together they fail: a cut between them
            found.update((node.name, reason) for node in units[middle])
    return found


def _units(region: Region) -> list[list[Node]]:
    """What is not taken apart: an operator and the picks of its results."""
    units: dict[Node, list[Node]] = {}
    for node in region.graph.nodes:
        if node.op == "call_function":
            head = node.args[0] if node.target is operator.getitem else node
            units.setdefault(head if isinstance(head, Node) and head in units else node, []).append(node)
    return list(units.values())


def _refusal(region: Region, units: Sequence[Sequence[Node]], preprocess: Callable[[Region], PreprocessResult]) -> str:
    """Why the library does not take a part; empty if it does."""
    try:
        preprocess(region.part([node for unit in units for node in unit]))
    except RegionFailed as failure:
        return failure.reason
    except RegionRefused as refusal:
        return str(refusal)
    return ""
