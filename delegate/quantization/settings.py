"""How a model is to be quantized: a scheme for all, and others, or none, for some operators, module types and paths."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from glob import escape
from typing import Any, TypeVar

from torch.fx import Graph, Node

from delegate.backends.quantizable import QuantizationScheme
from delegate.config.model import Quantization
from delegate.errors import ConfigError, did_you_mean
from delegate.quantization.forms import base_name, edge_names
from delegate.registry import Registry, default_registry

OFF = "off"
RULES = ("operators", "module_types", "modules", "nodes")  # the later goes before the earlier


@dataclass(frozen=True)
class Settings:
    """How to quantize for a backend.

    If several rules match a node, nodes go before module paths, these before module types, these before operators; of
    several patterns of one kind the last that matches counts.

    Args:
        backend: its name.
        scheme: for all that nothing else is said of, e.g. "static_int8"; empty for the backend's first, "off" for none.
        operators: pattern over names, e.g. "aten.add*" or "aten.convolution.default" -> scheme or "off".
        module_types: class, e.g. "Linear" or "torch.nn.modules.linear.Linear" -> the same.
        modules: pattern over module paths, e.g. "encoder.layer.*" -> the same; it counts for all within.
        nodes: pattern over names of the float program's nodes, e.g. "linear_3" -> the same, for one call of a layer.
        group_size: how many inputs of a channel share a scale, where the scheme has groups; 0 for all, None for the
            scheme's own.
        observer: how the range of activations is found: "histogram" by the least square error and without outliers,
            "minmax" of all values.
        outliers: the share of an activation's values that "histogram" may leave out at each end, if they are more than
            four times as large as all others; 0 for none.
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
        settings: or the section of a configuration; its other rules stay.
        modules: paths of modules, each with all within, e.g. "encoder.layer.3.up".
        nodes: names of nodes of the float program, see `float_node`; for a call of a module that is called several
            times, or for an operator that no module of its own calls.
    """
    kept_modules, kept_nodes = _and_off(settings.modules, modules), _and_off(settings.nodes, nodes)
    if isinstance(settings, Settings):
        return replace(settings, modules=kept_modules, nodes=kept_nodes)
    return settings.model_copy(update={"modules": kept_modules, "nodes": kept_nodes})


def _and_off(rules: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    patterns = dict.fromkeys(map(escape, names), OFF)
    return {**{pattern: scheme for pattern, scheme in rules.items() if pattern not in patterns}, **patterns}


def schemes(backend: str, registry: Registry | None = None) -> dict[str, QuantizationScheme]:
    """The schemes of a backend by name, its default first.

    Raises:
        ConfigError: it runs no integers.
        BackendError: there is no such backend, or it is broken.
    """
    registry = registry or default_registry()
    found = {scheme.name: scheme for scheme in registry.aot(backend, absent_ok=True).quantization()}
    if not found:
        others = [n for n in registry.names() if n != backend and _runs_integers(n, registry)]
        remedy = f"quantize for one that does: {', '.join(others)}" if others else "leave quantization out"
        raise ConfigError(f"backend {backend!r} takes no quantized programs", remedy=remedy)
    return found


def _runs_integers(name: str, registry: Registry) -> bool:
    try:
        registry.half(name, "aot")  # it may crash when it is imported: a process of its own tries that first
        return bool(registry.aot(name, absent_ok=True).quantization())
    except Exception:  # a broken plugin, which nobody asked for here
        return False


class Choice:
    """The scheme of each node of a model.

    Args:
        settings: checked here, but for their patterns.
        registry: where the backend is looked up.

    Raises:
        ConfigError: a scheme is unknown.
    """

    def __init__(self, settings: Settings, registry: Registry | None = None) -> None:
        self.settings, self.known = settings, schemes(settings.backend, registry)
        self.default = settings.scheme or next(iter(self.known))
        self._rules = [
            _Rule(key, pattern, self._checked(scheme, key))
            for key in RULES
            for pattern, scheme in getattr(settings, key).items()
        ]
        self._checked(self.default, "scheme")

    def require_matches(self, graphs: Iterable[Graph]) -> None:
        """Check that every pattern matches a node of one of the graphs, which are as torch.export gives them.

        Raises:
            ConfigError: a pattern matches nothing; names the nearest.
        """
        calls = [n for graph in graphs for n in graph.nodes if n.op == "call_function"]
        for rule in self._rules:
            rule.require_match(calls)

    def scheme(self, node: Node) -> QuantizationScheme | None:
        """The scheme of a node; None where it is to stay as it is."""
        wanted = self.default
        for rule in self._rules:
            if rule.matches(node):
                wanted = rule.scheme
        return None if wanted == OFF else self.known[wanted]

    def _checked(self, scheme: str, key: str) -> str:
        if scheme != OFF and scheme not in self.known:
            what = f"backend {self.settings.backend!r} has no scheme {scheme!r}"
            raise ConfigError(what, where=f"quantization.{key}", remedy=did_you_mean(scheme, [*self.known, OFF]))
        return scheme


@dataclass(frozen=True, slots=True)
class _Rule:
    key: str
    pattern: str
    scheme: str

    def matches(self, node: Node) -> bool:
        return any(fnmatchcase(name, self.pattern) for name in _names(node, self.key))

    def require_match(self, nodes: list[Node]) -> None:
        """Raises ConfigError, with the nearest name, where no node matches."""
        if any(self.matches(node) for node in nodes):
            return
        known = {name for node in nodes for name in _names(node, self.key)}
        what = f"{self.pattern!r} matches nothing in the model"
        raise ConfigError(what, where=f"quantization.{self.key}", remedy=did_you_mean(self.pattern, known))


def _names(node: Node, key: str) -> Iterator[str]:
    """Yield what patterns of a key are compared with."""
    if key == "nodes":
        yield node.name
    elif key == "operators":
        yield str(node.target)
        yield from edge_names(base_name(node))
    elif key == "modules":
        # A module that is called from outside its parent has no parent in its stack, but in its path.
        for path, _ in stack(node):
            parts = path.split(".")
            yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))
    else:
        for _, kind in stack(node):
            yield kind
            yield kind.rpartition(".")[2]


def stack(node: Node) -> list[tuple[str, str]]:
    """The modules that a node is in, from the outermost: (path, class)."""
    found = []
    for path, kind in (node.meta.get("nn_module_stack") or {}).values():
        name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
        found.append((_plain(path), name))
    return [(path, kind) for path, kind in found if path]


def _plain(path: Any) -> str:
    return str(path).removeprefix("L['self'].").removeprefix("L['self']")
