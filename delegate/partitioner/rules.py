"""PartitionRules: the rules of the configuration for the backends of operators and modules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import translate

from torch.fx import Node

from delegate.edge.node import module_path
from delegate.errors import PartitionError, did_you_mean
from delegate.plugins import PORTABLE
from delegate.verdict import Reason, Verdict, no


@dataclass(frozen=True, slots=True)
class PartitionRules:
    """Rules over the verdicts of the backends.

    An operator pattern is a shell pattern over the full name ("aten.add.Tensor") or the name without the overload
    ("aten.add"). A module pattern is a shell pattern over the path of a module ("encoder.layer.*"), and it includes all
    modules below. A pin forbids all other backends, and if the backend of a pin cannot run the node, the node stays
    portable and the plan has a note. The first matching pin decides; pins by node come before pins by module.

    Args:
        min_partition_size: a partition with fewer operators is rejected. Operators that only change the layout of data
            (view, permute, clone, ...) do not count. So the default of 1 rejects partitions that do nothing else, and 0
            accepts all, and partitions with a pinned node are always accepted.
        include: operators that any backend may take; empty for all.
        exclude: operators that no backend may take.
        backend_include, backend_exclude: the same per backend, by name.
        pins: module pattern -> name of a backend, or "portable".
        node_pins: pattern over names of nodes -> name of a backend, or "portable".
    """

    min_partition_size: int = 1
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    backend_include: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    backend_exclude: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    pins: Mapping[str, str] = field(default_factory=dict)
    node_pins: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class RulePattern:
    """One pattern of the rules, with a mark if it has matched anything yet."""

    option: str  # key of the configuration, e.g. "exclude"
    pattern: str
    kind: str  # "operator", "module" or "node"
    place: str = ""  # of a pin
    used: bool = False
    _regex: re.Pattern[str] = field(init=False)

    def __post_init__(self) -> None:
        self._regex = re.compile(translate(self.pattern))

    def __str__(self) -> str:
        return f"{self.option} {self.pattern!r}" + (f" -> {self.place}" if self.place else "")

    def matches(self, texts: Iterable[str]) -> bool:
        """Return if the pattern matches one of the texts; record this in `used`."""
        matched = any(self._regex.match(text) for text in texts)
        self.used = self.used or matched
        return matched


def module_pins(pins: Mapping[str, str]) -> list[RulePattern]:
    """Return the patterns of `pins`."""
    return [RulePattern("pins", pattern, "module", place) for pattern, place in pins.items()]


def node_pins(pins: Mapping[str, str]) -> list[RulePattern]:
    """Return the patterns of `node_pins`."""
    return [RulePattern("node_pins", pattern, "node", place) for pattern, place in pins.items()]


class RuleBook:
    """The rules of one method and the graphs of its control flow.

    Args:
        rules: the rules.
        backends: names of this plan's backends.

    Raises:
        PartitionError: a pin names no backend of this plan, or the minimum size is negative.
    """

    def __init__(self, rules: PartitionRules, backends: Iterable[str]) -> None:
        backends = tuple(backends)
        if rules.min_partition_size < 0:
            raise PartitionError(f"min_partition_size is {rules.min_partition_size}", remedy="give 0 or more")
        for place in sorted({*rules.pins.values(), *rules.node_pins.values()} - {*backends, PORTABLE}):
            remedy = did_you_mean(place, [*backends, PORTABLE])
            raise PartitionError(f"a pin names {place!r}, which is not among the requested backends", remedy=remedy)
        self._include, self._exclude = _operators(rules.include, "include"), _operators(rules.exclude, "exclude")
        self._own_include = {b: _operators(p, f"{b}.include") for b, p in rules.backend_include.items()}
        self._own_exclude = {b: _operators(p, f"{b}.exclude") for b, p in rules.backend_exclude.items()}
        self.restricts = any((self._include, self._exclude, *self._own_include.values(), *self._own_exclude.values()))
        self._modules, self._nodes = module_pins(rules.pins), node_pins(rules.node_pins)
        self._by_operator: dict[tuple[str, str], Verdict | None] = {}
        self._by_module: dict[str, RulePattern | None] = {}
        self._node_names: set[str] = set()

    def pin(self, node: Node) -> RulePattern | None:
        """Return the pin that decides on a node; its `place` is the name of a backend or "portable"."""
        by_node = _first(self._nodes, (node.name,))
        if self._nodes:
            self._node_names.add(node.name)
        path = module_path(node) if self._modules else ""
        if path not in self._by_module:
            self._by_module[path] = _first(self._modules, with_parents(path)) if path else None
        return by_node or self._by_module[path]

    def excluded(self, op: str, backend: str) -> Verdict | None:
        """Return the refusal of an operator if a rule excludes it from a backend; else None."""
        if not self.restricts:
            return None
        key = (op, backend)
        if key not in self._by_operator:
            self._by_operator[key] = self._look_up(op, backend)
        return self._by_operator[key]

    def _look_up(self, op: str, backend: str) -> Verdict | None:
        names = _names(op)
        refusals: list[str] = []
        for patterns in (self._exclude, self._own_exclude.get(backend, [])):
            refusals += [str(p) for p in patterns if p.matches(names)]
        for patterns in (self._include, self._own_include.get(backend, [])):
            if patterns and not [p for p in patterns if p.matches(names)]:
                refusals.append(f"{patterns[0].option}, which does not name it")
        return no(Reason.EXCLUDED, f"{op} by {refusals[0]}") if refusals else None

    def unused(self) -> list[str]:
        """Return a note for every pattern that has matched nothing."""
        own = [p for patterns in (*self._own_include.values(), *self._own_exclude.values()) for p in patterns]
        patterns = [*self._include, *self._exclude, *own, *self._modules, *self._nodes]
        known = {
            "operator": {name for op, _ in self._by_operator for name in _names(op)},
            "module": {name for path in self._by_module for name in with_parents(path)},
            "node": self._node_names,
        }
        return [
            f"{p} matches no {p.kind} of this method{_hint(p.pattern, known[p.kind])}" for p in patterns if not p.used
        ]


def _names(op: str) -> tuple[str, str]:
    """Return an operator's name with and without its overload."""
    return op, op.rpartition(".")[0]


def _hint(pattern: str, known: Iterable[str]) -> str:
    similar = get_close_matches(pattern, sorted(known), n=1)
    return f": did you mean {similar[0]!r}?" if similar else ""


def _operators(patterns: Iterable[str], option: str) -> list[RulePattern]:
    return [RulePattern(option, pattern.replace("::", "."), "operator") for pattern in patterns]


def _first(patterns: list[RulePattern], texts: tuple[str, ...]) -> RulePattern | None:
    """Return the first matching pattern, but try all, so that `used` is right for each."""
    matching = [p for p in patterns if p.matches(texts)]
    return matching[0] if matching else None


def with_parents(path: str) -> tuple[str, ...]:
    """Return the path of a module and of its parents: "a.b.c" -> ("a.b.c", "a.b", "a")."""
    parts = path.split(".")
    return tuple(".".join(parts[:n]) for n in range(len(parts), 0, -1))
