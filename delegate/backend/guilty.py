"""The search for guilty nodes of a region.

`find_guilty` asks which units to leave out so that the rest works: for a library that rejects a region without naming
nodes, and for a partition that misses an accuracy bound. It tests parts of the region, since a part is all that a
library can be asked about.
"""

from __future__ import annotations

import math
import operator
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from torch.fx import Node

from delegate.backend.aot import ClaimedPattern, PreprocessResult, Region, RegionFailed, RegionRefused

MAX_TESTS = 32  # parts that are tested; after them, all remaining units are guilty
_MARGIN = 0.8  # share of the allowed noise that the remaining units may have, since causes are not quite independent

Unit = tuple[Node, ...]  # nodes that stay in one part
Measure = Callable[[Sequence[Unit]], float | None]  # noise over the allowed noise, or None if it cannot be measured
Test = Callable[[Sequence[Unit]], bool]  # returns whether these units alone show the symptom


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


def nodes_of(units: Iterable[Unit]) -> tuple[Node, ...]:
    """Return the nodes of units, in order."""
    return tuple(chain.from_iterable(units))


def failing_nodes(region: Region, reason: str, preprocess: Callable[[Region], PreprocessResult]) -> dict[str, str]:
    """Return the nodes without which the library may accept the rest -> the library's words.

    Args:
        region: the region that the library rejected.
        reason: the library's words.
        preprocess: the method of the backend.
    """
    reasons: dict[Node, str] = {}

    def measure(units: Sequence[Unit]) -> float:
        try:
            preprocess(part_of(region, units))
        except (RegionFailed, RegionRefused) as rejection:
            why = rejection.reason if isinstance(rejection, RegionFailed) else str(rejection)
            reasons.update(dict.fromkeys(nodes_of(units), why))  # later tests are of smaller parts
            return math.inf
        return 0.0

    return {node.name: reasons.get(node, reason) for node in nodes_of(find_guilty(units_of(region), measure))}


@dataclass(frozen=True, slots=True)
class _Range:
    """Neighbouring units, and their noise over the noise that the bounds allow; infinite if they fail."""

    units: Sequence[Unit]
    excess: float
    is_whole: bool = False  # it cannot be split, because the backend runs neither half

    @property
    def density(self) -> float:
        """The noise per unit."""
        return self.excess / len(self.units)


def find_guilty(units: Sequence[Unit], measure: Measure, excess: float = math.inf) -> list[Unit]:
    """Return the fewest units to leave out of a region so that the others may work; at least one.

    The search halves the noisiest ranges, and if a range fails and both of its halves work, it looks for the first unit
    that fails together with those before it.

    Args:
        units: all units of the region, which fails.
        measure: returns the excess of some units; infinity if they fail, 0 if they work.
        excess: the excess of all units.
    """
    ranges, tests = [_Range(units, excess)], 0

    def count(part: Sequence[Unit]) -> float | None:
        nonlocal tests
        tests += 1
        return measure(part)

    while tests < MAX_TESTS and (divisible := [r for r in _heaviest(ranges) if len(r.units) > 1 and not r.is_whole]):
        chosen = max(divisible, key=lambda r: len(r.units))
        ranges.remove(chosen)
        halves = _halve(chosen, count)
        if chosen.excess > 1 and not _heaviest(halves):
            halves = _split_at_joint(chosen, halves, lambda part: tests < MAX_TESTS and (count(part) or 0.0) > _MARGIN)
        ranges += halves
    heaviest = _heaviest(ranges) or [max(ranges, key=lambda r: r.density)]
    return list(chain.from_iterable(r.units for r in heaviest))


def _halve(parent: _Range, measure: Measure) -> list[_Range]:
    middle = len(parent.units) // 2
    halves = parent.units[:middle], parent.units[middle:]
    first, second = map(measure, halves)
    if first is None and second is None:
        return [_Range(parent.units, parent.excess, True)]
    first = _subtract(parent.excess, second) if first is None else first
    second = _subtract(parent.excess, first) if second is None else second
    return [_Range(units, excess) for units, excess in zip(halves, (first, second), strict=True)]


def _split_at_joint(parent: _Range, halves: Sequence[_Range], fails: Test) -> list[_Range]:
    """Split a range whose halves work at the first unit that fails together with the units before it."""
    units, middle = parent.units, len(halves[0].units)
    sizes = range(middle + 1, len(units))  # of the first units; all of them fail
    joint = middle + bisect_left(sizes, True, key=lambda size: fails(units[:size]))
    others = [_Range([*units[middle:joint], *units[joint + 1 :]], halves[1].excess)] if len(units) - middle > 1 else []
    return [halves[0], _Range(units[joint : joint + 1], parent.excess), *others]


def _subtract(whole: float, part: float | None) -> float:
    """Return the excess of the half that was not measured."""
    assert part is not None
    return max(whole - part, 0.0) if math.isfinite(whole) else whole


def _heaviest(ranges: Sequence[_Range]) -> list[_Range]:
    """Return the ranges to remove so that the noise of the rest is allowed; the noisiest per unit go first."""
    noise = 0.0
    kept: list[_Range] = []
    for candidate in sorted(ranges, key=lambda r: r.density):
        if noise + candidate.excess <= _MARGIN:
            noise += candidate.excess
            kept.append(candidate)
    return [r for r in ranges if r not in kept]
