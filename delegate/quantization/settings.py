"""Settings of quantization: a default scheme, and rules for operators, module types, module paths and nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from glob import escape
from typing import Any, TypeVar

from torch.fx import Graph, Node

from delegate.backend.quantizable import QuantizationScheme
from delegate.config.model import Quantization
from delegate.edge.node import base_name, edge_names
from delegate.errors import ConfigError, did_you_mean
from delegate.plugins import in_known_spelling
from delegate.registry import Registry, default_registry

OFF = "off"
RULES = ("operators", "module_types", "modules", "nodes")  # in order of increasing precedence


@dataclass(frozen=True)
class Settings:
    """Settings of the quantization for one backend.

    If several rules match a node, the order of precedence is nodes, module paths, module types, operators. Among
    patterns of one kind, the last match counts.

    Args:
        backend: the name of the backend.
        scheme: the default scheme, e.g. "static_int8"; "" for the backend's first, "off" for none. A number after "/",
            in any rule, is the group size of its layers, e.g. "dynamic_int4/64".
        operators: pattern of operator names, e.g. "aten.add*" or "aten.convolution.default" -> scheme or "off".
        module_types: class, e.g. "Linear" or "torch.nn.modules.linear.Linear" -> scheme or "off".
        modules: pattern of module paths, e.g. "encoder.layer.*" -> scheme or "off", also for all modules inside.
        nodes: pattern of node names in the float program, e.g. "linear_3" -> scheme or "off", for one call of a layer.
        group_size: the number of a channel's inputs that share a scale, if the scheme has groups; 0 for all inputs,
            None for the scheme's own number.
        observer: the method that measures ranges of activations: "histogram" has the least square error and excludes
            outliers, "minmax" is the range of all values.
        outliers: the share of an activation's values that "histogram" may exclude at each end, 0 for none. It excludes
            only values more than four times as large as all others.
    """

    backend: str
    scheme: str = ""
    operators: Mapping[str, str] = field(default_factory=dict)
    module_types: Mapping[str, str] = field(default_factory=dict)
    modules: Mapping[str, str] = field(default_factory=dict)
    nodes: Mapping[str, str] = field(default_factory=dict)
    group_size: int | None = None
    observer: str = "histogram"
    outliers: float = 1e-4


Rules = TypeVar("Rules", Settings, Quantization)


def keep_in_float(settings: Rules, *, modules: Iterable[str] = (), nodes: Iterable[str] = ()) -> Rules:
    """Return settings with more layers in floats.

    Args:
        settings: the settings, or the section of a configuration; all other rules stay.
        modules: paths of modules, e.g. "encoder.layer.3.up"; everything inside stays in floats too.
        nodes: node names in the float program, see `float_node`. A node stands for one of several calls to a
            module, or for an operator that is not a module of its own.
    """
    return set_scheme(settings, OFF, modules=modules, nodes=nodes)


def set_scheme(settings: Rules, scheme: str, *, modules: Iterable[str] = (), nodes: Iterable[str] = ()) -> Rules:
    """Return settings with another scheme for some layers; arguments as `keep_in_float`."""
    module_rules, node_rules = _with(settings.modules, modules, scheme), _with(settings.nodes, nodes, scheme)
    if isinstance(settings, Settings):
        return replace(settings, modules=module_rules, nodes=node_rules)
    return settings.model_copy(update={"modules": module_rules, "nodes": node_rules})


def _with(rules: Mapping[str, str], names: Iterable[str], scheme: str) -> dict[str, str]:
    patterns = dict.fromkeys(map(escape, names), scheme)
    return {**{pattern: scheme for pattern, scheme in rules.items() if pattern not in patterns}, **patterns}


def schemes(backend: str, registry: Registry | None = None) -> dict[str, QuantizationScheme]:
    """Return the schemes of a backend by name, its default first.

    Raises:
        ConfigError: the backend runs no integers.
        BackendError: the backend does not exist or is broken.
    """
    registry = registry or default_registry()
    schemes_by_name = {scheme.name: scheme for scheme in registry.aot(backend, absent_ok=True).quantization()}
    if not schemes_by_name:
        others = [n for n in registry.names() if n != backend and _runs_integers(n, registry)]
        remedy = f"quantize for one that does: {', '.join(others)}" if others else "leave quantization out"
        raise ConfigError(f"backend {backend!r} does not support quantized programs", remedy=remedy)
    return schemes_by_name


def _runs_integers(name: str, registry: Registry) -> bool:
    try:
        registry.check_part(name, "aot")  # tries the import in a separate process first: it may crash
        return bool(registry.aot(name, absent_ok=True).quantization())
    except Exception:  # a broken plugin, which the user did not request here
        return False


class SchemeChoice:
    """The scheme of each node of a model.

    Args:
        settings: the settings; this checks all but their patterns.
        registry: the registry that holds the backend; None for the default one.

    Raises:
        ConfigError: a scheme is unknown.
    """

    def __init__(self, settings: Settings, registry: Registry | None = None) -> None:
        self.settings, self.known = settings, schemes(settings.backend, registry)
        self.default = self._known_scheme(settings.scheme or next(iter(self.known)), "scheme")
        self._rules = [
            _Rule(key, pattern, self._known_scheme(scheme, key))
            for key in RULES
            for pattern, scheme in getattr(settings, key).items()
        ]

    def require_matches(self, graphs: Iterable[Graph]) -> None:
        """Check that every pattern matches a node in one of the exported graphs.

        Raises:
            ConfigError: a pattern matches nothing; the remedy is the nearest name.
        """
        calls = [n for graph in graphs for n in graph.nodes if n.op == "call_function"]
        for rule in self._rules:
            rule.require_match(calls)

    def scheme(self, node: Node) -> QuantizationScheme | None:
        """Return the scheme of a node; None if the node stays in floats."""
        name = self.spelled(node).partition("/")[0]
        return None if name == OFF else self.known[name]

    def group_size(self, node: Node) -> int | None:
        """Return the number of a channel's inputs that share a scale in a node; 0: all inputs, None: the default."""
        size = self.spelled(node).partition("/")[2]
        return int(size) if size else None

    def spelled(self, node: Node) -> str:
        """Return the scheme of a node as a rule spells it: its name, and the group size if one is set."""
        name = self._last_match(node)
        size = self.settings.group_size
        has_groups = name in self.known and self.known[name].weights.group
        return name if size is None or not has_groups else f"{name}/{size}"

    def _last_match(self, node: Node) -> str:
        """Return the scheme of the last rule that matches a node; the default scheme if there is none."""
        spelled = self.default
        for rule in self._rules:
            if rule.matches(node):
                spelled = rule.scheme
        return spelled

    def _known_scheme(self, spelled: str, key: str) -> str:
        """Return a scheme in its own spelling; raise ConfigError for an unknown one, or a wrong group size."""
        name, slash, size = spelled.partition("/")
        name = in_known_spelling(name, (*self.known, OFF))
        if name != OFF and name not in self.known:
            what = f"backend {self.settings.backend!r} has no scheme {name!r}"
            raise ConfigError(what, where=f"quantization.{key}", remedy=did_you_mean(name, [*self.known, OFF]))
        if slash and (name == OFF or not self.known[name].weights.group or not size.isdecimal()):
            has_groups = name != OFF and self.known[name].weights.group
            what = f"{spelled!r}: {size!r} is no group size" if has_groups else f"{spelled!r}: {name} has no groups"
            remedy = "write a scheme with groups and a number, e.g. dynamic_int4/64"
            raise ConfigError(what, where=f"quantization.{key}", remedy=remedy)
        return f"{name}{slash}{size}"


