"""The choice of a scheme for each node: a default scheme, and rules for operators, module types, paths and nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import escape
from typing import Any

from torch.fx import Graph, Node

from delegate.backend.quantizable import QuantizationScheme
from delegate.config.model import Quantization
from delegate.edge.node import base_name, edge_names
from delegate.errors import ConfigError, did_you_mean
from delegate.plugins import in_known_spelling
from delegate.registry import Registry, default_registry

OFF = "off"
RULES = ("operators", "module_types", "modules", "nodes")  # in order of increasing precedence


def keep_in_float(settings: Quantization, *, modules: Iterable[str] = (), nodes: Iterable[str] = ()) -> Quantization:
    """Return settings with more layers in floats.

    Args:
        settings: the settings; all other rules stay.
        modules: paths of modules, e.g. "encoder.layer.3.up"; everything inside stays in floats too.
        nodes: node names in the float program, see `float_node`. A node stands for one of several calls to a
            module, or for an operator that is not a module of its own.
    """
    return set_scheme(settings, OFF, modules=modules, nodes=nodes)


def set_scheme(
    settings: Quantization, scheme: str, *, modules: Iterable[str] = (), nodes: Iterable[str] = ()
) -> Quantization:
    """Return settings with another scheme for some layers; arguments as `keep_in_float`."""
    module_rules, node_rules = _with(settings.modules, modules, scheme), _with(settings.nodes, nodes, scheme)
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
        raise _no_integers(backend)
    return schemes_by_name


def with_backend(section: Quantization, backends: Sequence[str], registry: Registry) -> Quantization:
    """Return settings with a backend: without one of their own, the first of these that runs integers.

    Raises:
        ConfigError: none of the backends runs integers, or the named backend is not in use.
    """
    if section.backend is not None:
        if section.backend not in backends:
            what = f"quantization.backend: {section.backend!r} is not among the backends that are used"
            raise ConfigError(what, remedy=f"name one of {', '.join(backends) or 'them'}")
        return section
    able = [name for name in backends if registry.aot(name).quantization()]
    if able:
        return section.model_copy(update={"backend": able[0]})
    if not backends:
        raise ConfigError("quantization requires a backend, but none is used", remedy="name one that runs integers")
    raise _no_integers(backends[0])


def _no_integers(backend: str) -> ConfigError:
    what = f"backend {backend!r} does not support quantized programs"
    return ConfigError(what, remedy="name a backend that runs integers, or leave quantization out")


class SchemeChoice:
    """The scheme of each node of a model.

    Args:
        settings: the settings; this checks all but their patterns.
        registry: the registry that holds the backend; None for the default one.

    Raises:
        ConfigError: the settings name no backend, or a scheme is unknown.
    """

    def __init__(self, settings: Quantization, registry: Registry | None = None) -> None:
        if settings.backend is None:
            raise ConfigError("there is no backend to quantize for", where="quantization.backend", remedy="name one")
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
        name = self.spell(node).partition("/")[0]
        return None if name == OFF else self.known[name]

    def group_size(self, node: Node) -> int | None:
        """Return the number of a channel's inputs that share a scale in a node; 0: all inputs, None: the default."""
        size = self.spell(node).partition("/")[2]
        return int(size) if size else None

    def spell(self, node: Node) -> str:
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
