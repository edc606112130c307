"""Plugins as installed distributions declare them: found by entry point, listed without being imported."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import NamedTuple

from delegate.entry_points import entry_points

OWN = "delegate"  # the distribution of this project: nobody else takes over a name of its plugins
PORTABLE = "portable"  # the project's own kernel library, asked last, never blocked; the place where a node runs on it
AUTHOR = "report it to the backend's author"  # the remedy for a fault of a plugin
BLOCK_VARIABLE = "DELEGATE_BLOCK_PLUGINS"  # environment variable: names separated by commas, or "*" for all


# What follows this in the name of a backend names an instance of it, e.g. "xnnpack:small": one with options of its own.
INSTANCE = ":"


class State(StrEnum):
    """What can be done with a plugin on this machine."""

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
        """Import what the entry point names; raises whatever that import raises."""
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
    """All plugins of an entry-point group.

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
    """Why a plugin is refused that claims a name of this project's own; `what` it claims to be."""
    return f"{plugin.label} claims the {what} {plugin.name!r}, which is {OWN}'s own and stays: uninstall {plugin.owner}"


def misnamed(plugin: Plugin, name: object) -> str:
    """What is wrong with a plugin whose object has another name than its entry point, as "it " and this."""
    return f"calls itself {name!r}, unlike its entry point {plugin.name!r}: both have to be the same"


def blocked_names(environment: Mapping[str, str] | None = None) -> frozenset[str]:
    """The names that the environment variable DELEGATE_BLOCK_PLUGINS keeps from being loaded."""
    value = (os.environ if environment is None else environment).get(BLOCK_VARIABLE, "")
    return frozenset(part.strip() for part in value.split(",") if part.strip())


def blocked_in_vain(name: str, near: Collection[str]) -> str:
    """That what is blocked is no plugin here; `near` are those that may have been meant."""
    meant = f": did you mean {' or '.join(map(repr, near))}?" if near else ""
    return f"the environment variable {BLOCK_VARIABLE} names {name!r}, which is no plugin here{meant}"


def is_blocked(name: str, blocked: Collection[str]) -> bool:
    """Whether a plugin of that name is blocked."""
    return name in blocked or "*" in blocked


def backend_of(name: str) -> str:
    """The name of the backend where an instance may be named: "xnnpack" of "xnnpack:small", else the name as it is."""
    backend, _, own = name.partition(INSTANCE)
    return backend if re.fullmatch(r"\w[\w.-]*", own) else name


def load_object(path: str) -> object:
    """Import "package.module:Name"; raises ValueError for another form, and whatever the import raises."""
    module, separator, name = path.partition(":")
    if not (module and separator and name):
        raise ValueError(f"{path!r} is not of the form 'package.module:Class'")
    return getattr(importlib.import_module(module), name)


def first_line(error: BaseException) -> str:
    """The first line of an exception of many, e.g. "RuntimeError: sizes do not match"."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def one_line(error: BaseException) -> str:
    """An exception on one line, e.g. "ImportError: no module named x"."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # of an exception that cannot be printed, its name is told
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def full_traceback(error: BaseException | None) -> str:
    """The traceback as Python prints it; empty for None."""
    import traceback  # a broken plugin is rare

    return "".join(traceback.format_exception(error)) if error else ""
