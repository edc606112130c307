"""Search for the nodes of a region that a library rejects without naming them, by compiling halves of the region."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence

from torch.fx import Node

from delegate.backends.aot import ClaimedPattern, PreprocessResult, Region, RegionFailed, RegionRefused

MOST = 32  # parts that are compiled; after them, all remaining nodes are rejected

Unit = tuple[Node, ...]  # nodes that stay in one part


def failing_nodes(region: Region, reason: str, preprocess: Callable[[Region], PreprocessResult]) -> dict[str, str]:
    """Return the nodes without which the library may accept the rest -> the library's words.

    Args:
        region: the region that the library rejected.
        reason: the library's words.
        preprocess: the method of the backend.
    """
    found: dict[str, str] = {}
    failed, tried = [(units_of(region), reason)], 0
    while failed:
        units, reason = failed.pop()
        if len(units) == 1 or tried >= MOST:
            found.update((node.name, reason) for unit in units for node in unit)
            continue
        middle = len(units) // 2
        halves = [(half, _refusal(region, half, preprocess)) for half in (units[:middle], units[middle:])]
        tried += len(halves)
        failed += [(half, why) for half, why in halves if why]
        if not any(why for _, why in halves):  # only together they fail: without one of those that meet they do not
            passes, fails = middle, len(units)  # so many from the first on
            while fails - passes > 1 and tried < MOST:
                count = (passes + fails) // 2
                tried += 1
                passes, fails = (passes, count) if _refusal(region, units[:count], preprocess) else (count, fails)
            found.update((node.name, reason) for node in units[fails - 1])
    return found


def units_of(region: Region) -> list[Unit]:
    """Return the units that stay together: an operator and the picks of its results, or the nodes of one pattern.

    A node of several patterns is with the first of them.
    """
    pattern_of: dict[Node, ClaimedPattern] = {}
    for pattern in region.patterns:
        for node in pattern.nodes:
            pattern_of.setdefault(node, pattern)
    units: dict[Node | ClaimedPattern, list[Node]] = {}
    calls = set(region.calls)
    for node in region.calls:
        source = node.args[0] if node.target is operator.getitem else node
        head = source if isinstance(source, Node) and source in calls else node
        units.setdefault(pattern_of.get(head, head), []).append(node)
    return [tuple(unit) for unit in units.values()]


def part_of(region: Region, units: Iterable[Unit]) -> Region:
    """Return some units of a region as a region."""
    inside = {node for unit in units for node in unit}
    return region.part([node for node in region.calls if node in inside])


def _refusal(region: Region, units: Sequence[Unit], preprocess: Callable[[Region], PreprocessResult]) -> str:
    """Return the reason why the library rejects a part; empty if it accepts the part."""
    try:
        preprocess(part_of(region, units))
    except RegionFailed as failure:
        return failure.reason
    except RegionRefused as refusal:
        return str(refusal)
    return ""
