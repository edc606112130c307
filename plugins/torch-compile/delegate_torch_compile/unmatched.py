"""Patterns of modules and nodes that match in no graph that torch's compiler captured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from delegate.common.user_warnings import warn_user
from delegate.config.model import Partitioning
from delegate.errors import did_you_mean
from delegate.partitioner.rules import RulePattern, module_pins, node_pins, with_parents
from delegate.report.rows import NodeReport


class Patterns:
    """The patterns of a compiled model, in all graphs that torch captures of it.

    A graph break splits a model, and a pattern needs to match in one of the graphs only. So there is one warning, when
    the graphs of a call are complete.
    """

    def __init__(self, partitioning: Partitioning) -> None:
        self._modules = module_pins(partitioning.pins)
        self._nodes = node_pins(partitioning.node_pins)
        self._known: dict[str, set[str]] = {"module": set(), "node": set()}
        self._graphs = 0
        self._is_done = False

    @property
    def _unmatched(self) -> list[RulePattern]:
        return [pattern for pattern in (*self._modules, *self._nodes) if not pattern.used]

    def add_graph(self, nodes: Iterable[NodeReport]) -> None:
        """Match the patterns with the nodes of a graph."""
        self._graphs += 1
        nodes = list(nodes)
        paths = {path for node in nodes if node.module for path in with_parents(node.module)}
        names = {node.name for node in nodes}
        self._known["module"] |= paths
        self._known["node"] |= names
        for patterns, texts in ((self._modules, paths), (self._nodes, names)):
            for pattern in patterns:
                pattern.matches(texts)

    def give_up(self) -> None:
        """Warn of nothing: torch runs a graph, so that its nodes are unknown."""
        self._is_done = True

    def warn(self) -> None:
        """Warn of the patterns that matched in no graph so far; once."""
        if self._is_done:
            return
        self._is_done = True
        for pattern in self._unmatched:
            graphs = "the graph" if self._graphs == 1 else f"the {self._graphs} graphs"
            what = f"{pattern} matches no {pattern.kind} of {graphs} that torch captured"
            remedy = did_you_mean(pattern.pattern, self._known[pattern.kind])
            warn_user(f"partitioning: {what}: {remedy}")

    def warn_in_second_call(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that runs a graph, and warns when the graph runs again: then torch captured the others."""
        if self._is_done or not self._unmatched:
            return run
        has_run = False

        def watch(*args: Any) -> Any:
            nonlocal has_run
            if has_run:
                self.warn()
            has_run = True
            return run(*args)

        return watch


_of_options: dict[int, tuple[Mapping[str, Any], Patterns]] = {}  # with the options, so that no others get their address


def patterns_of(options: Mapping[str, Any] | None, partitioning: Partitioning) -> Patterns:
    """Return the patterns of a compiled model: torch passes the same options with each of its graphs."""
    if options is None:
        return Patterns(partitioning)
    return _of_options.setdefault(id(options), (options, Patterns(partitioning)))[1]
