"""The cheapest ways to give stretches in a row to candidates: dynamic programming over their borders."""

from __future__ import annotations

import heapq
import itertools
from typing import NamedTuple

from delegate.placement.costs import Costs


class Choice(NamedTuple):
    """A candidate for every stretch.

    Args:
        seconds: what it should cost.
        candidates: one per stretch, in order.
    """

    seconds: float
    candidates: tuple[str, ...]

    @property
    def is_mixed(self) -> bool:
        """Whether it is on more than one candidate."""
        return len(set(self.candidates)) > 1


def choice_of(costs: Costs, candidates: tuple[str, ...]) -> Choice:
    """A choice, and what it should cost."""
    inside = sum(costs.of(name, stretch) for stretch, name in enumerate(candidates))
    borders = sum(_border(costs, *pair, border) for border, pair in enumerate(itertools.pairwise(candidates)))
    return Choice(inside + borders, candidates)


def choices(costs: Costs, most: int) -> list[Choice]:
    """The cheapest choices, the best first.

    What lies behind a border depends on what stands before it by that one candidate alone. So the best ways up to a
    stretch, kept for each candidate that it may end on, hold the best ways of all.

    Args:
        costs: of every stretch on every candidate.
        most: how many are wanted.
    """
    names = list(costs.stretches)
    count = len(costs.stretches[names[0]]) if names else 0
    if not count:
        return []
    ways = {name: [Choice(costs.of(name, 0), (name,))] for name in names}
    for stretch in range(1, count):
        ways = {
            name: heapq.nsmallest(
                most,
                (
                    Choice(
                        way.seconds + costs.of(name, stretch) + _border(costs, before, name, stretch - 1),
                        (*way.candidates, name),
                    )
                    for before, found in ways.items()
                    for way in found
                ),
            )
            for name in names
        }
    return heapq.nsmallest(most, (way for found in ways.values() for way in found))


def _border(costs: Costs, before: str, behind: str, border: int) -> float:
    """What a border takes beyond the stretches on both sides of it, as partitions of their own."""
    if before == behind:
        return -costs.joined[before][border]
    return costs.crossing.get((before, behind), 0.0)
