"""A smallest set of operators that shows a symptom by itself."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence, Set

from torch.fx import Node

from delegate.backend.guilty import Test, Unit


class OutOfTime(Exception):
    """A test was not run, because the budget is over."""


class Minimization:
    """A search for a smallest convex set of units that shows a symptom; creating it runs the search.

    A set is convex if no path between two of its units leaves it, so a backend can run it as one partition. A range of
    a topological order is convex, and so is a convex set without one of its sources or sinks. The search halves ranges,
    and then removes single sources and sinks.

    Args:
        units: units of a region in topological order, which show the symptom.
        test: returns whether some units show it, and if it raises OutOfTime, the search ends early.

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
        try:
            self._run()
            self.is_minimal = True
        except OutOfTime:
            pass

    def _run(self) -> None:
        size = 0
        while size != len(self.found):
            size = len(self.found)
            self._shorten(lambda units, count: units[:count])
            self._keep_cone(self.found[-1], self._before)
            self._shorten(lambda units, count: units[-count:])
            self._keep_cone(self.found[0], self._after)
        while self._remove_one():
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

    def _shorten(self, cut: Callable[[Sequence[Unit], int], Sequence[Unit]]) -> None:
        """Keep as few units of one end as show the symptom."""
        units = self.found
        bisect_left(range(1, len(units)), True, key=lambda count: self._shows(cut(units, count)))

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
        """Remove a source or a sink if the others show the symptom; return whether one was removed."""
        inside = set(self.found)
        ends = [u for u in self.found if not (self._before[u] - {u}) & inside or not (self._after[u] - {u}) & inside]
        return any(self._shows([other for other in self.found if other is not end]) for end in ends)