@dataclass(frozen=True, slots=True)
class _Rule:
    key: str
    pattern: str
    scheme: str

    def matches(self, node: Node) -> bool:
        return any(fnmatchcase(name, self.pattern) for name in _names(node, self.key))

    def require_match(self, nodes: list[Node]) -> None:
        """Raise ConfigError with the nearest name if no node matches."""
        if any(self.matches(node) for node in nodes):
            return
        known = {name for node in nodes for name in _names(node, self.key)}
        what = f"{self.pattern!r} matches nothing in the model"
        raise ConfigError(what, where=f"quantization.{self.key}", remedy=did_you_mean(self.pattern, known))


def _names(node: Node, key: str) -> Iterator[str]:
    """Yield the names of a node that patterns of a key are matched with."""
    if key == "nodes":
        yield node.name
    elif key == "operators":
        yield str(node.target)
        yield from edge_names(base_name(node))
    elif key == "modules":
        # The stack lacks the parents of a module that is called from outside its parent; its path has them.
        for path, _ in stack(node):
            parts = path.split(".")
            yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))
    else:
        for _, kind in stack(node):
            yield kind
            yield kind.rpartition(".")[2]


def stack(node: Node) -> list[tuple[str, str]]:
    """Return the modules that a node is in as pairs of path and class, the outermost first."""
    modules = []
    for path, kind in (node.meta.get("nn_module_stack") or {}).values():
        name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
        modules.append((_plain(path), name))
    return [(path, kind) for path, kind in modules if path]


def _plain(path: Any) -> str:
    return str(path).removeprefix("L['self'].").removeprefix("L['self']")
