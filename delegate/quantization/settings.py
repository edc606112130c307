"""How a model is to be quantized: a scheme for all, and others, or none, for some operators, module types and paths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from torch.fx import Graph, Node

from delegate.backends.quantizable import QuantizationScheme
from delegate.errors import ConfigError, did_you_mean
from delegate.quantization.forms import base_name, edge_names
from delegate.registry import Registry, default_registry

OFF = "off"


@dataclass(frozen=True)
class Settings:
    """How to quantize for a backend.

    Where several say something of a node, module paths go before module types, these before operators; of several
    patterns the last that matches counts.

    Args:
        backend: its name.
        scheme: for all that nothing else is said of, e.g. "static_int8"; empty for the backend's first, "off" for none.
        operators: pattern over names, e.g. "aten.add*" or "aten.convolution.default" -> scheme or "off".
        module_types: class, e.g. "Linear" or "torch.nn.modules.linear.Linear" -> the same.
        modules: pattern over module paths, e.g. "encoder.layer.*" -> the same; it counts for all within.
        group_size: how many inputs of a channel share a scale, where the scheme has groups; 0 for all, None for the
            scheme's own.
        observer: how the range of activations is found: "histogram" leaves out what is rare, "minmax" nothing.
    """

    backend: str
    scheme: str = ""
    operators: Mapping[str, str] = field(default_factory=dict)
    module_types: Mapping[str, str] = field(default_factory=dict)
    modules: Mapping[str, str] = field(default_factory=dict)
    group_size: int | None = None
    observer: str = "histogram"


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
    """Which scheme each node of a graph gets.

    Args:
        settings: checked here.
        graph: as torch.export gives it.
        registry: where the backend is looked up.

    Raises:
        ConfigError: a scheme is unknown, or a pattern matches nothing.
    """

    def __init__(self, settings: Settings, graph: Graph, registry: Registry | None = None) -> None:
        self.settings, self.known = settings, schemes(settings.backend, registry)
        self.default = settings.scheme or next(iter(self.known))
        calls = [n for n in graph.nodes if n.op == "call_function"]
        self._rules = [
            _Rule(key, pattern, self._checked(scheme, key))
            for key in ("operators", "module_types", "modules")
            for pattern, scheme in getattr(settings, key).items()
        ]
        self._checked(self.default, "scheme")
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
    """What patterns of a key are compared with."""
    if key == "operators":
        yield str(node.target)
        yield from edge_names(base_name(node))
        return
    for path, kind in stack(node):
        if key == "modules":
            yield path
        else:
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
