"""Plugins of installed distributions, discovered by entry point and listed without importing them."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import NamedTuple

from delegate.entry_points import entry_points

OWN = "delegate"  # the distribution of this project; others cannot claim the names of its plugins
PORTABLE = "portable"  # the project's own kernel library: the last by preference, never blocked; a place for nodes
AUTHOR = "report it to the backend's author"  # the remedy for a fault of a plugin
BLOCK_VARIABLE = "DELEGATE_BLOCK_PLUGINS"  # environment variable: names separated by commas, or "*" for all


# Separates the name of a backend from that of an instance with other options, e.g. "xnnpack:small".
INSTANCE = ":"


class State(StrEnum):
    """The state of a plugin on this machine."""

    OK = "ok"
    BROKEN = "broken"
    INCOMPATIBLE = "incompatible"
    UNAVAILABLE = "unavailable"
    BLOCKED = "blocked"


class Plugin(NamedTuple):
    """An entry point, not imported.

    Args:
        name: of the entry point.
        owner, version: the distribution that declares it.
        value: what `load` imports, e.g. "package.module:NAME".
    """

    name: str
    owner: str
    version: str
    value: str

    @property
    def label(self) -> str:
        """The distribution for messages, e.g. "acme-npu 1.2"."""
        return f"{self.owner} {self.version}".strip()

    @property
    def module(self) -> str:
        """The module that `load` imports."""
        return self.value.partition(":")[0]

    def load(self) -> object:
        """Import the object of the entry point; raises all errors of that import."""
        return load_object(self.value)


class Discovered(NamedTuple):
    """The plugins of an entry-point group.

    Args:
        claims: by name in alphabetical order; several where distributions claim one name.
        refused: those that claim a name of this project's own plugins, which stay.
    """

    claims: dict[str, tuple[Plugin, ...]]
    refused: tuple[Plugin, ...]


def discover(group: str) -> Discovered:
    """Return the plugins of an entry-point group.

    A distribution that is seen twice on `sys.path` (an editable install next to its build metadata) counts once.
    """
    claims: dict[str, dict[str, Plugin]] = {}
    for entry in entry_points(group):
        key = entry.owner.lower().replace("-", "_").replace(".", "_")
        plugin = Plugin(entry.name, entry.owner, entry.version, entry.value)
        claims.setdefault(entry.name, {}).setdefault(key, plugin)
    own = {name: plugins[OWN] for name, plugins in claims.items() if OWN in plugins}
    counting = {name: (own[name],) if name in own else tuple(claims[name].values()) for name in sorted(claims)}
    return Discovered(counting, tuple(p for name in own for p in claims[name].values() if p is not own[name]))


def refusal(plugin: Plugin, what: str) -> str:
    """Describe the refusal of a plugin that claims one of this project's own names; `what` is the kind of plugin."""
    return f"{plugin.label} claims the {what} {plugin.name!r}, which is {OWN}'s own and stays: uninstall {plugin.owner}"


def misnamed(plugin: Plugin, name: object) -> str:
    """Describe the fault of a plugin whose object has another name than its entry point; "it" is the subject."""
    return f"calls itself {name!r}, unlike its entry point {plugin.name!r}: both have to be the same"


def blocked_names(environment: Mapping[str, str] | None = None) -> frozenset[str]:
    """Return the plugin names that the environment variable DELEGATE_BLOCK_PLUGINS blocks."""
    value = (os.environ if environment is None else environment).get(BLOCK_VARIABLE, "")
    return frozenset(part.strip() for part in value.split(",") if part.strip())


def blocked_in_vain(name: str, matches: Collection[str]) -> str:
    """Describe a blocked name that is no plugin here; `matches` are plugins of similar names."""
    meant = f": did you mean {' or '.join(map(repr, matches))}?" if matches else ""
    return f"the environment variable {BLOCK_VARIABLE} names {name!r}, which is no plugin here{meant}"


def is_blocked(name: str, blocked: Collection[str]) -> bool:
    """Return if plugins of a name are blocked."""
    return name in blocked or "*" in blocked


def backend_of(name: str) -> str:
    """Return the backend of an instance name: "xnnpack" of "xnnpack:small"; other names unchanged."""
    backend, _, own = name.partition(INSTANCE)
    return backend if re.fullmatch(r"\w[\w.-]*", own) else name


def load_object(path: str) -> object:
    """Import "package.module:Name"; raises ValueError for another form, and all errors of the import."""
    module, separator, name = path.partition(":")
    if not (module and separator and name):
        raise ValueError(f"{path!r} is not of the form 'package.module:Class'")
    return getattr(importlib.import_module(module), name)


def first_line(error: BaseException) -> str:
    """Return the type and the first line of an exception, e.g. "RuntimeError: sizes do not match"."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def one_line(error: BaseException) -> str:
    """Return an exception on one line, e.g. "ImportError: no module named x"."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # an exception may be impossible to print
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def full_traceback(error: BaseException | None) -> str:
    """Return the traceback as Python prints it; empty for None."""
    import traceback  # a broken plugin is rare

    return "".join(traceback.format_exception(error)) if error else ""
