"""Minimisation: reduce a region that shows a symptom to a smallest convex set of its units that still shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from itertools import chain

from torch.fx import Node

from delegate.backends.bisection import Unit

Test = Callable[[Sequence[Unit]], bool]  # returns if these units alone show the symptom


class OutOfTime(Exception):
    """A test was not run, because the budget is over."""


class Minimization:
    """A search for a smallest convex set of units that shows a symptom.

    A set is convex if no path between two of its units leaves it, so a backend can run it as one partition. A range of
    a topological order is convex, and so is a convex set without one of its sources or sinks. The search halves ranges,
    and then removes single sources and sinks.

    Args:
        units: units of a region in topological order, which show the symptom.
        test: returns if some units show it. It may raise OutOfTime.

    Attributes:
        found: the smallest set so far.
        is_minimal: no source or sink of `found` can be removed.
        tests: the number of sets that were tested.
    """

    def __init__(self, units: Sequence[Unit], test: Test) -> None:
        self.found: tuple[Unit, ...] = tuple(units)
        self.is_minimal = False
        self.tests = 0
        self._test = test
        self._unit_of: dict[Node, Unit] = {node: unit for unit in units for node in unit}
        self._before = {unit: self._neighbours(n for node in unit for n in node.all_input_nodes) for unit in units}
        self._after = {unit: self._neighbours(n for node in unit for n in node.users) for unit in units}
        self._known: dict[frozenset[Unit], bool] = {}

    def run(self) -> None:
        """Reduce `found` until it is minimal, or the test raises OutOfTime."""
        try:
            before = 0
            while before != len(self.found):
                before = len(self.found)
                self._drop_last()
                self._keep_cone(self.found[-1], self._before)
                self._drop_first()
                self._keep_cone(self.found[0], self._after)
            while self._remove_one():
                pass
            self.is_minimal = True
        except OutOfTime:
            pass

    def _neighbours(self, nodes: Iterator[Node]) -> frozenset[Unit]:
        return frozenset(self._unit_of[node] for node in nodes if node in self._unit_of)

    def _shows(self, units: Sequence[Unit]) -> bool:
        key = frozenset(units)
        if key not in self._known:
            self._known[key] = bool(units) and self._test(units)
            self.tests += 1
        if self._known[key] and len(units) < len(self.found):
            self.found = tuple(units)
        return self._known[key]

    def _drop_last(self) -> None:
        """Keep the units up to one without which the symptom is gone."""
        units, right, wrong = self.found, 0, len(self.found)
        while wrong - right > 1:
            middle = (right + wrong) // 2
            right, wrong = (right, middle) if self._shows(units[:middle]) else (middle, wrong)

    def _drop_first(self) -> None:
        """Keep the units from one without which the symptom is gone."""
        units, wrong, right = self.found, 0, len(self.found)
        while right - wrong > 1:
            middle = (right + wrong) // 2
            wrong, right = (middle, right) if self._shows(units[middle:]) else (wrong, middle)

    def _keep_cone(self, end: Unit, step: Mapping[Unit, Set[Unit]]) -> None:
        """Keep the units that lead to `end`, or from it, if they show the symptom without the others."""
        inside, reached, pending = set(self.found), {end}, [end]
        while pending:
            fresh = (step[pending.pop()] & inside) - reached
            reached |= fresh
            pending += fresh
        if len(reached) < len(inside):
            self._shows([unit for unit in self.found if unit in reached])

    def _remove_one(self) -> bool:
        """Remove a source or a sink if the others show the symptom; return if one was removed."""
        inside = set(self.found)
        ends = [u for u in self.found if not (self._before[u] - {u}) & inside or not (self._after[u] - {u}) & inside]
        return any(self._shows([other for other in self.found if other is not end]) for end in ends)


def nodes_of(units: Sequence[Unit]) -> tuple[Node, ...]:
    """Return the nodes of units, in order."""
    return tuple(chain.from_iterable(units))
